"""The OTLP endpoints that the configuration names, checked at the start."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003 - pydantic reads it
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import Field, PlainValidator, ValidationInfo, model_validator

from otel_llm.config.errors import StartError
from otel_llm.config.secret_files import read_headers
from otel_llm.config.settings_model import MIB, FilePath, Seconds, SettingsModel, file_name, of_named_file
from otel_llm.config.strict_model import wrong
from otel_llm.config.yaml_file import UnreadableConfigError
from otel_llm.export.records import version
from otel_llm.export.settings import without_credentials

if TYPE_CHECKING:
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


class Headers(NamedTuple):
    """The headers of requests to an endpoint, and the file that they were read from."""

    pairs: tuple[tuple[str, str], ...] = ()
    file: Path | None = None


def _headers(value: object, info: ValidationInfo) -> Headers:
    if isinstance(value, Headers):
        return value
    if value is None:
        return Headers()
    path = file_name(value, info)
    try:
        return Headers(read_headers(path), path)
    except UnreadableConfigError as error:
        raise of_named_file(error) from None


class OtlpTarget(SettingsModel):
    """One OTLP endpoint and how to send to it.

    Raises:
        ValidationError: a value cannot be used; the message names it and says what to write.
    """

    endpoint: Annotated[str, Field(min_length=1)]
    """`http://HOST[:PORT]` (plain text) or `https://...` (TLS); over HTTP with a path prefix, without `/v1/traces`."""
    protocol: Protocol = "grpc"
    """The protocol: `grpc` or `http/protobuf`."""
    headers: Annotated[Headers, PlainValidator(_headers)] = Field(
        default=Headers(), validation_alias="headers_file", repr=False
    )
    """A file of headers, `name: value` a line; they may hold secrets and are never shown."""
    compression: Compression = "gzip"
    """The compression of requests: `gzip` or `none`."""
    timeout_s: Seconds = Field(default=DEFAULT_TIMEOUT_S, validation_alias="timeout")
    """The timeout of one attempt."""
    ca_file: FilePath | None = None
    """PEM certificates to trust instead of the system's."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        try:
            self._check()
        except StartError as error:
            raise wrong(str(error), "", "endpoint") from None
        return self

    def _check(self) -> None:
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
        for name, value in self.headers.pairs:
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
        return tuple((name.lower(), value) for name, value in self.headers.pairs)

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


class QueuedTarget(OtlpTarget):
    """An endpoint with a queue before it."""

    queue_bytes: Annotated[int, Field(ge=MIB, le=2**40)] = 64 * MIB
    """The bytes that wait for the endpoint, at most."""


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
