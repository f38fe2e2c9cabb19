"""The settings of a relay: the keys of its settings file (`--config`), and its flag `--backend`.

Units: bytes, seconds, counts. Paths are absolute, or relative to the folder of the file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from otel_llm.actions.settings import ActionSettings, ServiceSettings, base_url
from otel_llm.config.errors import StartError
from otel_llm.config.sections import Auth, MetricsSettings
from otel_llm.config.settings_model import (
    MIB,
    CertificatesFile,
    Connections,
    MetricsBytes,
    NamedSection,
    OptionalSeconds,
    Seconds,
    SecondsNumber,
    SecretFile,
    SettingsModel,
    TokensFile,
    Viewers,
    items,
    load_model,
    named,
    of_named_file,
)
from otel_llm.config.strict_model import NOT_A_KEY, wrong
from otel_llm.config.yaml_file import UnreadableConfigError
from otel_llm.live.feed import MOST_VIEWERS
from otel_llm.live.labels import METRICS_BYTES
from otel_llm.relay.paths import normal_path
from otel_llm.relay.splice.request import MOST_N
from otel_llm.scheduling.placement import DEFAULT, POLICIES, POLYSERVE
from otel_llm.scheduling.profiles.profile import Profile
from otel_llm.scheduling.profiles.profile_file import load_profile
from otel_llm.scheduling.release_order import BY_PROFILE, DEFAULT_ORDER, ORDERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.config.yaml_file import KeyPath, YamlFile

NAME: Final = re.compile(r"[A-Za-z0-9._:\[\]-]{1,200}")
_BACKEND_ADVICE: Final = (
    "write for example --backend a=http://10.0.0.1:8000, and its key into an api_key_file of --config"
)


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


def _profile(value: object, info: ValidationInfo) -> object:
    """Load the profile that ships under this name, or the one of this file."""
    if isinstance(value, Profile) or value is None:
        return value
    if not isinstance(value, str):
        raise wrong("not a string", "put it in quotes")
    if not value:
        raise wrong("an empty name", "give it one")
    try:
        return load_profile(value, info.context or Path())
    except UnreadableConfigError as error:
        raise of_named_file(error) from None


class BackendSettings(NamedSection):
    """One replica."""

    url: Annotated[str, AfterValidator(_backend_url)]
    """The URL of the server, without `/v1`."""
    kind: Literal["vllm", "sglang", "openai"] = "vllm"
    """The engine, and so what can be resumed exactly."""
    group: str = ""
    """Backends of one group serve the same model; streams are moved within it."""
    api_key_file: TokensFile | None = None
    """A file whose first token is sent as the key, not the client's."""
    ca: CertificatesFile | None = None
    """PEM certificates to trust instead of the system's."""
    profile: Annotated[Profile | None, BeforeValidator(_profile)] = None
    """The profile that says how long its iterations last: the name of one that ships, or a file; absent: not known."""


class Failover(SettingsModel):
    """The reaction, without a rule, to a backend that does not serve."""

    connect_retries: Annotated[int, Field(ge=0, le=100)] = 2
    """Other backends that a request is sent to before its first token, at most."""
    resume: bool = True
    """Whether a broken reply is continued on another backend if that is exact."""
    first_byte_s: Seconds = Field(default=60.0, validation_alias="first_byte")
    """How long a backend may be silent before its first token until another one is asked, at the latest."""
    idle_s: OptionalSeconds = Field(default=20.0, validation_alias="idle")
    """How long a serving backend may be silent before its stream is resumed elsewhere; 0: for ever."""
    hedge_after_s: Seconds | None = Field(default=None, validation_alias="hedge_after")
    """How long a silent backend may take before it is hedged; absent: by its own times to the first token."""
    hedge_share: Annotated[float, Field(ge=0, le=1)] = 0.05
    """The share of requests that may be sent to a second backend for being late."""
    detokenize_s: Annotated[Seconds, NOT_A_KEY] = 5.0
    """How long a backend may take to give the text of ids."""


class MoveSettings(SettingsModel):
    """The moves of streams between backends."""

    start_s: Seconds | None = Field(default=None, validation_alias="start")
    """How long a destination may take to its first token before the next is asked; absent: as is usual there."""


class Health(SettingsModel):
    """The probes of backends."""

    path: Annotated[str, AfterValidator(_path)] = "/health"
    """The path that is asked."""
    interval_s: Seconds = Field(default=1.0, validation_alias="interval")
    """The interval of probes."""
    timeout_s: Seconds = Field(default=1.0, validation_alias="timeout")
    """The time after which a probe is late."""


