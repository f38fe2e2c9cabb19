"""The settings file: what each key becomes, and what is said about those that are wrong."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from support.collector.tls_files import signed
from support.config.keys import keys_of

from otel_llm.actions.settings import ActionSettings, AlertmanagerSettings, AlertSettings, Engine, Receiver
from otel_llm.collector.settings import (
    JournalSettings,
    Limits,
    OtlpOutSettings,
    OtlpSettings,
    Settings,
    load_settings,
)
from otel_llm.config.otlp_target import Headers, OtlpTarget, QueuedTarget
from otel_llm.config.secret_files import read_signing_secrets
from otel_llm.config.sections import Auth, Cors, DecisionSettings, FileSettings, MetricsSettings, Operators, Web
from otel_llm.config.tls import Tls
from otel_llm.config.yaml_file import ConfigError

MIB = 2**20
EVERY_KEY = """\
version: 1
limits:
  message_bytes: 1048576
  receiving_bytes: 2097152
  streams_in_flight: 10
  segments_per_request: 11
  attributes_per_span: 12
  attribute_chars: 130
  metrics_bytes: 1048577
  connections: 14
  connections_per_peer: 29
  viewers: 0
  concurrent_exports: 15
  queued_exports: 16
  body_seconds: 17
  header_seconds: 1.5
  idle_connection_seconds: 19
  drain_seconds: 20
journal:
  file_bytes: 4096
  file_seconds: 21
  fsync: always
  fsync_interval: 50ms
  compress: false
  retain_bytes: 8192
  retain_seconds: 3600
