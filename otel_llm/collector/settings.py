"""The settings of the collector: the keys of its settings file (`--config`), their bounds and defaults.

Units: bytes, seconds, counts. Paths are absolute, or relative to the folder of the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from otel_llm.actions.settings import ServiceSettings
from otel_llm.config.file_defaults import FILE_BYTES, FILE_S, FSYNC_INTERVAL_S
from otel_llm.config.otlp_target import QueuedTarget
from otel_llm.config.settings_model import (
    MIB,
    Connections,
    FileBytes,
    KeptBytes,
    MetricsBytes,
    Seconds,
    SecondsNumber,
    SettingsModel,
    Viewers,
    load_model,
)
from otel_llm.config.strict_model import wrong
from otel_llm.formats.spans.attributes import AttributeLimits, IntakeLimits
from otel_llm.live.feed import MOST_VIEWERS
from otel_llm.live.labels import METRICS_BYTES

if TYPE_CHECKING:
    from pathlib import Path

_Count = Annotated[int, Field(ge=1, le=10**9)]
SHARE: Final = -1
"""The default of `journal: {retain_bytes}`: a share of the volume, see `share_of_volume`."""


class Limits(SettingsModel):
    """The limits of the service; the answers beyond them stand in `errors.ANSWERS`."""

    message_bytes: Annotated[int, Field(ge=1024, le=1024 * MIB)] = 16 * MIB
    """The largest export request, compressed or not."""
    receiving_bytes: Annotated[int, Field(ge=1024, le=2**40)] = 256 * MIB
    """The bodies of unanswered requests in the HTTP receiver, as sent."""
    streams_in_flight: _Count = 200_000
    """Streams in flight; beyond this, exports that begin streams are refused for now."""
    segments_per_request: _Count = 20_000
    """Segments of one request."""
    attributes_per_span: Annotated[int, Field(ge=1, le=10_000)] = 128
    """Attributes of one span."""
    attribute_chars: Annotated[int, Field(ge=16, le=MIB)] = 1024
    """Characters of an attribute's value; a longer one is left out, never cut."""
    metrics_bytes: MetricsBytes = METRICS_BYTES
    """The largest scrape of `/metrics`; label sets beyond it count as `other`."""
    connections: Connections = 1024
    """Connections of each listener; more are closed at once. One peer may have a quarter of them without a request."""
    connections_per_peer: Connections | None = None
    """Established connections of each listener, of one address (IPv6: one /64 network); absent: no limit."""
    viewers: Viewers = MOST_VIEWERS
    """Viewers of the live page at once; further ones are refused for now."""
    concurrent_exports: Annotated[int, Field(ge=1, le=1024)] = 64
    """Exports that a receiver works on at once; others wait."""
    queued_exports: Annotated[int, Field(ge=1, le=10**6)] = 1024
    """Exports that wait in each receiver, and accepted exports that wait for evaluation; more are refused for now."""
    body_s: SecondsNumber = Field(default=30.0, validation_alias="body_seconds")
    """A body, or a gRPC message, must be complete this long after its headers."""
    header_s: SecondsNumber = Field(default=10.0, validation_alias="header_seconds")
    """A TLS handshake and the headers of the first request must be complete within this; so must later headers."""
    idle_connection_s: SecondsNumber = Field(default=120.0, validation_alias="idle_connection_seconds")
    """An idle connection is closed after this; it is more than the usual 5 to 60 s between exports or scrapes."""
    drain_s: SecondsNumber = Field(default=10.0, validation_alias="drain_seconds")
    """The most time from SIGTERM to the end."""

    @property
    def intake(self) -> IntakeLimits:
        """Return the limits of one request and of one span."""
        return IntakeLimits(self.segments_per_request, AttributeLimits(self.attributes_per_span, self.attribute_chars))


class JournalSettings(SettingsModel):
    """The journal's files."""

    file_bytes: FileBytes = FILE_BYTES
    """The size at which a file is closed and the next begun."""
    file_s: Annotated[float, Field(ge=1, le=10**9)] = Field(default=FILE_S, validation_alias="file_seconds")
    """The age at which a file is closed and the next begun."""
    fsync: Literal["always", "interval", "never"] = "interval"
    """When records are forced to the disk: before each answer, at an interval, or never."""
    fsync_interval_s: Seconds = Field(default=FSYNC_INTERVAL_S, validation_alias="fsync_interval")
    """The interval of `fsync: interval`."""
    compress: bool = True
    """Whether closed files are compressed."""
    retain_bytes: Annotated[int | None, KeptBytes] = SHARE
    """Delete the oldest closed files beyond this; absent: a tenth of the volume, 50 GB at most; `none`: all stay."""
    retain_s: Annotated[float, Field(ge=1)] | None = Field(default=None, validation_alias="retain_seconds")
    """Delete closed files older than this; absent: none is."""


class OtlpOutSettings(QueuedTarget):
    """The OTLP target of the collector's own metrics, or of closed windows."""

    interval_s: Seconds = Field(default=10.0, validation_alias="interval")
    """Metrics: the interval of exports. Windows: how long a closed window waits for others."""


class OtlpSettings(SettingsModel):
    """What the collector itself sends as OTLP metrics."""

    metrics: OtlpOutSettings | None = None
    """The target of the collector's own metrics."""
    windows: OtlpOutSettings | None = None
    """The target of closed windows."""


class Settings(ServiceSettings):
    """The settings file of a collector; the defaults are those of absent keys."""

    limits: Limits = Limits()
    journal: JournalSettings = JournalSettings()
    forward: QueuedTarget | None = None
    """The target that every accepted export is forwarded to."""
    otlp: OtlpSettings = OtlpSettings()

    @property
    def targets(self) -> list[QueuedTarget]:
        """Return the targets of exports, metrics and windows."""
        return [one for one in (self.forward, self.otlp.metrics, self.otlp.windows) if one is not None]

    def secret_files(self) -> list[Path]:
        """Return the files of secrets."""
        return [*super().secret_files(), *(one.headers.file for one in self.targets if one.headers.file is not None)]

    @model_validator(mode="after")
    def _one_message_fits(self) -> Self:
        if self.limits.message_bytes > self.limits.receiving_bytes:
            raise wrong("receiving_bytes is less than message_bytes", "let one message fit", "limits")
        return self


def load_settings(path: Path | None) -> Settings:
    """Read a settings file; return the defaults without one. Paths in it are relative to its folder, or absolute.

    Raises:
        ConfigError: it cannot be used, or a file that it names cannot; with file, line, key and advice.
    """
    return Settings() if path is None else load_model(path, Settings)[1]