class Eject(SettingsModel):
    """How long a backend that fails gets no new requests, and how many at one time."""

    for_s: Seconds = Field(default=5.0, validation_alias="for")
    """How long a backend that fails gets no new requests."""
    max_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The share of a group that may be ejected at one time; never the last backend."""


class Preempt(SettingsModel):
    """Which streams `preempt` may pause, and until when."""

    resume_runway_s: Seconds = Field(default=2.0, validation_alias="resume_runway")
    """A paused stream resumes when its reader has less text left than this (s of reading)."""
    calm_s: Seconds = Field(default=1.0, validation_alias="calm")
    """It resumes sooner when its backend has had no starving reader for so long."""
    max_paused: Annotated[int, Field(ge=0, le=100_000)] = 64
    """Streams that are paused at one time, at most."""
    spare_s: Annotated[Seconds, NOT_A_KEY] = 1.0
    """How much more than `resume_runway_s` a reader must have left for its stream to be paused."""
    again_s: Annotated[Seconds, NOT_A_KEY] = 10.0
    """A stream is paused at most once in so long."""
    comment_s: Annotated[Seconds, NOT_A_KEY] = 15.0
    """The interval of comments to the client of a paused stream, so that no proxy closes the connection."""
    try_again_s: Annotated[Seconds, NOT_A_KEY] = 0.25
    """The interval of tries to resume while no backend takes the stream."""
    ask_s: Annotated[Seconds, NOT_A_KEY] = 1.0
    """How long a backend may be asked for the reader's ids: meanwhile its stream stands still."""


class Queue(SettingsModel):
    """The queue of requests before the backends."""

    in_flight: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """The most requests of a backend at one time; others wait. It may be absent with `placement: polyserve` only."""
    order: Annotated[str, AfterValidator(_order)] = DEFAULT_ORDER
    """The order in which waiting requests are released."""
    max_waiting: Annotated[int, Field(ge=0, le=100_000)] = 1024
    """Requests that wait, at most; more are refused for now."""
    max_wait_s: Seconds = Field(default=30.0, validation_alias="max_wait")
    """How long a request waits, at most; then it is refused for now."""


class Drain(SettingsModel):
    """The effect of a drain on running streams."""

    migrate: bool = False
    """Whether a drain moves the streams that run there."""


class Limits(SettingsModel):
    """The limits of the relay."""

    body_bytes: Annotated[int, Field(ge=1024, le=2**30)] = 32 * MIB
    """The largest body of a request."""
    receiving_bytes: Annotated[int, Field(ge=1024, le=2**40)] = 256 * MIB
    """Bytes of all bodies in memory."""
    header_bytes: Annotated[int, NOT_A_KEY] = 64 * 1024
    """The largest headers of a request."""
    streams: Annotated[int, Field(ge=1, le=100_000)] = 4096
    """Requests that are served at one time."""
    choices: Annotated[int, Field(ge=1, le=128)] = MOST_N
    """Replies to one prompt: the largest `n` and `best_of`."""
    connections: Connections = 8192
    """Connections of each port; one peer may have a quarter of them without a request."""
    connections_per_peer: Connections | None = None
    """Connections of one address that have made a request (IPv6: one /64 network); absent: no limit."""
    metrics_bytes: MetricsBytes = METRICS_BYTES
    """The largest scrape of `/metrics`; label sets that would make it longer count as `other`."""
    viewers: Viewers = MOST_VIEWERS
    """Viewers of the live page at once; further ones are refused for now."""
    header_s: SecondsNumber = Field(default=10.0, validation_alias="header_seconds")
    """How long the headers of a connection's first request may take to arrive."""
    body_s: SecondsNumber = Field(default=60.0, validation_alias="body_seconds")
    """How long a body that is read before it is sent on may take to arrive."""
    idle_connection_s: SecondsNumber = Field(default=120.0, validation_alias="idle_connection_seconds")
    """An idle connection is closed after this, and a body that pauses for so long is refused."""
    client_stall_s: SecondsNumber = Field(default=60.0, validation_alias="client_stall_seconds")
    """A client that reads nothing of what waits for it for so long is cut."""
    drain_s: SecondsNumber = Field(default=30.0, validation_alias="drain_seconds")
    """How long streams may continue after SIGTERM."""

    @model_validator(mode="after")
    def _one_body_fits(self) -> Self:
        if self.body_bytes > self.receiving_bytes - self.receiving_bytes // 8:
            raise wrong("seven eighths of receiving_bytes are less than body_bytes", "let one body fit")
        return self


