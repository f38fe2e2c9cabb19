"""The sections of a settings file that every service of ours has: TLS, tokens, host names, decision files, labels."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from otel_llm.actions.config.target import FileName  # noqa: TC001 - pydantic reads it
from otel_llm.actions.settings import DecisionSettings, FileSettings, MetricsSettings
from otel_llm.rules.decisions.output_file import PRIVATE
from otel_llm.rules.files.schema_errors import StrictModel, wrong
from otel_llm.rules.files.yamlfile import UnreadableConfigError
from otel_llm.shared.errors import TlsFileError
from otel_llm.shared.secret_files import read_tokens
from otel_llm.shared.web.settings import Auth, Tls
from otel_llm.shared.web.tls import Certificates

if TYPE_CHECKING:
    from pathlib import Path

    from otel_llm.rules.files.yamlfile import YamlFile

_LabelValues = Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=1000)]
_DECISIONS = DecisionSettings()
NO_LIMIT: Final = "none"
_HOST: Final = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?", re.ASCII)


def _mode(value: object) -> int:
    """Return the mode of a new file: the owner reads and writes, others read at most."""
    try:
        mode = int(str(value), 8)  # as chmod reads it; of 0640 our YAML makes the number 640
    except ValueError:
        mode = 0
    if isinstance(value, bool) or mode & 0o600 != 0o600 or mode & ~0o644:
        raise wrong(f"{value!r} is no mode of a file here", "write 0600, 0640 or 0644")
    return mode


def _limit(value: object) -> object:
    """Return the value of a limit on what is kept, None for the word `none`."""
    if value is None:
        raise wrong("there is no value", f"write a number of bytes, or {NO_LIMIT} to keep all files")
    return None if value == NO_LIMIT else value


def _host(value: str) -> str:
    name = value.lower()
    if not _HOST.fullmatch(name):
        raise wrong(f"{value!r} is no host name", "write the name alone, without a port")
    return name


def _origin(value: str) -> str:
    """Check a browser's origin (RFC 6454, section 6.2); it must be written as browsers send it."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or value != f"{parts.scheme}://{parts.netloc}" or not parts.hostname:
        raise wrong(f"{value!r} is no origin", "write https://app.example.com, with its port where it has one")
    if value != value.lower() or "@" in value or "*" in value:
        raise wrong(f"{value!r} is no origin", "name each origin, in lower case")
    return value


RetainBytes = Annotated[Annotated[int, Field(ge=4096)] | None, BeforeValidator(_limit)]
"""How much of closed files is kept; `none`: all."""


class DecisionsShape(StrictModel):
    """The section `decisions`."""

    file_bytes: Annotated[int, Field(ge=4096, le=2**40)] = _DECISIONS.file_bytes
    retain_bytes: RetainBytes = _DECISIONS.retain_bytes

    def build(self) -> DecisionSettings:
        """Return the settings."""
        return DecisionSettings(self.file_bytes, self.retain_bytes)


class FilesShape(StrictModel):
    """The section `files`."""

    mode: Annotated[int, BeforeValidator(_mode)] = PRIVATE

    def build(self) -> FileSettings:
        """Return the settings."""
        return FileSettings(self.mode)


class MetricsShape(StrictModel):
    """The section `metrics`."""

    instance_label: bool = False
    models: _LabelValues | None = None
    instances: _LabelValues | None = None

    def build(self) -> MetricsSettings:
        """Return the settings."""
        return MetricsSettings(
            self.instance_label,
            None if self.models is None else tuple(self.models),
            None if self.instances is None else tuple(self.instances),
        )


class CorsShape(StrictModel):
    """The section `cors`."""

    origins: list[Annotated[str, AfterValidator(_origin)]]


class WebShape(StrictModel):
    """The section `web`."""

    hosts: list[Annotated[str, AfterValidator(_host)]] = Field(default_factory=list)


class TlsShape(StrictModel):
    """The section `tls`."""

    certificate: FileName
    key: FileName
    client_ca: FileName | None = None
    web: Literal["same", "server", "none"] = "same"


class AuthShape(StrictModel):
    """The section `auth`."""

    tokens_file: FileName
    web: Literal["token", "open"] = "token"


class OperatorsShape(StrictModel):
    """The section `operators`."""

    tokens_file: FileName


def build_tls(file: YamlFile, folder: Path, section: TlsShape) -> Tls:
    """Build the section; raises ConfigError where a file that it names cannot be used."""
    ca = None if section.client_ca is None else folder / section.client_ca
    made = Tls(folder / section.certificate, folder / section.key, ca, section.web)
    try:
        Certificates(made)
    except TlsFileError as error:
        raise file.refuse(("tls", error.key), str(error)) from None
    return made


def build_auth(
    file: YamlFile, folder: Path, section: AuthShape | None, operators: OperatorsShape | None
) -> Auth | None:
    """Build the sections `auth` and `operators`; raises ConfigError if a file that they name cannot be used."""
    if section is None:
        if operators is not None:
            advice = "add `auth: {tokens_file: ...}`: without it everybody is an operator"
            raise file.refuse(("operators",), "operators without auth", advice, at_key=True)
        return None
    path = None if operators is None else _tokens_file(file, folder, operators.tokens_file, "operators")
    return Auth(_tokens_file(file, folder, section.tokens_file, "auth"), path, section.web)


def _tokens_file(file: YamlFile, folder: Path, name: str, section: str) -> Path:
    """Return the path of a section's `tokens_file`; raises ConfigError if the file cannot be used."""
    path = folder / name
    try:
        read_tokens(path)
    except UnreadableConfigError as error:
        raise file.refuse_file((section, "tokens_file"), error) from None
    return path
