"""The OTLP endpoints that the configuration names, checked at the start."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from otel_llm.export.records import version
from otel_llm.export.settings import without_credentials
from otel_llm.shared.errors import StartError

if TYPE_CHECKING:
    from pathlib import Path

    import requests


Protocol = Literal["grpc", "http/protobuf"]
Compression = Literal["none", "gzip"]
Signal = Literal["traces", "metrics", "logs"]

AGENT: Final = "otel-llm-collector"
DEFAULT_TIMEOUT_S: Final = 10.0
_PORTS: Final = {"http": 80, "https": 443}
_WRITE: Final = "write for example http://gateway:4317, or https://... for TLS"
_HEADER_NAME: Final = re.compile(r"[a-z0-9_.\-]+")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


@dataclass(frozen=True, slots=True)
class OtlpTarget:
    """One OTLP endpoint.

    `endpoint`: `http://HOST[:PORT]` (plain text) or `https://...` (TLS); over HTTP it may have a path prefix, to which
    `/v1/traces` and so on are added. `timeout_s`: of one attempt. `ca_file`: PEM certificates to trust instead of the
    system's. Headers may hold secrets and are never shown.

    Raises:
        StartError: a value cannot be used; the message names it and says what to write.
    """

    endpoint: str
    protocol: Protocol = "grpc"
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    compression: Compression = "gzip"
    timeout_s: float = DEFAULT_TIMEOUT_S
    ca_file: Path | None = None
    headers_file: Path | None = None
    """The file of `headers`, a secret."""

    def __post_init__(self) -> None:
        parts, shown = urlsplit(self.endpoint), without_credentials(self.endpoint)
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in _PORTS or not parts.hostname or port == 0:
            raise StartError(f"{shown!r} is no endpoint: {_WRITE}")
        if parts.username is not None or parts.password is not None:
            raise StartError(f"{shown!r}: no credentials in an endpoint: put them into its headers")
        if parts.query or parts.fragment or (self.protocol == "grpc" and parts.path.strip("/")):
            raise StartError(f"{self.endpoint!r} says more than where to connect: {_WRITE}")
        for name, value in self.headers:
            if not _HEADER_NAME.fullmatch(name.lower()) or name.lower().endswith("-bin"):
                raise StartError(f"header {name!r} of {self.endpoint}: not a name that gRPC and HTTP can send")
            if not _HEADER_VALUE.fullmatch(value):
                raise StartError(f"header {name!r} of {self.endpoint}: its value must be printable ASCII")
        if not 0 < self.timeout_s < float("inf"):
            raise StartError(f"timeout {self.timeout_s} of {self.endpoint}: not a positive number of seconds")
        if self.ca_file is not None:
            self.certificates()

    @property
    def tls(self) -> bool:
        """Return whether connections are encrypted."""
        return urlsplit(self.endpoint).scheme == "https"

    @property
    def host(self) -> str:
        """Return the host."""
        return urlsplit(self.endpoint).hostname or ""

    @property
    def port(self) -> int:
        """Return the port, or the scheme's default."""
        parts = urlsplit(self.endpoint)
        return parts.port or _PORTS[parts.scheme]

    @property
    def authority(self) -> str:
        """Return `HOST:PORT` for gRPC."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def url(self, signal: Signal) -> str:
        """Return the URL of a signal over HTTP."""
        path = f"/v1/{signal}"
        return self.endpoint.rstrip("/").removesuffix(path) + path

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the headers with lower-case names, as gRPC requires."""
        return tuple((name.lower(), value) for name, value in self.headers)

    def certificates(self) -> bytes | None:
        """Return the PEM certificates to trust; None: the system's.

        Raises:
            StartError: they cannot be read.
        """
        if self.ca_file is None:
            return None
        try:
            return self.ca_file.read_bytes()
        except OSError as problem:
            raise StartError(f"{self.ca_file}: {problem.strerror}: certificates of {self.endpoint}") from problem

    def session(self) -> requests.Session:
        """Return an HTTP session for this endpoint only: a redirect is an error, as it would take the headers along."""
        made = http_session(self.endpoint, self.ca_file)
        made.max_redirects = 0
        return made


def http_session(url: str, ca_file: Path | None = None) -> requests.Session:
    """Return an HTTP session that trusts what is configured; `ca_file`: as in `OtlpTarget`.

    Timeouts are those of whole exchanges. Proxies are those of the environment; a `.netrc` is not read: it would send
    other headers than configured.
    """
    import requests

    from otel_llm.export.transport.whole_exchange import bounded_session

    made = bounded_session()
    made.proxies.update(requests.utils.get_environ_proxies(url))
    made.trust_env = False
    made.verify = True if ca_file is None else str(ca_file)
    return made


def user_agent() -> str:
    """Return the collector's user agent."""
    return f"{AGENT}/{version()}"
