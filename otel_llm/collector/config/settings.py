"""The settings of the collector, as its parts read them.

The defaults are those of an absent key. Units: bytes, seconds, counts. Paths are absolute, or relative to the working
directory.
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
from otel_llm.live.feed import MOST_VIEWERS
from otel_llm.live.labels import METRICS_BYTES
from otel_llm.readers.spans.attributes import AttributeLimits, IntakeLimits

if TYPE_CHECKING:
    from otel_llm.shared.otlp_target import OtlpTarget
    from otel_llm.shared.web.settings import Auth, Tls

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the service; the answers beyond them stand in `errors.ANSWERS`."""

    message_bytes: int = 16 * MIB
    """An export request, compressed or not, has at most this size."""
    receiving_bytes: int = 256 * MIB
    """The bodies of unanswered requests in the HTTP receiver, as sent."""
    streams_in_flight: int = 200_000
    """Beyond this, exports that begin streams are refused for now."""
    segments_per_request: int = 20_000
    attributes_per_span: int = 128
    attribute_chars: int = 1024
    """A longer value is left out, never cut."""
    metrics_bytes: int = METRICS_BYTES
    """A scrape has at most this size; label sets beyond it count as `other`."""
    connections: int = 1024
    """Of each listener; more are closed at once. One peer may have a quarter of them without a first request."""
    connections_per_peer: int | None = None
    """Established connections of each listener, of one address (IPv6: one /64 network); None: no limit."""
    viewers: int = MOST_VIEWERS
    """Viewers of the live page at once; further ones are refused for now."""
    concurrent_exports: int = 64
    """Exports that a receiver works on at once; others wait."""
    queued_exports: int = 1024
    """Exports that wait in each receiver, and accepted exports that wait for evaluation; more are refused for now."""
    body_s: float = 30.0
    """A body, or a gRPC message, must be complete this long after its headers."""
    header_s: float = 10.0
    """A TLS handshake and the headers of the first request must be complete within this; so must later headers."""
    idle_connection_s: float = 120.0
    """An idle connection is closed after this; it is more than the usual 5 to 60 s between exports or scrapes."""
    drain_s: float = 10.0
    """The most time from SIGTERM to the end."""

    @property
    def intake(self) -> IntakeLimits:
        """Return the limits of one request and of one span."""
        return IntakeLimits(self.segments_per_request, AttributeLimits(self.attributes_per_span, self.attribute_chars))


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """The journal's files."""

    file_bytes: int = 64 * MIB
    file_s: float = 600.0
    fsync: Literal["always", "interval", "never"] = "interval"
    fsync_interval_s: float = 0.2
    compress: bool = True
    retain_bytes: int | Literal["share"] | None = "share"
    """Closed files beyond this size are deleted, the oldest first; None: none is, until the disk is full.

    `share`: a share of the volume, see `share_of_volume`.
    """
    retain_s: float | None = None
    """Closed files older than this are deleted; None: none is."""


@dataclass(frozen=True, slots=True)
class ForwardSettings:
    """The target that every accepted export is forwarded to."""

    target: OtlpTarget
    queue_bytes: int = 64 * MIB


@dataclass(frozen=True, slots=True)
class OtlpOutSettings:
    """The OTLP target of the collector's own metrics, or of closed windows."""

    target: OtlpTarget
    queue_bytes: int = 64 * MIB
    interval_s: float = 10.0
    """Metrics: the interval of exports. Windows: how long a closed window waits for others."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings file, or the defaults without one."""

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
    """Host names, besides this machine's own, that requests to the web port may use."""
    forward: ForwardSettings | None = None
    otlp_metrics: OtlpOutSettings | None = None
    otlp_windows: OtlpOutSettings | None = None
    receivers: tuple[Receiver, ...] = ()
    alertmanager: AlertmanagerSettings | None = None
    alerts: AlertSettings = field(default_factory=AlertSettings)
    actions: ActionSettings = field(default_factory=ActionSettings)
