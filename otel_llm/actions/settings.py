"""The settings that collector and relay share: alerts and actions, and the sections of every service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from otel_llm.config.otlp_target import OtlpTarget
from otel_llm.config.sections import Auth, Cors, DecisionSettings, FileSettings, MetricsSettings, Operators, Web
from otel_llm.config.settings_model import (
    BearerFile,
    CertificatesFile,
    FilePath,
    NamedSection,
    NewFile,
    Seconds,
    SecretFile,
    SettingsModel,
    items,
    named,
    plain_names,
)
from otel_llm.config.strict_model import wrong
from otel_llm.config.tls import Tls
from otel_llm.config.yaml_file import VERSION, did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

    from otel_llm.rules.files.ruleset import Verb

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
_ROUTERS: Final[tuple[EngineKind, ...]] = ("vllm_router", "sglang_router")
_SIGNED: Final[tuple[EngineKind, ...]] = ("webhook", "relay")
_NEEDED_BY: Final[dict[str, tuple[EngineKind, ...]]] = {"url": _ROUTERS, "secret_file": _SIGNED}
_ONLY_FOR: Final[dict[str, tuple[EngineKind, ...]]] = _NEEDED_BY | {
    "abort_path": ("vllm", "sglang"),
    "token_file": ("vllm", "sglang", *_ROUTERS),
}
_URL_ADVICE: Final = "write for example https://hooks.example/alerts"


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
    except ValueError:  # a bracket without the other
        raise wrong("no URL that can be asked", _URL_ADVICE) from None
    try:
        port = parts.port
    except ValueError:
        port = 0
    if "@" in parts.netloc:
        raise wrong("credentials in a URL", "put them into the file that the section has for them")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not _is_plain(value):
        raise wrong("no URL that can be asked", _URL_ADVICE)
    if parts.fragment:
        raise wrong("a URL with a fragment", "leave out what follows the #: it would not be sent")
    return value


def base_url(value: str) -> str:
    """Check a URL to which paths are added, and return it without a last slash."""
    value = _url(value)
    if urlsplit(value).query:
        raise wrong(
            "a URL with a query", "write for example http://127.0.0.1:9093, with a path before its API if need be"
        )
    return value.rstrip("/")


def _path(value: str) -> str:
    if not value.startswith("/") or not _is_plain(value) or "#" in value:
        raise wrong(f"{value!r} is no path", "write for example /abort_request")
    return value


def _is_plain(value: str) -> bool:
    return value.isascii() and value.isprintable() and " " not in value


def _alertmanagers(urls: tuple[str, ...]) -> tuple[str, ...]:
    for index, url in enumerate(urls):
        if url in urls[:index]:
            raise wrong("stands here twice", "name each Alertmanager once", index)
        if url.endswith(("/api/v2", "/api/v2/alerts", "/api/v1/alerts")):
            raise wrong("a URL of the API", "leave out /api and what follows: that is added", index)
    return urls


_BaseUrl = Annotated[str, AfterValidator(base_url)]


class Receiver(NamedSection):
    """A receiver that a rule's `webhook: {to: NAME}` or a name in `alerts.receivers` stands for."""

    url: Annotated[str, AfterValidator(_url)] = Field(repr=False)
    """The URL that gets messages; part of it is often a secret."""
    secret_file: SecretFile
    """A file of signing secrets, the newest first."""
    timeout_s: Seconds = Field(default=5.0, validation_alias="timeout")
    """The timeout of one attempt."""
    kind: Literal["notification", "action"] = "notification"
    """`action`: expires with its `ttl` and is tried once; `notification`: is tried until it arrives."""


class AlertmanagerSettings(SettingsModel):
    """The Alertmanagers; each gets every alert, and they find duplicates among themselves."""

    urls: Annotated[tuple[_BaseUrl, ...], items(16), Field(min_length=1), AfterValidator(_alertmanagers)]
    """The URLs of the Alertmanagers, without `/api/v2/alerts`."""
    resend_s: Seconds = Field(default=60.0, validation_alias="resend")
    """How often an alert that fires, or has resolved recently, is sent again."""
    resolved_for_s: Seconds = Field(default=900.0, validation_alias="resolved_for")
    """How long a resolved alert is sent again, and so how long an Alertmanager may be away."""
    timeout_s: Seconds = Field(default=10.0, validation_alias="timeout")
    """The timeout of one attempt."""
    bearer_file: BearerFile | None = None
    """A file whose first token goes with every request; read again for each."""
    ca_file: CertificatesFile | None = None
    """PEM certificates to trust instead of the system's."""


class AlertSettings(SettingsModel):
    """The channels of alerts besides Alertmanagers."""

    log: NewFile | None = None
    """A file that gets a JSON line for each alert that begins or ends."""
    receivers: Annotated[tuple[str, ...], items()] = ()
    """The receivers of kind `notification` that get every alert."""
    settle_s: Seconds = Field(default=5.0, validation_alias="settle")
    """How long an alert must have no member before it ends."""
    otlp: OtlpTarget | None = None
    """An OTLP endpoint that gets each alert as a log record."""
    dead_letter: NewFile | None = None
    """A file of notifications that were given up; absent: `dead_letters.jsonl` beside the journal."""


