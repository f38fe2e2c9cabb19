"""The OTLP endpoint by the `OTEL_EXPORTER_OTLP_*` variables, read as the Python exporters read them."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlparse

if TYPE_CHECKING:
    from collections.abc import Mapping

Protocol = Literal["grpc", "http/protobuf"]
Compression = Literal["none", "gzip", "deflate"]

PROTOCOLS: Final[tuple[Protocol, ...]] = ("grpc", "http/protobuf")
DEFAULT_PROTOCOL: Final[Protocol] = "grpc"
DEFAULT_GRPC_ENDPOINT: Final = "http://localhost:4317"
DEFAULT_HTTP_ENDPOINT: Final = "http://localhost:4318"
TRACES_PATH: Final = "v1/traces"
DEFAULT_TIMEOUT_S: Final = 10.0

_USERINFO: Final = re.compile(r"^([A-Za-z][\w+.-]*://)?.*@", re.DOTALL)
"""The part of an endpoint before the host: its scheme, which is kept, and perhaps credentials, to the last `@`."""

_log: Final = logging.getLogger("otel_llm")


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """One OTLP endpoint.

    `endpoint` is `host:port` for gRPC and a full URL for HTTP; `timeout_s` bounds one attempt; `certificate`,
    `client_key` and `client_certificate` are paths of PEM files. `agent` is the user agent without its version.
    """

    protocol: Protocol = DEFAULT_PROTOCOL
    endpoint: str = "localhost:4317"
    insecure: bool = True
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout_s: float = DEFAULT_TIMEOUT_S
    compression: Compression = "none"
    certificate: str | None = None
    client_key: str | None = None
    client_certificate: str | None = None
    agent: str = "otel-llm"

    @property
    def shown(self) -> str:
        """Return the endpoint without the credentials that a URL may hold."""
        return _USERINFO.sub(r"\1", self.endpoint)

    @property
    def description(self) -> str:
        """Return the endpoint and its protocol, and a remedy where the port is usually the other protocol's."""
        usual = urlparse(DEFAULT_HTTP_ENDPOINT if self.protocol == "grpc" else DEFAULT_GRPC_ENDPOINT).port
        other = next(protocol for protocol in PROTOCOLS if protocol != self.protocol)
        address = self.shown if "//" in self.shown else f"//{self.shown}"
        said = f"{self.shown} over {self.protocol}"
        if urlparse(address).netloc.rpartition(":")[2] != str(usual):
            return said
        return f"{said} (this port is usually that of {other}: is OTEL_EXPORTER_OTLP_PROTOCOL right?)"


def from_environment(environ: Mapping[str, str] = os.environ) -> OtlpSettings:
    """Read the standard variables; a value that cannot be used is warned of and treated as unset.

    The traces variable wins over the general one. Source: OpenTelemetry specification, "OTLP exporter"; the rules for
    `insecure` are those of opentelemetry-exporter-otlp-proto-grpc.
    """
    protocol = _protocol(environ)
    endpoint, insecure = _grpc_endpoint(environ) if protocol == "grpc" else (_http_endpoint(environ), False)
    return OtlpSettings(
        protocol=protocol,
        endpoint=endpoint,
        insecure=insecure,
        headers=_headers(environ),
        timeout_s=_timeout_s(environ),
        compression=_compression(environ, protocol),
        certificate=_signal(environ, "CERTIFICATE"),
        client_key=_signal(environ, "CLIENT_KEY"),
        client_certificate=_signal(environ, "CLIENT_CERTIFICATE"),
    )


def _signal(environ: Mapping[str, str], name: str) -> str | None:
    return environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or environ.get(f"OTEL_EXPORTER_OTLP_{name}") or None


def _protocol(environ: Mapping[str, str]) -> Protocol:
    wanted = (_signal(environ, "PROTOCOL") or DEFAULT_PROTOCOL).strip()
    for protocol in PROTOCOLS:
        if wanted == protocol:
            return protocol
    _log.warning(
        "OTEL_EXPORTER_OTLP_PROTOCOL=%r is none of %s: using %s", wanted, ", ".join(PROTOCOLS), DEFAULT_PROTOCOL
    )
    return DEFAULT_PROTOCOL


def _grpc_endpoint(environ: Mapping[str, str]) -> tuple[str, bool]:
    endpoint = _signal(environ, "ENDPOINT") or DEFAULT_GRPC_ENDPOINT
    parsed = urlparse(endpoint)
    insecure = parsed.scheme == "http"
    stated = environ.get("OTEL_EXPORTER_OTLP_TRACES_INSECURE", environ.get("OTEL_EXPORTER_OTLP_INSECURE"))
    if parsed.scheme != "https" and stated is not None:
        insecure = stated.strip().lower() == "true"
    return parsed.netloc or endpoint, insecure


def _http_endpoint(environ: Mapping[str, str]) -> str:
    if endpoint := environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        return endpoint
    base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or DEFAULT_HTTP_ENDPOINT
    return f"{base.removesuffix('/')}/{TRACES_PATH}"


def _headers(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    from opentelemetry.util.re import parse_env_headers

    unread: list[logging.LogRecord] = []

    def hear(record: logging.LogRecord) -> bool:
        unread.append(record)
        return False

    # OpenTelemetry's own warning contains the header, and so a secret.
    log = logging.getLogger(parse_env_headers.__module__)
    log.addFilter(hear)
    try:
        headers = parse_env_headers(_signal(environ, "HEADERS") or "", liberal=True)
    finally:
        log.removeFilter(hear)
    if unread:
        traces = "OTEL_EXPORTER_OTLP_TRACES_HEADERS"
        name = traces if environ.get(traces) else "OTEL_EXPORTER_OTLP_HEADERS"
        _log.warning("%s has a header that is not name=value: not sending it", name)
    return tuple(headers.items())


def _timeout_s(environ: Mapping[str, str]) -> float:
    stated = _signal(environ, "TIMEOUT")
    if stated is None:
        return DEFAULT_TIMEOUT_S
    try:
        timeout_s = float(stated)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s < float("inf"):
        _log.warning("OTEL_EXPORTER_OTLP_TIMEOUT=%r is no number of seconds: using %g", stated, DEFAULT_TIMEOUT_S)
        return DEFAULT_TIMEOUT_S
    return timeout_s


def _compression(environ: Mapping[str, str], protocol: Protocol) -> Compression:
    known: tuple[Compression, ...] = ("none", "gzip") if protocol == "grpc" else ("none", "gzip", "deflate")
    stated = (_signal(environ, "COMPRESSION") or "none").strip().lower()
    for compression in known:
        if stated == compression:
            return compression
    _log.warning("OTEL_EXPORTER_OTLP_COMPRESSION=%r is none of %s: not compressing", stated, ", ".join(known))
    return "none"
