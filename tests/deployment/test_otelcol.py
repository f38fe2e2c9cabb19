"""The OpenTelemetry Collector's configurations: known keys, whole pipelines, and no delay on the way of segments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from support.otlp import T0_NS, export, request_span, stream_spans

import otel_llm.audit

Keys = dict[str, "Keys | None"]
"""Allowed keys, each with those below it; None: a value of any form."""


def leaves(*names: str) -> Keys:
    return dict.fromkeys(names)


TLS_CLIENT: Final = leaves(
    *("insecure", "insecure_skip_verify", "server_name_override", "ca_file", "cert_file", "key_file")
)
RETRY: Final = leaves(
    *("enabled", "initial_interval", "max_interval", "max_elapsed_time", "multiplier", "randomization_factor")
)
BATCH: Final = leaves("flush_timeout", "min_size", "max_size", "sizer", "partition")
QUEUE: Final = leaves(
    *("enabled", "num_consumers", "wait_for_result", "block_on_overflow", "sizer", "queue_size", "storage")
) | {"batch": BATCH}
OTLP_GRPC: Final[Keys] = leaves("endpoint", "compression", "headers", "timeout", "keepalive", "balancer_name") | {
    "tls": TLS_CLIENT,
    "sending_queue": QUEUE,
    "retry_on_failure": RETRY,
}
SERVER: Final[Keys] = leaves("endpoint", "max_recv_msg_size_mib", "include_metadata") | {
    "tls": leaves("cert_file", "key_file", "client_ca_file")
}

RECEIVERS: Final[Keys] = {"otlp": {"protocols": {"grpc": SERVER, "http": SERVER}}}
PROCESSORS: Final[Keys] = {
    "memory_limiter": leaves(
        *("check_interval", "limit_mib", "spike_limit_mib", "limit_percentage", "spike_limit_percentage")
    ),
    "batch": leaves("timeout", "send_batch_size", "send_batch_max_size", "metadata_keys"),
}
EXPORTERS: Final[Keys] = {
    "otlp_grpc": OTLP_GRPC,  # `otlp` until 0.144
    "load_balancing": {  # `loadbalancing` until 0.153
        "routing_key": None,
        "routing_attributes": None,
        "protocol": {"otlp": {name: below for name, below in OTLP_GRPC.items() if name != "endpoint"}},
        "resolver": {
            "static": leaves("hostnames"),
            "dns": leaves("hostname", "port", "interval", "timeout"),
            "k8s": leaves("service", "ports", "timeout", "return_hostnames"),
        },
        "timeout": None,
        "sending_queue": QUEUE,
        "retry_on_failure": RETRY,
    },
    "file": leaves("path", "append", "format", "encoding", "compression", "flush_interval", "create_directory")
    | {"rotation": leaves("max_megabytes", "max_days", "max_backups", "localtime")},
}
DISTRIBUTION: Final = {"load_balancing", "file"}
"""Exporters that only the distribution `contrib` has."""

DURATIONS: Final = {
    *("timeout", "check_interval", "flush_interval", "flush_timeout", "interval"),
    *("initial_interval", "max_interval", "max_elapsed_time"),
}
CHOICES: Final = {
    "routing_key": {"traceID", "service", "attributes"},
    "sizer": {"requests", "items", "bytes"},
    "format": {"json", "proto"},
}


def unknown(config: object, keys: Keys | None, place: str) -> list[str]:
    """Return the places of a configuration that the tables do not know."""
    if keys is None or config is None:
        return []
    if not isinstance(config, dict):
        return [f"{place}: not a mapping"]
    found = []
    for name, value in config.items():
        if name in keys:
            found += unknown(value, keys[name], f"{place}.{name}")
        else:
            found.append(f"{place}.{name}")
    return found


FOLDER = Path(__file__).parents[2] / "collector" / "otelcol"
FILES = ("agent", "gateway", "sidecar")
LIVE = (("agent", "traces"), ("gateway", "traces/otel-llm"))
"""The pipelines that lead to `otel-llm collect`."""
SECTIONS: dict[str, Keys] = {"receivers": RECEIVERS, "processors": PROCESSORS, "exporters": EXPORTERS}
DURATION = re.compile(r"(\d+(\.\d+)?(ns|us|ms|s|m|h))+")
VARIABLE = re.compile(r"\$\{env:[A-Z_]+(:-[^}]*)?\}")


@pytest.fixture(params=FILES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def read(name: str) -> dict[str, Any]:
    found = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def walk(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Yield each value of a configuration that holds no others, with the key that it stands under."""
    if isinstance(value, dict):
        for inner, below in value.items():
            yield from walk(below, inner)
    elif isinstance(value, list):
        for below in value:
            yield from walk(below, key)
    else:
        yield key, value


