"""The sections that every service's settings have: tokens, web port, decision files, modes of files, labels."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from otel_llm.config.file_defaults import FILE_BYTES, PRIVATE
from otel_llm.config.settings_model import (
    FileBytes,
    KeptBytes,
    LabelValues,
    SettingsModel,
    TokensFile,
    items,
)
from otel_llm.config.strict_model import wrong

_HOST: Final = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?", re.ASCII)


def _mode(value: object, info: ValidationInfo) -> int:
    """Return the mode of a new file: the owner reads and writes, others read at most."""
    if info.context is None and isinstance(value, int):
        return value
    try:
        mode = int(str(value), 8)  # as chmod reads it; of 0640 our YAML makes the number 640
    except ValueError:
        mode = 0
    if isinstance(value, bool) or mode & 0o600 != 0o600 or mode & ~0o644:
        raise wrong(f"{value!r} is no mode of a file here", "write 0600, 0640 or 0644")
    return mode


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


class DecisionSettings(SettingsModel):
    """The files of decision records (`--decisions`)."""

    file_bytes: FileBytes = FILE_BYTES
    """The size at which a file is closed and the next begun."""
    retain_bytes: Annotated[int | None, KeptBytes] = 2**30
    """Delete the oldest closed files beyond this size (about two million decisions); `none` keeps all."""


class FileSettings(SettingsModel):
    """The mode of files that a service creates: decisions, windows, the log of alerts, dead letters."""

    mode: Annotated[int, BeforeValidator(_mode)] = PRIVATE
    """The mode of new files: 0600, 0640 or 0644. The journal stays private, whatever this mode is."""


class MetricsSettings(SettingsModel):
    """The labels of `/metrics`; a value that is not listed counts as `other`."""

    instance_label: bool = False
    """Whether `instance` is a label (a fleet of known size)."""
    models: LabelValues | None = None
    """The values of the label `model`; absent: any value, up to the metrics' own bound."""
    instances: LabelValues | None = None
    """The values of the label `instance`; absent: any value."""


class Cors(SettingsModel):
    """The pages that may ask from a browser."""

    origins: Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], items()]
    """The origins of the pages that may use the port for clients."""


class Web(SettingsModel):
    """The web port."""

    hosts: Annotated[tuple[Annotated[str, AfterValidator(_host)], ...], items()] = ()
    """Host names that requests to the web port may use, besides this machine's own."""


class Auth(SettingsModel):
    """Bearer tokens: every request must have one of them."""

    tokens_file: TokensFile
    """A file of bearer tokens, `TENANT=TOKEN` or a token a line."""
    web: Literal["token", "open"] = "token"
    """Whether the web port needs one, too; `/healthz` and `/readyz` never do."""


class Operators(SettingsModel):
    """Bearer tokens of operators."""

    tokens_file: TokensFile
    """A file of bearer tokens for the web port that show all tenants."""
