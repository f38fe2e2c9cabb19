"""The sections of a settings file that every service of ours has: certificates, tokens, decision files, labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

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


def _mode(value: object) -> int:
    """Return the mode of a new file: the owner reads and writes, others read at most."""
    try:
        mode = int(str(value), 8)  # as chmod reads it; of 0640 our YAML makes the number 640
    except ValueError:
        mode = 0
    if isinstance(value, bool) or mode & 0o600 != 0o600 or mode & ~0o644:
        raise wrong(f"{value!r} is no mode of a file here", "write 0600, 0640 or 0644")
    return mode


class DecisionsShape(StrictModel):
    """The section `decisions`."""

    file_bytes: Annotated[int, Field(ge=4096, le=2**40)] = _DECISIONS.file_bytes
    retain_bytes: Annotated[int, Field(ge=4096)] | None = None

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


def build_tls(file: YamlFile, folder: Path, section: TlsShape) -> Tls:
    """Build the section; raises ConfigError where a file that it names cannot be used."""
    ca = None if section.client_ca is None else folder / section.client_ca
    made = Tls(folder / section.certificate, folder / section.key, ca, section.web)
    try:
        Certificates(made)
    except TlsFileError as error:
        raise file.refuse(("tls", error.key), str(error)) from None
    return made


def build_auth(file: YamlFile, folder: Path, section: AuthShape) -> Auth:
    """Build the section; raises ConfigError where its file cannot be used."""
    made = Auth(folder / section.tokens_file, section.web)
    try:
        read_tokens(made.tokens_file)
    except UnreadableConfigError as error:
        raise file.refuse_file(("auth", "tokens_file"), error) from None
    return made