def test_every_component_and_every_key_is_known(name: str) -> None:
    config = read(name)
    assert config.keys() == {*SECTIONS, "service"}
    for section, known in SECTIONS.items():
        for component, settings in config[section].items():
            kind = component.split("/")[0]
            assert kind in known, f"{section}.{component}"
            assert unknown(settings, known[kind], f"{section}.{component}") == []


def test_the_search_for_unknown_keys_finds_them() -> None:
    config = {"endpoint": "a:1", "tls": {"insecure": True, "insecrue": True}, "sending_queue": {"batch": {"x": 1}}}
    found = unknown(config | {"z": 1}, EXPORTERS["otlp_grpc"], "o")
    assert found == ["o.tls.insecrue", "o.sending_queue.batch.x", "o.z"]


def test_values_are_of_their_form(name: str) -> None:
    for key, value in walk(read(name)):
        if key in DURATIONS:
            assert DURATION.fullmatch(str(value)), (key, value)
        if key in CHOICES:
            assert value in CHOICES[key], (key, value)
        if isinstance(value, str) and "$" in value:
            assert "$" not in VARIABLE.sub("", value), (key, value)
            assert ":-" in value or key == "authorization", f"{key} has no default, and is no secret"


def test_pipelines_use_what_is_defined_and_all_of_it(name: str) -> None:
    config = read(name)
    for section in SECTIONS:
        used = {one for pipeline in config["service"]["pipelines"].values() for one in pipeline[section]}
        assert used == config[section].keys(), section
    for pipeline in config["service"]["pipelines"].values():
        assert pipeline["processors"][0] == "memory_limiter", "refuse before anything is kept"


def test_receivers_listen_on_this_machine_until_told_otherwise(name: str) -> None:
    for protocol in read(name)["receivers"]["otlp"]["protocols"].values():
        assert re.match(r"(\$\{env:LISTEN:-)?127\.0\.0\.1\}?:431[78]$", protocol["endpoint"])


@pytest.mark.parametrize(("file", "pipeline"), LIVE)
def test_nothing_holds_segments_back_or_drops_some(file: str, pipeline: str) -> None:
    """Batches wait 200 ms by default, tail samplers 30 s: a reader has no time for either."""
    config = read(file)
    stages = config["service"]["pipelines"][pipeline]
    assert stages["processors"] == ["memory_limiter"]
    for exporter in stages["exporters"]:
        settings = config["exporters"][exporter]
        settings = settings.get("protocol", {}).get("otlp", settings)
        assert "batch" not in settings["sending_queue"]
        assert settings["retry_on_failure"]["initial_interval"] == "250ms", "5 s, the default, is too late"


def test_the_gateway_keeps_a_stream_together_and_the_trace_backend_whole() -> None:
    config = read("gateway")
    balancing = config["exporters"]["load_balancing"]
    assert balancing["routing_key"] == "traceID"
    assert balancing["resolver"].keys() == {"static"}, "another resolver moves the streams of a collector that restarts"
    pipelines = config["service"]["pipelines"]
    assert {tuple(one["receivers"]) for one in pipelines.values()} == {("otlp",)}
    assert pipelines["traces/backend"]["exporters"] == ["otlp_grpc/backend"]


def test_each_file_names_the_distribution_that_it_needs(name: str) -> None:
    exporters = {one.split("/")[0] for one in read(name)["exporters"]}
    said = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").partition("\nreceivers:")[0]
    assert "contrib" in said
    assert ("`core`" in said) == (not exporters & DISTRIBUTION)


def test_an_audit_reads_what_the_sidecar_writes(tmp_path: Path) -> None:
    """Records of a length and a message, under the file's name and the name of one that was rotated."""
    settings = read("sidecar")["exporters"]["file"]
    assert settings["format"] == "proto"
    assert "append" not in settings, "the exporter refuses it beside rotation"
    path = tmp_path / Path(settings["path"]).name
    rotated = path.with_name(f"{path.stem}-2026-11-26T05-02-14.173{path.suffix}")
    tokens = [T0_NS + 10_000_000, T0_NS + 30_000_000]
    for number, file in enumerate((rotated, path), 1):
        spans = stream_spans(tokens, end_ns=T0_NS + 50_000_000, request=number)
        message = export(*spans, request_span(request=number)).SerializeToString()
        file.write_bytes(len(message).to_bytes(4, "big") + message)
    rows = otel_llm.audit.load(tmp_path, windows=False).rows
    assert [(row["tokens"], row["coverage"]) for row in rows] == [(2, 1.0), (2, 1.0)]
