"""The settings file of a relay (`--config`) and its flag `--backend`: schema, and the settings made of both."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from otel_llm.actions.config.alerts_and_actions import (
    ActionsShape,
    AlertmanagerShape,
    AlertsShape,
    ReceiverShapes,
    base_url,
    build_actions,
    build_alertmanager,
    build_alerts,
    build_receivers,
    certificates,
    readable,
)
from otel_llm.actions.config.service import (
    AuthShape,
    CorsShape,
    DecisionsShape,
    FilesShape,
    MetricsShape,
    OperatorsShape,
    TlsShape,
    WebShape,
    build_auth,
    build_tls,
)
from otel_llm.actions.config.target import Duration, FileName, OptionalDuration  # noqa: TC001 - pydantic reads them
from otel_llm.relay.passthrough import Passthrough
from otel_llm.relay.paths import normal_path
from otel_llm.relay.settings import (
    POLYSERVE,
    BackendSettings,
    Drain,
    Eject,
    Failover,
    Health,
    Limits,
    MoveSettings,
    Preempt,
    Queue,
    RelaySettings,
)
from otel_llm.rules.files.schema_errors import StrictModel, config_errors, wrong
from otel_llm.rules.files.yamlfile import UnreadableConfigError, load_yaml
from otel_llm.scheduling.placement import DEFAULT, POLICIES
from otel_llm.scheduling.profiles.profile_file import load_profile
from otel_llm.scheduling.release_order import BY_PROFILE, ORDERS
from otel_llm.shared.errors import StartError
from otel_llm.shared.secret_files import read_signing_secrets, read_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from otel_llm.rules.files.yamlfile import KeyPath, YamlFile
    from otel_llm.scheduling.profiles.profile import Profile

NAME: Final = re.compile(r"[A-Za-z0-9._:\[\]-]{1,200}")
_EJECT, _FAILOVER, _HEALTH, _LIMITS, _PREEMPT, _QUEUE = Eject(), Failover(), Health(), Limits(), Preempt(), Queue()
_BACKEND_ADVICE: Final = (
    "write for example --backend a=http://10.0.0.1:8000, and its key into an api_key_file of --config"
)
_Seconds = Annotated[float, Field(gt=0, le=10**9)]


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise wrong(f"{value!r} is no name", "letters, digits, dot, underscore and hyphen")
    return value


def _path(value: str) -> str:
    if not value.startswith("/") or not value.isascii() or not value.isprintable() or " " in value:
        raise wrong(f"{value!r} is no path", "write for example /health")
    return value


def _passed(value: str) -> str:
    below = value.endswith("/*")
    normal = normal_path(value.removesuffix("/*") + "/")
    if not value.startswith("/") or normal is None or "*" in normal or "?" in value:
        raise wrong(f"{value!r} is no path", "write for example /rerank, or /v2/* for all paths below /v2/")
    return f"{normal.rstrip('/')}/*" if below else normal


def _policy(value: str) -> str:
    if value not in POLICIES and value != POLYSERVE:
        raise wrong(f"{value!r} is no placement policy here", f"known are {', '.join([*POLICIES, POLYSERVE])}")
    return value


def _order(value: str) -> str:
    if value not in ORDERS:
        raise wrong(f"{value!r} is no order of a queue", f"known are {', '.join(ORDERS)}")
    return value


def _backend_url(value: str) -> str:
    value = base_url(value)
    if urlsplit(value).path.endswith("/v1"):
        raise wrong("a URL that ends with /v1", "leave /v1 out: the paths of requests begin with it")
    return value


class _Backend(StrictModel):
    url: Annotated[str, AfterValidator(_backend_url)]
    kind: Literal["vllm", "sglang", "openai"] = "vllm"
    api_key_file: FileName | None = None
    ca: FileName | None = None
    group: str = ""
    profile: FileName | None = None


class _Failover(StrictModel):
    connect_retries: Annotated[int, Field(ge=0, le=100)] = _FAILOVER.connect_retries
    resume: bool = _FAILOVER.resume
    first_byte: Duration = _FAILOVER.first_byte_s
    idle: OptionalDuration = _FAILOVER.idle_s
    hedge_after: Duration | None = None
    hedge_share: Annotated[float, Field(ge=0, le=1)] = _FAILOVER.hedge_share

    def build(self) -> Failover:
        """Return the settings."""
        return Failover(
            self.connect_retries,
            self.resume,
            self.first_byte,
            self.hedge_after,
            self.hedge_share,
            idle_s=self.idle,
        )


class _Health(StrictModel):
    path: Annotated[str, AfterValidator(_path)] = _HEALTH.path
    interval: Duration = _HEALTH.interval_s
    timeout: Duration = _HEALTH.timeout_s


class _Eject(StrictModel):
    for_: Annotated[Duration, Field(alias="for")] = _EJECT.for_s
    max_share: Annotated[float, Field(ge=0, le=1)] = _EJECT.max_share


class _Move(StrictModel):
    start: Duration | None = None


class _Preempt(StrictModel):
    resume_runway: Duration = _PREEMPT.resume_runway_s
    calm: Duration = _PREEMPT.calm_s
    max_paused: Annotated[int, Field(ge=0, le=100_000)] = _PREEMPT.max_paused


class _Queue(StrictModel):
    in_flight: Annotated[int, Field(ge=1, le=100_000)] | None = None
    order: Annotated[str, AfterValidator(_order)] = _QUEUE.order
    max_waiting: Annotated[int, Field(ge=0, le=100_000)] = _QUEUE.max_waiting
    max_wait: Duration = _QUEUE.max_wait_s


class _Drain(StrictModel):
    migrate: bool = False


class _Limits(StrictModel):
    body_bytes: Annotated[int, Field(ge=1024, le=2**30)] = _LIMITS.body_bytes
    receiving_bytes: Annotated[int, Field(ge=1024, le=2**40)] = _LIMITS.receiving_bytes
    streams: Annotated[int, Field(ge=1, le=100_000)] = _LIMITS.streams
    choices: Annotated[int, Field(ge=1, le=128)] = _LIMITS.choices
    connections: Annotated[int, Field(ge=1, le=100_000)] = _LIMITS.connections
    connections_per_peer: Annotated[int, Field(ge=1, le=100_000)] | None = None
    metrics_bytes: Annotated[int, Field(ge=2**20, le=2**30)] = _LIMITS.metrics_bytes
    viewers: Annotated[int, Field(ge=0, le=1024)] = _LIMITS.viewers
    header_seconds: _Seconds = _LIMITS.header_s
    body_seconds: _Seconds = _LIMITS.body_s
    idle_connection_seconds: _Seconds = _LIMITS.idle_connection_s
    client_stall_seconds: _Seconds = _LIMITS.client_stall_s
    drain_seconds: _Seconds = _LIMITS.drain_s

    @model_validator(mode="after")
    def _one_body_fits(self) -> _Limits:
        if self.body_bytes > self.receiving_bytes - self.receiving_bytes // 8:
            raise wrong("seven eighths of receiving_bytes are less than body_bytes", "let one body fit")
        return self

    def build(self) -> Limits:
        """Return the settings."""
        return Limits(
            body_bytes=self.body_bytes,
            receiving_bytes=self.receiving_bytes,
            streams=self.streams,
            choices=self.choices,
            connections=self.connections,
            connections_per_peer=self.connections_per_peer,
            metrics_bytes=self.metrics_bytes,
            viewers=self.viewers,
            header_s=self.header_seconds,
            body_s=self.body_seconds,
            idle_connection_s=self.idle_connection_seconds,
            client_stall_s=self.client_stall_seconds,
            drain_s=self.drain_seconds,
        )


_ClassName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class _Auth(AuthShape):
    classes: dict[str, Annotated[list[_ClassName], Field(max_length=1000)]] = Field(default_factory=dict)


class _Actions(ActionsShape):
    secret_file: FileName | None = None


class _File(StrictModel):
    version: Literal[1]
    backends: dict[Annotated[str, AfterValidator(_name)], _Backend] = Field(default_factory=dict)
    placement: Annotated[str, AfterValidator(_policy)] = DEFAULT
    queue: _Queue | None = None
    failover: _Failover = Field(default_factory=_Failover)
    move: _Move = Field(default_factory=_Move)
    preempt: _Preempt = Field(default_factory=_Preempt)
    health: _Health = Field(default_factory=_Health)
    eject: _Eject = Field(default_factory=_Eject)
    drain: _Drain = Field(default_factory=_Drain)
    limits: _Limits = Field(default_factory=_Limits)
    tls: TlsShape | None = None
    auth: _Auth | None = None
    operators: OperatorsShape | None = None
    cors: CorsShape = Field(default_factory=lambda: CorsShape(origins=[]))
    passthrough: Annotated[list[Annotated[str, AfterValidator(_passed)]], Field(max_length=1000)] = Field(
        default_factory=list
    )
    web: WebShape = Field(default_factory=WebShape)
    decisions: DecisionsShape = Field(default_factory=DecisionsShape)
    files: FilesShape = Field(default_factory=FilesShape)
    metrics: MetricsShape = Field(default_factory=lambda: MetricsShape(instance_label=True))
    receivers: ReceiverShapes = Field(default_factory=dict)
    alertmanager: AlertmanagerShape | None = None
    alerts: AlertsShape = Field(default_factory=AlertsShape)
    actions: _Actions = Field(default_factory=_Actions)


def parse_backend(text: str) -> BackendSettings:
    """Return the backend of `--backend [NAME=]URL`; raises StartError where it is none."""
    name, equals, url = text.partition("=")
    if not equals or "/" in name:
        name, url = "", text
    try:
        url = _backend_url(url)
    except PydanticCustomError as problem:  # the URL is not repeated: it may hold a password
        raise StartError(f"--backend {name or 'URL'}: {problem.message()}: {_BACKEND_ADVICE}") from None
    name = name or urlsplit(url).netloc.lower()
    if not NAME.fullmatch(name):
        raise StartError(f"{name!r} is no name of a backend: letters, digits, dot, underscore and hyphen")
    return BackendSettings(name, url)


def load_settings(path: Path | None, backends: Sequence[str]) -> RelaySettings:
    """Read a settings file, the defaults without one, and append the backends of the flags.

    Raises:
        ConfigError: the file cannot be used, or a file that it names cannot; says file, line, key and advice.
        StartError: a flag cannot be used, two backends have one name, or there is none.
    """
    found = [parse_backend(text) for text in backends]
    settings = RelaySettings() if path is None else _read(path)
    every = (*settings.backends, *found)
    names = [one.name for one in every]
    for name in names:
        if names.count(name) > 1:
            raise StartError(f"two backends are called {name}: give each a name, --backend NAME=URL")
    if not every:
        raise StartError("no backend: name one or more, for example --backend a=http://127.0.0.1:8000")
    if path is not None and settings.placement == POLYSERVE:
        _need_profiles(path, every, ("placement",), "polyserve", alike=True)
    if path is not None and settings.queue is not None and settings.queue.order in BY_PROFILE:
        _need_profiles(path, every, ("queue", "order"), f"the order {settings.queue.order}")
    return replace(settings, backends=every)


def _need_profiles(
    path: Path, backends: Sequence[BackendSettings], place: KeyPath, what: str, *, alike: bool = False
) -> None:
    """Raise ConfigError at the setting that needs a profile of every backend, where one has none; or not the same."""
    names = {one.profile.name for one in backends if one.profile is not None}
    if alike and len(names) > 1:
        message = f"{what} needs the same profile of every backend, and these have {', '.join(sorted(names))}"
        raise load_yaml(path).refuse(
            place, message, "run a relay for each kind of backend, or choose another placement"
        )
    without = [one.name for one in backends if one.profile is None]
    if without:
        message = f"{what} needs a profile of every backend, and {', '.join(without)} has none"
        advice = "write under backends, for example `a: {url: ..., profile: h200-llama-3.1-8b}`; see docs/profiles.md"
        raise load_yaml(path).refuse(place, message, advice)


def _read(path: Path) -> RelaySettings:
    file = load_yaml(path)
    try:
        model = _File.model_validate(file.data)
    except ValidationError as error:
        raise config_errors(file, error)[0] from None
    folder = path.parent
    receivers = build_receivers(file, folder, model.receivers)
    return RelaySettings(
        backends=tuple(_backend(file, folder, name, one) for name, one in model.backends.items()),
        placement=model.placement,
        queue=_queue(file, model),
        failover=model.failover.build(),
        move=MoveSettings(model.move.start),
        preempt=Preempt(model.preempt.resume_runway, model.preempt.calm, model.preempt.max_paused),
        health=Health(model.health.path, model.health.interval, model.health.timeout),
        eject=Eject(model.eject.for_, model.eject.max_share),
        drain=Drain(model.drain.migrate),
        limits=model.limits.build(),
        tls=None if model.tls is None else build_tls(file, folder, model.tls),
        auth=build_auth(file, folder, model.auth, model.operators),
        client_classes={}
        if model.auth is None
        else {name: frozenset(some) for name, some in model.auth.classes.items()},
        cors_origins=frozenset(model.cors.origins),
        passthrough=Passthrough(tuple(model.passthrough)),
        web_hosts=frozenset(model.web.hosts),
        decisions=model.decisions.build(),
        files=model.files.build(),
        metrics=model.metrics.build(),
        receivers=receivers,
        alertmanager=None if model.alertmanager is None else build_alertmanager(file, folder, model.alertmanager),
        alerts=build_alerts(file, folder, model.alerts, receivers),
        actions=build_actions(file, folder, model.actions),
        action_secret_file=_action_secret_file(file, folder, model.actions),
    )


def _queue(file: YamlFile, model: _File) -> Queue | None:
    """Return the queue, which polyserve has in any case: it decides itself what has to wait."""
    section, holds = model.queue, model.placement == POLYSERVE
    if section is None:
        return Queue() if holds else None
    if section.in_flight is None and not holds:
        advice = "write how many requests a backend has at one time, for example `queue: {in_flight: 64}`"
        raise file.refuse(("queue", "in_flight"), "missing", advice)
    return Queue(section.in_flight, section.order, section.max_waiting, section.max_wait)


def _action_secret_file(file: YamlFile, folder: Path, section: _Actions) -> Path | None:
    for name, engine in section.engines.items():
        if engine.kind == "relay":
            advice = "a relay does what its own rules decide; the collector asks several relays"
            raise file.refuse(("actions", "engines", name, "kind"), "a relay asks no other relay", advice)
    if section.secret_file is None:
        return None
    return readable(file, folder, section.secret_file, ("actions", "secret_file"), read_signing_secrets)


def _backend(file: YamlFile, folder: Path, name: str, section: _Backend) -> BackendSettings:
    key = ca = None
    if section.api_key_file is not None:
        key = readable(file, folder, section.api_key_file, ("backends", name, "api_key_file"), read_tokens)
    if section.ca is not None:
        ca = readable(file, folder, section.ca, ("backends", name, "ca"), certificates)
    profile = None if section.profile is None else _profile(file, folder, name, section.profile)
    return BackendSettings(name, section.url, section.kind, section.group, key, ca, profile)


def _profile(file: YamlFile, folder: Path, backend: str, stated: str) -> Profile:
    """Load the profile that ships under this name, or the one of this file."""
    try:
        return load_profile(stated, folder)
    except UnreadableConfigError as error:
        raise file.refuse_file(("backends", backend, "profile"), error) from None
