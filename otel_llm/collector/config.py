"""What an operator may change in the settings file (`--config`), as the parts of the service read it.

The defaults here are those of an absent key. Bytes, seconds and counts; paths are absolute or the caller's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from otel_llm.collector.otlp_out_target import OtlpTarget

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
    connections: int = 1024
    """At each door; more are closed at once."""
    concurrent_exports: int = 64
    """Exports that a door has in hand at once; the others wait."""
    queued_exports: int = 1024
    """Exports that wait at each door, and accepted ones that wait for evaluation; beyond them senders come back."""
    body_s: float = 30.0
    """The whole of a body, or of a gRPC message, must be there this long after its headers."""
    header_s: float = 10.0
    """The whole of a TLS handshake, and of a request's headers, must come within this."""
    idle_connection_s: float = 120.0
    """A connection on which nothing happens is closed; more than the usual 5 to 60 s between exports or scrapes."""
    drain_s: float = 10.0
    """From SIGTERM to the end, at most."""


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
class DecisionSettings:
    """The files of decision records (`--decisions`)."""

    file_bytes: int = 64 * MIB
    """A file is closed before it would be longer."""
    retain_bytes: int | None = None
    """Delete the oldest closed files beyond this; None keeps them, until the disk is full."""


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The labels of `/metrics`; a value that is not listed counts as `other`."""

    instance_label: bool = False
    """Whether `instance` is a label (a fleet of known size)."""
    models: tuple[str, ...] | None = None
    """None: whatever comes, up to the metrics' own bound."""
    instances: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files; with `client_ca` clients must show a certificate that it signed (mTLS)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    web: Literal["same", "server", "none"] = "same"
    """The web port: as the doors are; with our certificate and without one of the client; or in the clear."""


@dataclass(frozen=True, slots=True)
class Auth:
    """Bearer tokens, one a line, of which every export must bring one."""

    tokens_file: Path
    web: Literal["token", "open"] = "token"
    """Whether the web port asks for one too; `/healthz` and `/readyz` never do."""


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
class Receiver:
    """What `webhook: {to: NAME}` in a rule, or a name in `alerts.receivers`, stands for.

    `kind`: an action is worth nothing after its `ttl` and is tried once; a notification is tried until it arrives.
    """

    name: str
    url: str = field(repr=False)
    """Part of it is often a secret."""
    secret_file: Path
    """Signing secrets, newest first; see `read_signing_secrets`."""
    timeout_s: float = 5.0
    kind: Literal["notification", "action"] = "notification"


@dataclass(frozen=True, slots=True)
class AlertmanagerSettings:
    """Alertmanagers, all of which get every alert: they find duplicates among themselves."""

    urls: tuple[str, ...]
    """Without `/api/v2/alerts`."""
    resend_s: float = 60.0
    """How often an alert that fires, or has resolved not long ago, is sent again."""
    resolved_for_s: float = 900.0
    """How long a resolved alert is sent again: the time that an Alertmanager may be away."""
    timeout_s: float = 10.0
    bearer_file: Path | None = None
    """Its first token goes with every request; read again for each."""
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """Where alerts go besides an Alertmanager."""

    log: Path | None = None
    """A JSON line for each alert that begins or ends."""
    receivers: tuple[str, ...] = ()
    """Receivers of kind notification."""
    settle_s: float = 5.0
    """How long nothing must fire for an alert before it has ended: others may begin meanwhile."""
    otlp: OtlpTarget | None = None
    dead_letter: Path | None = None
    """Notifications that were given up, a JSON line each; None: `dead_letters.jsonl` beside the journal."""


EngineKind = Literal["vllm", "sglang", "sglang_router", "vllm_router", "webhook"]


@dataclass(frozen=True, slots=True)
class Engine:
    """A group of engines of one kind that can be asked to act."""

    name: str
    kind: EngineKind
    instances: tuple[tuple[str, str], ...] = field(repr=False)
    """Names of instances, as telemetry has them, and the URL of each; `*` stands for those that are not named.

    It is asked there; behind a router, the URL is the one under which the router knows the worker.
    """
    url: str | None = field(default=None, repr=False)
    """The router's own; None for the other kinds."""
    token_file: Path | None = None
    secret_file: Path | None = None
    """Signing secrets of kind webhook, see `read_signing_secrets`."""
    abort_path: str | None = None
    """None: the kind's own."""


@dataclass(frozen=True, slots=True)
class ActionSettings:
    """Who does what rules decide."""

    engines: tuple[Engine, ...] = ()
    kill_switch: Path | None = None
    """While this file exists nothing is done."""
    wedge_timeout_s: float = 10.0
    """How long an action that was not confirmed keeps others off the same instance."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A settings file, or its absence."""

    limits: Limits = field(default_factory=Limits)
    journal: JournalSettings = field(default_factory=JournalSettings)
    decisions: DecisionSettings = field(default_factory=DecisionSettings)
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
