"""The keys of the OpenTelemetry Collector's components that our files may use, as their own sources name them.

Read off the `config.schema.yaml` and the READMEs of opentelemetry-collector v0.159 and, for `load_balancing` and
`file`, of opentelemetry-collector-contrib v0.154 and later (November 2026). Only names were taken. Its
authors' builds are on no package index; the one on PyPI, of another author, has none of these exporters.
"""

from __future__ import annotations

from typing import Final

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