class RelayAuth(Auth):
    """Bearer tokens of clients, and the classes that they may name."""

    classes: dict[str, Annotated[tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")], ...], items(1000)]] = (
        Field(default_factory=dict)
    )
    """The SLO classes that clients may name, by the name before their tokens; absent: all."""


class RelayActions(ActionSettings):
    """The actions that the relay asks others for, and those that others ask it for."""

    secret_file: SecretFile | None = None
    """A file of signing secrets for actions on the web port; absent: none are accepted."""

    @model_validator(mode="after")
    def _no_other_relay(self) -> Self:
        for name, engine in self.engines.items():
            if engine.kind == "relay":
                advice = "a relay does what its own rules decide; the collector asks several relays"
                raise wrong("a relay asks no other relay", advice, "engines", name, "kind")
        return self


class RelaySettings(ServiceSettings):
    """The settings file of a relay; the defaults are those of absent keys."""

    backends: Annotated[dict[Annotated[str, AfterValidator(_name)], BackendSettings], AfterValidator(named)] = Field(
        default_factory=dict
    )
    """The replicas, by the names that are the `instance` of facts, metrics and records."""
    placement: Annotated[str, AfterValidator(_policy)] = DEFAULT
    """The policy that chooses the backend of a request."""
    queue: Queue | None = None
    """Absent: no request waits here, but with `placement: polyserve`, which decides itself what has to wait."""
    failover: Failover = Failover()
    move: MoveSettings = MoveSettings()
    preempt: Preempt = Preempt()
    health: Health = Health()
    eject: Eject = Eject()
    drain: Drain = Drain()
    limits: Limits = Limits()
    auth: RelayAuth | None = None
    """The tokens of clients."""
    passthrough: Annotated[tuple[Annotated[str, AfterValidator(_passed)], ...], items(1000)] = ()
    """Further paths for clients; `/*` at the end stands for all paths below."""
    metrics: MetricsSettings = MetricsSettings(instance_label=True)
    """The labels of `/metrics`; without this section `instance` is one."""
    actions: RelayActions = RelayActions()
    """The actions that the relay asks others for, and those that others ask it for."""

    @model_validator(mode="before")
    @classmethod
    def _polyserve_queues(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("placement") == POLYSERVE and data.get("queue") is None:
            return {**data, "queue": {}}
        return data

    @model_validator(mode="after")
    def _queue_has_a_size(self) -> Self:
        if self.queue is not None and self.queue.in_flight is None and self.placement != POLYSERVE:
            advice = "write how many requests a backend has at one time, for example `queue: {in_flight: 64}`"
            raise wrong("missing", advice, "queue", "in_flight")
        return self

    @property
    def direct_placement(self) -> str:
        """The policy for requests that do not wait in the queue: those that polyserve does not place go by load."""
        return DEFAULT if self.placement == POLYSERVE else self.placement

    def secret_files(self) -> list[Path]:
        """Return the files of secrets."""
        own = (self.actions.secret_file, *(one.api_key_file for one in self.backends.values()))
        return [*super().secret_files(), *(file for file in own if file is not None)]


def parse_backend(text: str) -> BackendSettings:
    """Return the backend of `--backend [NAME=]URL`; raises StartError if it is none."""
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
    return BackendSettings(name=name, url=url)


def load_settings(path: Path | None, backends: Sequence[str]) -> RelaySettings:
    """Read a settings file, the defaults without one, and append the backends of the flags.

    Raises:
        ConfigError: the file cannot be used, or a file that it names cannot; says file, line, key and advice.
        StartError: a flag cannot be used, two backends have one name, or there is none.
    """
    found = [parse_backend(text) for text in backends]
    file, settings = (None, RelaySettings()) if path is None else load_model(path, RelaySettings)
    every = dict(settings.backends)
    for one in found:
        if one.name in every:
            raise StartError(f"two backends are called {one.name}: give each a name, --backend NAME=URL")
        every[one.name] = one
    if not every:
        raise StartError("no backend: name one or more, for example --backend a=http://127.0.0.1:8000")
    if file is not None and settings.placement == POLYSERVE:
        _need_profiles(file, every, ("placement",), "polyserve", alike=True)
    if file is not None and settings.queue is not None and settings.queue.order in BY_PROFILE:
        _need_profiles(file, every, ("queue", "order"), f"the order {settings.queue.order}")
    return settings.model_copy(update={"backends": every})


def _need_profiles(
    file: YamlFile, backends: dict[str, BackendSettings], place: KeyPath, what: str, *, alike: bool = False
) -> None:
    """Raise ConfigError at the setting that needs a profile of every backend if one has none, or not the same."""
    names = {one.profile.name for one in backends.values() if one.profile is not None}
    if alike and len(names) > 1:
        message = f"{what} needs the same profile of every backend, and these have {', '.join(sorted(names))}"
        raise file.refuse(place, message, "run a relay for each kind of backend, or choose another placement")
    without = [name for name, one in backends.items() if one.profile is None]
    if without:
        message = f"{what} needs a profile of every backend, and {', '.join(without)} has none"
        advice = "write under backends, for example `a: {url: ..., profile: h200-llama-3.1-8b}`; see docs/profiles.md"
        raise file.refuse(place, message, advice)