decisions: {file_bytes: 4097, retain_bytes: 8193}
files: {mode: 0640}
metrics: {instance_label: true, models: [m, n], instances: []}
tls: {certificate: server.pem, key: keys/server.key, client_ca: server.pem, web: server}
auth: {tokens_file: tokens, web: open}
operators: {tokens_file: tokens}
cors: {origins: [https://a.example, 'http://localhost:3000']}
web: {hosts: [a.example]}
forward: {endpoint: 'https://b.example:4317', headers_file: headers, timeout: 3s, queue_bytes: 1048576}
otlp:
  metrics: {endpoint: 'http://c.example:4318', protocol: http/protobuf, interval: 1m, compression: none}
  windows: {endpoint: 'http://d.example', ca_file: server.pem}
receivers:
  oncall: {url: 'https://e.example/hook?team=a', secret_file: secrets, timeout: 2s, kind: notification}
  mover: {url: 'http://127.0.0.1:9', secret_file: secrets, kind: action}
alertmanager:
  urls: ['http://127.0.0.1:9093/', 'https://f.example/am']
  resend: 30s
  resolved_for: 5m
  timeout: 3s
  bearer_file: tokens
  ca_file: server.pem
alerts:
  log: alerts.jsonl
  receivers: [oncall]
  settle: 2s
  otlp: {endpoint: 'http://g.example:4318', protocol: http/protobuf}
  dead_letter: dead.jsonl
actions:
  kill_switch: stop
  wedge_timeout: 20s
  engines:
    fast:
      kind: vllm
      instances: {node-1: 'http://10.0.0.1:8000', node-2: 'http://10.0.0.2:8000/'}
      token_file: tokens
      abort_path: /inference/v1/abort_requests
    front:
      kind: vllm_router
      url: http://10.0.0.9:30000
      instances: {node-1: 'http://10.0.0.1:8000'}
    scaler: {kind: webhook, secret_file: secrets, instances: {'*': 'https://h.example/scale'}}
"""
SECRET = "whsec_" + base64.b64encode(bytes(range(24))).decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    certificate, key = signed().pem
    (tmp_path / "keys").mkdir()
    (tmp_path / "server.pem").write_bytes(certificate)
    (tmp_path / "keys" / "server.key").write_bytes(key)
    (tmp_path / "tokens").write_text("a-token-of-this-test\n")
    (tmp_path / "secrets").write_text(f"# of the on-call hook\n{SECRET}\n")
    (tmp_path / "headers").write_text("X-Scope: t1\n")
    return tmp_path


def load(folder: Path, text: str) -> Settings:
    path = folder / "collector.yaml"
    path.write_text(text)
    return load_settings(path)


def test_without_a_file_and_with_an_empty_one(folder: Path) -> None:
    assert load_settings(None) == Settings()
    assert load(folder, "version: 1\n") == Settings()


def test_every_key(folder: Path) -> None:
    assert load(folder, EVERY_KEY) == Settings(
        limits=Limits(
            message_bytes=MIB,
            receiving_bytes=2 * MIB,
            streams_in_flight=10,
            segments_per_request=11,
            attributes_per_span=12,
            attribute_chars=130,
            metrics_bytes=1048577,
            connections=14,
            connections_per_peer=29,
            viewers=0,
            concurrent_exports=15,
            queued_exports=16,
            body_s=17,
            header_s=1.5,
            idle_connection_s=19,
            drain_s=20,
        ),
        journal=JournalSettings(
            file_bytes=4096,
            file_s=21,
            fsync="always",
            fsync_interval_s=0.05,
            compress=False,
            retain_bytes=8192,
            retain_s=3600,
        ),
        decisions=DecisionSettings(file_bytes=4097, retain_bytes=8193),
        files=FileSettings(mode=0o640),
        metrics=MetricsSettings(instance_label=True, models=("m", "n"), instances=()),
        tls=Tls(
            certificate=folder / "server.pem",
            key=folder / "keys/server.key",
            client_ca=folder / "server.pem",
            web="server",
        ),
        auth=Auth(tokens_file=folder / "tokens", web="open"),
        operators=Operators(tokens_file=folder / "tokens"),
        cors=Cors(origins=("https://a.example", "http://localhost:3000")),
        web=Web(hosts=("a.example",)),
        forward=QueuedTarget(
            endpoint="https://b.example:4317",
            headers=Headers((("x-scope", "t1"),), folder / "headers"),
            timeout_s=3.0,
            queue_bytes=MIB,
        ),
        otlp=OtlpSettings(
            metrics=OtlpOutSettings(
                endpoint="http://c.example:4318", protocol="http/protobuf", compression="none", interval_s=60
            ),
            windows=OtlpOutSettings(endpoint="http://d.example", ca_file=folder / "server.pem"),
        ),
        receivers={
            "oncall": Receiver(url="https://e.example/hook?team=a", secret_file=folder / "secrets", timeout_s=2.0),
            "mover": Receiver(url="http://127.0.0.1:9", secret_file=folder / "secrets", kind="action"),
        },
        alertmanager=AlertmanagerSettings(
            urls=("http://127.0.0.1:9093", "https://f.example/am"),
            resend_s=30.0,
            resolved_for_s=300.0,
            timeout_s=3.0,
            bearer_file=folder / "tokens",
            ca_file=folder / "server.pem",
        ),
        alerts=AlertSettings(
            log=folder / "alerts.jsonl",
            receivers=("oncall",),
            settle_s=2.0,
            otlp=OtlpTarget(endpoint="http://g.example:4318", protocol="http/protobuf"),
            dead_letter=folder / "dead.jsonl",
        ),
        actions=ActionSettings(
            engines={
                "fast": Engine(
                    kind="vllm",
                    instances={"node-1": "http://10.0.0.1:8000", "node-2": "http://10.0.0.2:8000"},
                    token_file=folder / "tokens",
                    abort_path="/inference/v1/abort_requests",
                ),
                "front": Engine(
                    kind="vllm_router", instances={"node-1": "http://10.0.0.1:8000"}, url="http://10.0.0.9:30000"
                ),
                "scaler": Engine(
                    kind="webhook", instances={"*": "https://h.example/scale"}, secret_file=folder / "secrets"
                ),
            },
            kill_switch=folder / "stop",
            wedge_timeout_s=20.0,
        ),
    )


def test_the_text_above_has_every_key_there_is() -> None:
    """A key that is added to the settings is added here."""
    reported = set(re.findall(r"[a-z_]+(?=:)", EVERY_KEY))
    assert {path[-1] for path, _ in keys_of(Settings)} - reported == set()


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("limits: {message_bites: 1}", "2:10: limits.message_bites", "did you mean message_bytes"),
        ("limits: {message_bytes: 1023}", "2:25: limits.message_bytes", "greater than or equal to 1024"),
        ("limits: {message_bytes: '1048576'}", "2:25: limits.message_bytes", "not a whole number"),
        ("limits: {message_bytes: 2097152, receiving_bytes: 1048576}", "2:9: limits", "let one message fit"),
        ("limits: {connections: 0}", "2:23: limits.connections", "greater than or equal to 1"),
        ("limits: {drain_seconds: 0}", "2:25: limits.drain_seconds", "greater than 0"),
        ("limits: {drain_seconds: true}", "2:25: limits.drain_seconds", "number"),
        ("journal: {fsync: sometimes}", "2:18: journal.fsync", "'always', 'interval' or 'never'"),
        ("journal: {fsync_interval: 0}", "2:27: journal.fsync_interval", "longer than zero"),
        ("journal: {fsync_interval: 5 parsecs}", "2:27: journal.fsync_interval", "300ms"),
        ("decisions: {retain_bytes: 4095}", "2:27: decisions.retain_bytes", "greater than or equal to 4096"),
        ("journal: {retain_bytes: }", "2:24: journal.retain_bytes", "write a number of bytes, or none"),
        ("journal: {retain_bytes: all}", "2:25: journal.retain_bytes", "not a whole number"),
        ("decisions: {file_bytes: 4095}", "2:25: decisions.file_bytes", "greater than or equal to 4096"),
        ("metrics: {models: m}", "2:19: metrics.models", "not a list"),
        ("metrics: {models: ['']}", "2:20: metrics.models[0]", "an empty name"),
        ("tls: {certificate: server.pem}", "2:6: tls.key", "missing"),
        ("tls: {certificate: nowhere.pem, key: keys/server.key}", "2:20: tls.certificate", "nowhere.pem: No such file"),
        ("tls: {certificate: tokens, key: keys/server.key}", "2:20: tls.certificate", "not a PEM file"),
        ("tls: {certificate: server.pem, key: server.pem}", "2:20: tls.certificate", "server.pem with"),
        ("tls: {certificate: server.pem, key: keys/server.key, client_ca: x}", "2:65: tls.client_ca", "No such file"),
        (
            "tls: {certificate: server.pem, key: keys/server.key, web: no}",
            "2:59: tls.web",
            "'same', 'server' or 'none'",
        ),
        ("auth: {tokens_file: nowhere}", "2:21: auth.tokens_file", "nowhere: No such file"),
        ("auth: {}", "2:7: auth.tokens_file", "missing"),
        ("operators: {tokens_file: tokens}", "2:1: operators", "operators without auth"),
        ("cors: {origins: ['*']}", "2:18: cors.origins[0]", "is no origin"),
        ("cors: {origins: [https://a.example/]}", "2:18: cors.origins[0]", "is no origin"),
        ("cors: {origins: [https://A.example]}", "2:18: cors.origins[0]", "in lower case"),
        ("cors: {origins: [a.example]}", "2:18: cors.origins[0]", "is no origin"),
        ("cors: {origins: ['null']}", "2:18: cors.origins[0]", "is no origin"),
        ("web: {hosts: ['a.example:80']}", "2:15: web.hosts[0]", "without a port"),
        ("forward: {endpoint: b.example}", "2:21: forward.endpoint", "is no endpoint"),
        ("forward: {endpoint: 'ftp://b.example'}", "2:21: forward.endpoint", "is no endpoint"),
        ("forward: {endpoint: 'http://u:p@b.example'}", "2:21: forward.endpoint", "no credentials"),
        ("forward: {endpoint: 'http://b', protocol: http/json}", "2:43: forward.protocol", "'http/protobuf'"),
        ("forward: {endpoint: 'http://b', headers_file: nowhere}", "2:47: forward.headers_file", "No such file"),
        ("otlp: {windows: {endpoint: 'x'}}", "2:28: otlp.windows.endpoint", "is no endpoint"),
        ("receivers: {a: {secret_file: secrets}}", "2:16: receivers.a.url", "missing"),
        ("receivers: {a: {url: 'http://b'}}", "2:16: receivers.a.secret_file", "missing"),
        (
            "receivers: {a: {url: 'http://u:p@b', secret_file: secrets}}",
            "2:22: receivers.a.url",
            "credentials in a URL",
        ),
        ("receivers: {a: {url: 'ftp://b', secret_file: secrets}}", "2:22: receivers.a.url", "no URL that can be asked"),
        ("receivers: {a: {url: 'http://', secret_file: secrets}}", "2:22: receivers.a.url", "no URL that can be asked"),
        ("receivers: {a: {url: 'http://b:0', secret_file: secrets}}", "2:22: receivers.a.url", "no URL that can be"),
        ("receivers: {a: {url: 'http://b/#c', secret_file: secrets}}", "2:22: receivers.a.url", "a fragment"),
        ("receivers: {a: {url: 'http://b', secret_file: nowhere}}", "2:47: receivers.a.secret_file", "No such file"),
        ("receivers: {a: {url: 'http://b', secret_file: secrets, kind: x}}", "2:62: receivers.a.kind", "'action'"),
        ("receivers: {' ': {url: 'http://b', secret_file: secrets}}", "2:18: receivers. ", "is no name"),
        ("alertmanager: {urls: []}", "2:22: alertmanager.urls", "at least one entry"),
        ("alertmanager: {urls: ['http://a', 'http://a/']}", "2:35: alertmanager.urls[1]", "stands here twice"),
        ("alertmanager: {urls: ['http://a/api/v2/alerts']}", "2:23: alertmanager.urls[0]", "leave out /api"),
        ("alertmanager: {urls: ['http://a?b']}", "2:23: alertmanager.urls[0]", "a URL with a query"),
        ("alertmanager: {urls: ['http://a'], resend: 0}", "2:44: alertmanager.resend", "longer than zero"),
        ("alertmanager: {urls: ['http://a'], bearer_file: x}", "2:49: alertmanager.bearer_file", "No such file"),
        ("alertmanager: {urls: ['https://a'], ca_file: x}", "2:46: alertmanager.ca_file", "No such file"),
        ("alerts: {log: .}", "2:15: alerts.log", "name a file in it"),
        ("alerts: {receivers: [oncall]}", "2:22: alerts.receivers[0]", "name it in the section `receivers`"),
        ("alerts: {otlp: {endpoint: b}}", "2:27: alerts.otlp.endpoint", "is no endpoint"),
        (
            "alerts: {otlp: {endpoint: 'http://b', queue_bytes: 1048576}}",
            "2:39: alerts.otlp.queue_bytes",
            "unknown key",
        ),
        ("actions: {engines: {e: {kind: tgi, instances: {a: 'http://a'}}}}", "2:31: actions.engines.e.kind", "'vllm'"),
        ("actions: {engines: {e: {kind: vllm, instances: {}}}}", "2:48: actions.engines.e.instances", "at least one"),
        (
            "actions: {engines: {e: {kind: vllm, instances: {a: 'b'}}}}",
            "2:52: actions.engines.e.instances.a",
            "no URL that can be asked",
        ),
        (
            "actions: {engines: {e: {kind: vllm_router, instances: {a: 'http://a'}}}}",
            "2:24: actions.engines.e.url",
            "an engine of kind vllm_router needs it",
        ),
        (
            "actions: {engines: {e: {kind: webhook, instances: {a: 'http://a'}}}}",
            "2:24: actions.engines.e.secret_file",
            "an engine of kind webhook needs it",
        ),
        (
            "actions: {engines: {e: {kind: vllm, url: 'http://b', instances: {a: 'http://a'}}}}",
            "2:37: actions.engines.e.url",
            "it belongs to vllm_router or sglang_router",
        ),
        (
            "actions: {engines: {e: {kind: vllm, instances: {a: 'http://a'}, abort_path: x}}}",
            "2:77: actions.engines.e.abort_path",
            "is no path",
        ),
        (
            "actions: {engines: {e: {kind: relay, instances: {a: 'http://a'}}}}",
            "2:24: actions.engines.e.secret_file",
            "an engine of kind relay needs it",
        ),
        (
            "actions: {engines: {e: {kind: relay, url: 'http://b', secret_file: secrets, instances: {a: 'http://a'}}}}",
            "2:38: actions.engines.e.url",
            "an engine of kind relay has no url",
        ),
        (
            "actions: {engines: {e: {kind: relay, token_file: tokens, secret_file: secrets, instances: {a: 'http://a'}}}}",
            "2:38: actions.engines.e.token_file",
            "an engine of kind relay has no token_file",
        ),
        (
            "actions: {engines: {e: {kind: relay, abort_path: /a, secret_file: secrets, instances: {a: 'http://a'}}}}",
            "2:38: actions.engines.e.abort_path",
            "an engine of kind relay has no abort_path",
        ),
        (
            "actions: {engines: {e: {kind: relay, secret_file: secrets, instances: {a: 'http://a/v1/actions'}}}}",
            "2:75: actions.engines.e.instances.a",
            "leave /v1/actions out",
        ),
        ("actions: {secret_file: secrets}", "2:11: actions.secret_file", "unknown key"),
        ("otlp: {traces: {}}", "2:8: otlp.traces", "did you mean metrics?"),
    ],
)
def test_what_is_wrong_is_reported_with_its_position(folder: Path, text: str, position: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(folder, f"version: 1\n{text}\n")
    assert str(raised.value).startswith(f"{folder / 'collector.yaml'}:{position}: ")
    assert says in str(raised.value)
    assert "u:p" not in str(raised.value)


def test_a_wrong_line_in_a_file_that_is_named_is_reported_with_its_own_position(folder: Path) -> None:
    (folder / "tokens").write_text("# who\nsecret token\n")
    with pytest.raises(ConfigError, match=r"tokens:2:1: not a bearer token") as raised:
        load(folder, "version: 1\nauth: {tokens_file: tokens}\n")
    assert "secret" not in str(raised.value)
    (folder / "headers").write_text("secret header\n")
    with pytest.raises(ConfigError, match=r"headers:1:1: not a header") as raised:
        load(folder, "version: 1\nforward: {endpoint: 'http://b', headers_file: headers}\n")
    assert "secret" not in str(raised.value)


def test_a_secret_that_is_none_is_reported_with_its_own_position(folder: Path) -> None:
    receiver = "version: 1\nreceivers: {a: {url: 'http://b', secret_file: secrets}}\n"
    short = "whsec_" + base64.b64encode(bytes(23)).decode()
    for text, says in (
        ("not-a-secret\n", "secrets:1:1: not a signing secret"),
        (f"{SECRET}\n{short}\n", "secrets:2:1: not a signing secret"),
        (f"{SECRET.removeprefix('whsec_')}\n", "secrets:1:1: not a signing secret"),
        ("# none\n", "secrets: no secret in this file"),
        (f"{SECRET}\n" * 5, "secrets: more than 4 secrets"),
    ):
        (folder / "secrets").write_text(text)
        with pytest.raises(ConfigError) as raised:
            load(folder, receiver)
        assert says in str(raised.value)
        assert "not-a-secret" not in str(raised.value)
        assert short not in str(raised.value)
    (folder / "secrets").write_text(f"{SECRET}\n")
    assert read_signing_secrets(folder / "secrets") == (bytes(range(24)),)


def test_alerts_go_to_receivers_of_notifications(folder: Path) -> None:
    receivers = "receivers: {mover: {url: 'http://b', secret_file: secrets, kind: action}}"
    for named, says in (("mover", "'mover' takes actions"), ("moved", "did you mean mover?")):
        with pytest.raises(ConfigError, match=r":3:22: alerts.receivers\[0\]: ") as raised:
            load(folder, f"version: 1\n{receivers}\nalerts: {{receivers: [{named}]}}\n")
        assert says in str(raised.value)


def test_an_instance_is_asked_at_one_place_to_do_a_thing(folder: Path) -> None:
    engines = "version: 1\nactions:\n  engines:\n    a: {kind: vllm, instances: {n: 'http://a'}}\n"
    with pytest.raises(ConfigError, match=r":5:35: actions.engines.b.instances.n: 'n' is an instance of 'a' already"):
        load(folder, engines + "    b: {kind: sglang, instances: {n: 'http://b'}}\n")
    router = "    b: {kind: vllm_router, url: 'http://c', instances: {n: 'http://b'}}\n"
    assert len(load(folder, engines + router).actions.engines) == 2
    again = router.replace("b:", "c:")
    with pytest.raises(ConfigError, match=r":6:57: .*: 'n' is an instance of 'b' already, which does `drain` too"):
        load(folder, engines + router + again)  # the first of this instance does something else


@pytest.mark.parametrize(
    ("engine", "verb"),
    [
        ("kind: vllm", "abort"),
        ("kind: sglang_router, url: 'http://c'", "drain"),
        ("kind: webhook, secret_file: secrets", None),
    ],
)
def test_a_relay_does_what_others_do_too(folder: Path, engine: str, verb: str | None) -> None:
    engines = f"version: 1\nactions:\n  engines:\n    a: {{{engine}, instances: {{n: 'http://a'}}}}\n"
    relay = "    b: {kind: relay, secret_file: secrets, instances: {%s: 'http://b'}}\n"
    for instance in ("n", "'*'"):
        if verb is None or instance != "n":
            assert len(load(folder, engines + relay % instance).actions.engines) == 2
            continue
        with pytest.raises(
            ConfigError, match=rf":5:56: .*: 'n' is an instance of 'a' already, which does `{verb}` too"
        ):
            load(folder, engines + relay % instance)
