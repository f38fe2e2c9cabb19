"""The settings of a relay, from its flags and its settings file, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_llm.actions.settings import (
    ActionSettings,
    AlertmanagerSettings,
    AlertSettings,
    DecisionSettings,
    FileSettings,
    MetricsSettings,
)
from otel_llm.live.feed import MOST_VIEWERS
from otel_llm.live.labels import METRICS_BYTES
from otel_llm.relay.passthrough import Passthrough
from otel_llm.relay.seam.request import MOST_N
from otel_llm.scheduling.placement import DEFAULT
from otel_llm.scheduling.release_order import DEFAULT_ORDER

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from otel_llm.actions.settings import Receiver
    from otel_llm.scheduling.profiles.profile import Profile
    from otel_llm.shared.web.settings import Auth, Tls

MIB = 2**20
POLYSERVE: Final = "polyserve"
"""The placement by tiers, which needs a queue and profiles; the others compare backends (`scheduling.placement`)."""


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """One replica."""

    name: str
    url: str
    kind: str = "vllm"
    group: str = ""
    api_key_file: Path | None = None
    ca: Path | None = None
    profile: Profile | None = None
    """How long its iterations last; None: not known."""


@dataclass(frozen=True, slots=True)
class Failover:
    """The reaction, without a rule, to a backend that does not serve."""

    connect_retries: int = 2
    """Other backends that a request is sent to before its first token, at most."""
    resume: bool = True
    """Whether a broken reply is continued on another backend where that is exact."""
    first_byte_s: float = 60.0
    """How long a backend may be silent before its first token until another one is asked, at the latest."""
    hedge_after_s: float | None = None
    """The same, within the budget of hedges; None: by the backend's own times to the first token."""
    hedge_share: float = 0.05
    """The share of requests that may be sent to a second backend for being late."""
    detokenize_s: float = 5.0
    """How long a backend may take to give the text of ids."""
    idle_s: float = 20.0
    """How long a serving backend may be silent before its stream is resumed elsewhere; 0: for ever."""


@dataclass(frozen=True, slots=True)
class MoveSettings:
    """The moves of streams between backends."""

    start_s: float | None = None
    """How long a destination may take to its first token before the next is asked; None: as is usual there."""


@dataclass(frozen=True, slots=True)
class Health:
    """The probes of backends."""

    path: str = "/health"
    interval_s: float = 1.0
    timeout_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Eject:
    """How long a backend that fails gets no new requests, and how many at one time."""

    for_s: float = 5.0
    max_share: float = 0.5
    """The share of a group that may be ejected at one time; never the last backend."""


@dataclass(frozen=True, slots=True)
class Preempt:
    """Which streams `preempt` may pause, and until when."""

    resume_runway_s: float = 2.0
    """A paused stream resumes when its reader has less text left than this (s of reading)."""
    calm_s: float = 1.0
    """It resumes sooner when its backend has had no starving reader for so long."""
    max_paused: int = 64
    spare_s: float = 1.0
    """How much more than `resume_runway_s` a reader must have left for its stream to be paused."""
    again_s: float = 10.0
    """A stream is paused at most once in so long."""
    comment_s: float = 15.0
    """The interval of comments to the client of a paused stream, so that no proxy closes the connection."""
    try_again_s: float = 0.25
    """The interval of tries to resume while no backend takes the stream."""
    ask_s: float = 1.0
    """How long a backend may be asked for the reader's ids: meanwhile its stream stands still."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The queue of requests before the backends."""

    in_flight: int | None = None
    """The most requests of a backend at one time; what is beyond them waits. None: as the placement decides."""
    order: str = DEFAULT_ORDER
    max_waiting: int = 1024
    max_wait_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Drain:
    """The effect of a drain on running streams."""

    migrate: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the relay."""

    body_bytes: int = 32 * MIB
    receiving_bytes: int = 256 * MIB
    """Bytes of all bodies in memory."""
    header_bytes: int = 64 * 1024
    streams: int = 4096
    choices: int = MOST_N
    """Replies to one prompt."""
    connections: int = 8192
    connections_per_peer: int | None = None
    metrics_bytes: int = METRICS_BYTES
    """A scrape is at most this; label sets that would make it longer count as `other`."""
    viewers: int = MOST_VIEWERS
    """Viewers of the live page at once; further ones are refused for now."""
    header_s: float = 10.0
    body_s: float = 60.0
    """How long a body that is read before it is sent on may take to arrive."""
    idle_connection_s: float = 120.0
    client_stall_s: float = 60.0
    """A client that reads nothing of what waits for it for so long is cut."""
    drain_s: float = 30.0


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """All settings; the defaults are those of absent keys."""

    backends: tuple[BackendSettings, ...] = ()
    placement: str = DEFAULT
    queue: Queue | None = None
    """None: no request waits here."""
    failover: Failover = field(default_factory=Failover)
    move: MoveSettings = field(default_factory=MoveSettings)
    preempt: Preempt = field(default_factory=Preempt)
    health: Health = field(default_factory=Health)
    eject: Eject = field(default_factory=Eject)
    drain: Drain = field(default_factory=Drain)
    limits: Limits = field(default_factory=Limits)
    tls: Tls | None = None
    auth: Auth | None = None
    client_classes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The SLO classes that clients may name, by the name before their tokens. Empty: all."""
    cors_origins: frozenset[str] = frozenset()
    """The origins of the pages that may ask at the clients' port."""
    passthrough: Passthrough = field(default_factory=Passthrough)
    web_hosts: frozenset[str] = frozenset()
    decisions: DecisionSettings = field(default_factory=DecisionSettings)
    files: FileSettings = field(default_factory=FileSettings)
    metrics: MetricsSettings = field(default_factory=lambda: MetricsSettings(instance_label=True))
    receivers: tuple[Receiver, ...] = ()
    alertmanager: AlertmanagerSettings | None = None
    alerts: AlertSettings = field(default_factory=AlertSettings)
    actions: ActionSettings = field(default_factory=ActionSettings)
    action_secret_file: Path | None = None
    """Signing secrets for actions on the web port; None: none are accepted."""

    @property
    def direct_placement(self) -> str:
        """The policy for requests that do not wait in the queue: those that polyserve does not place go by load."""
        return DEFAULT if self.placement == POLYSERVE else self.placement
