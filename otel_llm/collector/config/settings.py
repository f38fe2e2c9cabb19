"""What an operator may change in the settings file (`--config`), as the parts of the service read it.

The defaults here are those of an absent key. Bytes, seconds and counts; paths are absolute or the caller's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from otel_llm.actions.settings import (
    ActionSettings,
    AlertmanagerSettings,
    AlertSettings,
    DecisionSettings,
    FileSettings,
    MetricsSettings,
    Receiver,
)
from otel_llm.live.labels import METRICS_BYTES
from otel_llm.readers.spans.attributes import AttributeLimits, IntakeLimits

if TYPE_CHECKING:
    from otel_llm.shared.otlp_target import OtlpTarget
    from otel_llm.shared.web.settings import Auth, Tls

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the service takes; beyond a limit whoever asks is told so, as `errors.ANSWERS` has it."""

    message_bytes: int = 16 * MIB
    """An export request, compressed or not, is at most this."""
    receiving_bytes: int = 256 * MIB
    """Bodies that the HTTP door holds at once, as sent, until they are answered."""
    streams_in_flight: int = 200_000
    """Streams followed; beyond them senders are told to come back."""
    segments_per_request: int = 20_000
    attributes_per_span: int = 128
    attribute_chars: int = 1024
    """A longer value is left out, never cut."""
    metrics_bytes: int = METRICS_BYTES
    """A scrape is at most this; label sets that would make it longer count as `other`."""
    connections: int = 1024
    """At each door; more are closed at once. A quarter of them may be beginning for one peer."""
    connections_per_peer: int | None = None
    """Established ones at each door, of one address (of one /64 network of IPv6); None: as many as fit."""
    concurrent_exports: int = 64
    """Exports that a door has in hand at once; the others wait."""
    queued_exports: int = 1024
    """Exports that wait at each door, and accepted ones that wait for evaluation; beyond them senders come back."""
    body_s: float = 30.0
    """The whole of a body, or of a gRPC message, must be there this long after its headers."""
    header_s: float = 10.0
    """A TLS handshake and the headers of the first request must come within this; so must those of each later one."""
    idle_connection_s: float = 120.0
    """A connection on which nothing happens is closed; more than the usual 5 to 60 s between exports or scrapes."""
    drain_s: float = 10.0
    """From SIGTERM to the end, at most."""

    @property
    def intake(self) -> IntakeLimits:
        """Return what is taken of one request and of one span."""
        return IntakeLimits(self.segments_per_request, AttributeLimits(self.attributes_per_span, self.attribute_chars))


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """The journal's files."""

    file_bytes: int = 64 * MIB
    file_s: float = 600.0
    fsync: Literal["always", "interval", "never"] = "interval"
    fsync_interval_s: float = 0.2
    compress: bool = True
    retain_bytes: int | None = None
    """Delete the oldest closed files beyond this; None keeps them, until the disk is full."""
    retain_s: float | None = None
    """Delete closed files older than this; None keeps them."""


@dataclass(frozen=True, slots=True)
class ForwardSettings:
    """Where every accepted export goes too."""

    target: OtlpTarget
    queue_bytes: int = 64 * MIB


@dataclass(frozen=True, slots=True)
class OtlpOutSettings:
    """Where our own metrics, or the closed windows, go as OTLP."""

    target: OtlpTarget
    queue_bytes: int = 64 * MIB
    interval_s: float = 10.0
    """Metrics: from one export to the next. Windows: how long a closed one waits for others."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A settings file, or its absence."""

    limits: Limits = field(default_factory=Limits)
    journal: JournalSettings = field(default_factory=JournalSettings)
    decisions: DecisionSettings = field(default_factory=DecisionSettings)
    files: FileSettings = field(default_factory=FileSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    tls: Tls | None = None
    auth: Auth | None = None
    cors_origins: frozenset[str] = frozenset()
    """Origins whose pages may post to OTLP/HTTP from a browser."""
    web_hosts: frozenset[str] = frozenset()
    """Names, besides this machine's own, under which the web port may be asked for."""
    forward: ForwardSettings | None = None
    otlp_metrics: OtlpOutSettings | None = None
    otlp_windows: OtlpOutSettings | None = None
    receivers: tuple[Receiver, ...] = ()
    alertmanager: AlertmanagerSettings | None = None
    alerts: AlertSettings = field(default_factory=AlertSettings)
    actions: ActionSettings = field(default_factory=ActionSettings)
