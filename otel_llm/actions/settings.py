"""The settings of alerts and actions, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol

from otel_llm.rules.decisions.output_file import PRIVATE

if TYPE_CHECKING:
    from pathlib import Path

    from otel_llm.rules.files.ruleset import Verb
    from otel_llm.shared.otlp_target import OtlpTarget


@dataclass(frozen=True, slots=True)
class Receiver:
    """A receiver that a rule's `webhook: {to: NAME}` or a name in `alerts.receivers` stands for.

    `kind`: an action expires with its `ttl` and is tried once; a notification is tried until it arrives.
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
    """The Alertmanagers; each gets every alert, and they find duplicates among themselves."""

    urls: tuple[str, ...]
    """Without `/api/v2/alerts`."""
    resend_s: float = 60.0
    """How often an alert that fires, or has resolved recently, is sent again."""
    resolved_for_s: float = 900.0
    """How long a resolved alert is sent again, and so how long an Alertmanager may be away."""
    timeout_s: float = 10.0
    bearer_file: Path | None = None
    """Its first token goes with every request; read again for each."""
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """The channels of alerts besides Alertmanagers."""

    log: Path | None = None
    """A JSON line for each alert that begins or ends."""
    receivers: tuple[str, ...] = ()
    """Receivers of kind notification."""
    settle_s: float = 5.0
    """How long an alert must have no member before it ends."""
    otlp: OtlpTarget | None = None
    dead_letter: Path | None = None
    """Notifications that were given up, a JSON line each; None: `dead_letters.jsonl` beside the journal."""


EngineKind = Literal["vllm", "sglang", "sglang_router", "vllm_router", "webhook", "relay"]
DOES: Final[dict[EngineKind, frozenset[Verb]]] = {
    "vllm": frozenset(("abort",)),
    "sglang": frozenset(("abort",)),
    "vllm_router": frozenset(("drain",)),
    "sglang_router": frozenset(("drain",)),
    "webhook": frozenset(("scale",)),
    "relay": frozenset(("migrate", "preempt", "abort", "drain")),
}
"""The verbs of each kind of engine. Only a relay moves or pauses a running request."""
RELAY_PATH: Final = "/v1/actions"
"""The path of actions on a relay's web port."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A group of engines of one kind that do actions."""

    name: str
    kind: EngineKind
    instances: tuple[tuple[str, str], ...] = field(repr=False)
    """Names of instances, as telemetry has them, and the URL of each; `*` stands for those that are not named.

    The URL is the instance's own; behind a router, the one under which the router knows the worker.
    """
    url: str | None = field(default=None, repr=False)
    """The router's own; None for the other kinds."""
    token_file: Path | None = None
    secret_file: Path | None = None
    """Signing secrets of the kinds webhook and relay, see `read_signing_secrets`."""
    abort_path: str | None = None
    """None: the kind's own."""


@dataclass(frozen=True, slots=True)
class ActionSettings:
    """The engines that do actions, and the limits for all of them."""

    engines: tuple[Engine, ...] = ()
    kill_switch: Path | None = None
    """While this file exists no action is done."""
    wedge_timeout_s: float = 10.0
    """How long an unconfirmed action keeps others off the same instance."""


@dataclass(frozen=True, slots=True)
class DecisionSettings:
    """The files of decision records (`--decisions`)."""

    file_bytes: int = 64 * 2**20
    """The size at which a file is closed and the next begun."""
    retain_bytes: int | None = 2**30
    """Delete the oldest closed files beyond this (about two million decisions); None keeps all."""


@dataclass(frozen=True, slots=True)
class FileSettings:
    """The mode of files that a service creates: decisions, windows, the log of alerts, dead letters."""

    mode: int = PRIVATE
    """The journal stays private, whatever this mode is."""


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The labels of `/metrics`; a value that is not listed counts as `other`."""

    instance_label: bool = False
    """Whether `instance` is a label (a fleet of known size)."""
    models: tuple[str, ...] | None = None
    """None: any value, up to the metrics' own bound."""
    instances: tuple[str, ...] | None = None


class AlertAndActionSettings(Protocol):
    """The settings that alerts and actions need; those of the collector and the relay have them."""

    @property
    def receivers(self) -> tuple[Receiver, ...]:
        """Return the receivers."""

    @property
    def alertmanager(self) -> AlertmanagerSettings | None:
        """Return the Alertmanagers' settings, None where there is none."""

    @property
    def files(self) -> FileSettings:
        """Return the mode of new files."""

    @property
    def alerts(self) -> AlertSettings:
        """Return the other channels of alerts."""

    @property
    def actions(self) -> ActionSettings:
        """Return the engines and limits of actions."""


def secret_files(settings: AlertAndActionSettings) -> list[Path | None]:
    """Return the files of secrets that alerts and actions read."""
    alertmanager = settings.alertmanager
    return [
        *(receiver.secret_file for receiver in settings.receivers),
        None if alertmanager is None else alertmanager.bearer_file,
        *(file for engine in settings.actions.engines for file in (engine.token_file, engine.secret_file)),
    ]