class Engine(NamedSection):
    """A group of engines of one kind that do actions."""

    kind: EngineKind
    """What the engines are, and so which actions they do."""
    instances: Annotated[dict[str, _BaseUrl], BeforeValidator(plain_names), Field(min_length=1)] = Field(repr=False)
    """Names of instances, as telemetry has them, and the URL of each; `*` stands for those that are not named.

    The URL is the instance's own; behind a router, the one under which the router knows the worker.
    """
    url: _BaseUrl | None = Field(default=None, repr=False)
    """The router's own URL; absent for the other kinds."""
    token_file: BearerFile | None = None
    """A file whose first token goes with every request."""
    secret_file: SecretFile | None = None
    """A file of signing secrets of the kinds `webhook` and `relay`."""
    abort_path: Annotated[str, AfterValidator(_path)] | None = None
    """The path of the call that aborts a request; absent: the kind's own."""

    @model_validator(mode="after")
    def _keys_of_the_kind(self) -> Self:
        for key, kinds in _ONLY_FOR.items():
            if getattr(self, key) is not None and self.kind not in kinds:
                advice = f"it belongs to {' or '.join(kinds)}"
                raise wrong(f"an engine of kind {self.kind} has no {key}", advice, key, at_key=True)
        for key, kinds in _NEEDED_BY.items():
            if getattr(self, key) is None and self.kind in kinds:
                raise wrong("missing", f"an engine of kind {self.kind} needs it", key)
        for instance, url in self.instances.items() if self.kind == "relay" else ():
            if url.endswith(RELAY_PATH):
                advice = f"leave {RELAY_PATH} out: name the relay's web port"
                raise wrong("the path of a relay is added to its URL", advice, "instances", instance)
        return self


class ActionSettings(SettingsModel):
    """The engines that do actions, and the limits for all of them."""

    kill_switch: FilePath | None = None
    """While this file exists no action is done."""
    wedge_timeout_s: Seconds = Field(default=10.0, validation_alias="wedge_timeout")
    """How long an unconfirmed action keeps others off the same instance."""
    engines: Annotated[dict[str, Engine], BeforeValidator(plain_names), AfterValidator(named)] = Field(
        default_factory=dict
    )
    """The engines by the names of their groups."""

    @model_validator(mode="after")
    def _one_engine_does_it(self) -> Self:
        whose: dict[tuple[Verb, str], str] = {}
        for name, engine in self.engines.items():
            for instance in engine.instances:
                for verb in sorted(DOES[engine.kind]):
                    other = whose.setdefault((verb, instance), name)
                    if other != name:
                        message = f"{instance!r} is an instance of {other!r} already, which does `{verb}` too"
                        place = ("engines", name, "instances", instance)
                        raise wrong(message, "name it once", *place, at_key=True)
        return self


class ServiceSettings(SettingsModel):
    """The sections that the settings of collector and relay have; the defaults are those of absent keys."""

    version: Literal[1] = VERSION
    """The version of the file's form."""
    decisions: DecisionSettings = DecisionSettings()
    files: FileSettings = FileSettings()
    metrics: MetricsSettings = MetricsSettings()
    tls: Tls | None = None
    auth: Auth | None = None
    operators: Operators | None = None
    cors: Cors = Cors(origins=())
    web: Web = Web()
    receivers: Annotated[dict[str, Receiver], BeforeValidator(plain_names), AfterValidator(named)] = Field(
        default_factory=dict
    )
    """The receivers of webhooks, by name."""
    alertmanager: AlertmanagerSettings | None = None
    alerts: AlertSettings = AlertSettings()
    actions: ActionSettings = ActionSettings()

    @model_validator(mode="after")
    def _sections_fit(self) -> Self:
        if self.auth is None and self.operators is not None:
            advice = "add `auth: {tokens_file: ...}`: without it everybody is an operator"
            raise wrong("operators without auth", advice, "operators", at_key=True)
        for index, name in enumerate(self.alerts.receivers):
            place = ("alerts", "receivers", index)
            if name not in self.receivers:
                advice = (
                    did_you_mean(name, list(self.receivers)) if self.receivers else "name it in the section `receivers`"
                )
                raise wrong(f"{name!r} is no receiver", advice, *place)
            if self.receivers[name].kind != "notification":
                raise wrong(f"{name!r} takes actions", "alerts go to receivers of `kind: notification`", *place)
            if name in self.alerts.receivers[:index]:
                raise wrong(f"{name!r} stands here twice", "", *place)
        return self

    def secret_files(self) -> list[Path]:
        """Return the files of secrets."""
        files = [
            *(one.tokens_file for one in (self.auth, self.operators) if one is not None),
            None if self.tls is None else self.tls.key,
            *(receiver.secret_file for receiver in self.receivers.values()),
            None if self.alertmanager is None else self.alertmanager.bearer_file,
            *(file for engine in self.actions.engines.values() for file in (engine.token_file, engine.secret_file)),
        ]
        return [file for file in files if file is not None]
