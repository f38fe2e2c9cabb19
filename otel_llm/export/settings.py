"""The OTLP endpoint by the `OTEL_EXPORTER_OTLP_*` variables, read as the Python exporters read them."""

from __future__ import annotations

import logging
import math
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlparse

from otel_llm.export import host_log

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
EXIT_TIMEOUT_VARIABLE: Final = "OTEL_LLM_EXIT_TIMEOUT"
DEFAULT_EXIT_TIMEOUT_S: Final = 2.0
LEAST_TIMEOUT_S: Final = 1e-3
"""An attempt that may take less is none."""

_USERINFO: Final = re.compile(r"^([A-Za-z][\w+.-]*://)?.*@", re.DOTALL)
"""The part of an endpoint before the host: its scheme, which is kept, and perhaps credentials, to the last `@`."""
_QUERY: Final = re.compile(r"[?#].*", re.DOTALL)
"""The part of an endpoint behind its path, which may hold a key."""
_PORT: Final = re.compile(r"^((?:[A-Za-z][\w+.-]*://)?[^/?#@\[\]:]*:)(?!\d*(?:[/?#]|$)|//)[^/?#@]*", re.DOTALL)
"""A host, and behind its colon what is no port: a password whose host is missing."""
_HIDDEN: Final = re.compile(r"^([A-Za-z][\w+.-]*://)?.*[?#].*@.*$", re.DOTALL)
"""An endpoint whose credentials may end in its query, or hold the mark of one: only its scheme is shown."""


def without_credentials(url: str) -> str:
    """Return a URL for a message: without the credentials that it may hold, before its host or in its query."""
    return _PORT.sub(r"\1…", _QUERY.sub("", _USERINFO.sub(r"\1", _HIDDEN.sub(r"\1…", url))))


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
        """Return the endpoint without credentials."""
        return without_credentials(self.endpoint)

    @property
    def description(self) -> str:
        """Return the endpoint and its protocol, and a remedy if the port is usually the other protocol's."""
        usual = urlparse(DEFAULT_HTTP_ENDPOINT if self.protocol == "grpc" else DEFAULT_GRPC_ENDPOINT).port
        other = next(protocol for protocol in PROTOCOLS if protocol != self.protocol)
        address = self.shown if "//" in self.shown else f"//{self.shown}"
        reported = f"{self.shown} over {self.protocol}"
        if urlparse(address).netloc.rpartition(":")[2] != str(usual):
            return reported
        return f"{reported} (this port is usually that of {other}: is OTEL_EXPORTER_OTLP_PROTOCOL right?)"


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
    host_log.warning(
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
        host_log.warning("%s has a header that is not name=value: not sending it", name)
    return tuple(headers.items())


def exit_timeout_s(environ: Mapping[str, str] = os.environ) -> float:
    """Return how long an ending process waits for what is queued, s; 0: not at all."""
    name = EXIT_TIMEOUT_VARIABLE
    return _seconds(name, environ.get(name), DEFAULT_EXIT_TIMEOUT_S, least_s=0.0)


def _timeout_s(environ: Mapping[str, str]) -> float:
    return _seconds(
        "OTEL_EXPORTER_OTLP_TIMEOUT", _signal(environ, "TIMEOUT"), DEFAULT_TIMEOUT_S, least_s=LEAST_TIMEOUT_S
    )


def _seconds(name: str, stated: str | None, default_s: float, *, least_s: float) -> float:
    """Return the time that a variable states; the default if it states none, or a shorter or endless one."""
    if not stated:
        return default_s
    try:
        seconds = float(stated)
    except ValueError:
        seconds = math.nan
    if least_s <= seconds < math.inf:
        return seconds
    host_log.warning("%s=%r is no number of seconds: using %g", name, stated, default_s)
    return default_s


def _compression(environ: Mapping[str, str], protocol: Protocol) -> Compression:
    known: tuple[Compression, ...] = ("none", "gzip") if protocol == "grpc" else ("none", "gzip", "deflate")
    stated = (_signal(environ, "COMPRESSION") or "none").strip().lower()
    for compression in known:
        if stated == compression:
            return compression
    host_log.warning("OTEL_EXPORTER_OTLP_COMPRESSION=%r is none of %s: not compressing", stated, ", ".join(known))
    return "none"
