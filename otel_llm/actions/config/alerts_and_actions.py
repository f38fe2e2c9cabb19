"""The sections of the settings file on alerts and actions: receivers, Alertmanagers, engines."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from otel_llm.actions import settings
from otel_llm.actions.config.target import Duration, EndpointShape, FileName, target
from otel_llm.rules.files.schema_errors import StrictModel, wrong
from otel_llm.rules.files.yamlfile import ConfigError, UnreadableConfigError, did_you_mean
from otel_llm.shared.secret_files import read_bearer, read_signing_secrets

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_llm.rules.files.ruleset import Verb
    from otel_llm.rules.files.yamlfile import KeyPath, YamlFile

_LONGEST_NAME: Final = 200
_ROUTERS: Final[tuple[settings.EngineKind, ...]] = ("vllm_router", "sglang_router")
_SIGNED: Final[tuple[settings.EngineKind, ...]] = ("webhook", "relay")
_NEEDED_BY: Final[dict[str, tuple[settings.EngineKind, ...]]] = {"url": _ROUTERS, "secret_file": _SIGNED}
_ONLY_FOR: Final[dict[str, tuple[settings.EngineKind, ...]]] = _NEEDED_BY | {
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


def _named(value: object) -> object:
    """Refuse names that cannot be written in a rule, or cannot be read."""
    for name in value if isinstance(value, dict) else ():
        if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
            raise wrong(f"{name!r} is no name", f"write a line of text, at most {_LONGEST_NAME} characters", name)
    return value


_Url = Annotated[str, AfterValidator(_url)]
_BaseUrl = Annotated[str, AfterValidator(base_url)]


class _Receiver(StrictModel):
    url: _Url
    secret_file: FileName
    timeout: Duration = 5.0
    kind: Literal["notification", "action"] = "notification"


ReceiverShapes = Annotated[dict[str, _Receiver], BeforeValidator(_named)]


class AlertmanagerShape(StrictModel):
    """The section `alertmanager`."""

    urls: Annotated[list[_BaseUrl], Field(min_length=1, max_length=16)]
    resend: Duration = 60.0
    resolved_for: Duration = 900.0
    timeout: Duration = 10.0
    bearer_file: FileName | None = None
    ca_file: FileName | None = None


class AlertsShape(StrictModel):
    """The section `alerts`."""

    log: FileName | None = None
    receivers: list[str] = Field(default_factory=list)
    settle: Duration = 5.0
    otlp: EndpointShape | None = None
    dead_letter: FileName | None = None


class _Engine(StrictModel):
    kind: settings.EngineKind
    instances: Annotated[dict[str, _BaseUrl], BeforeValidator(_named), Field(min_length=1)]
    url: _BaseUrl | None = None
    token_file: FileName | None = None
    secret_file: FileName | None = None
    abort_path: Annotated[str, AfterValidator(_path)] | None = None


class ActionsShape(StrictModel):
    """The section `actions`."""

    kill_switch: FileName | None = None
    wedge_timeout: Duration = 10.0
    engines: Annotated[dict[str, _Engine], BeforeValidator(_named)] = Field(default_factory=dict)


def build_receivers(file: YamlFile, folder: Path, section: dict[str, Any]) -> tuple[settings.Receiver, ...]:
    """Build the receivers; raises ConfigError where a file of secrets cannot be used."""
    made = []
    for name, one in section.items():
        secret_file = readable(file, folder, one.secret_file, ("receivers", name, "secret_file"), read_signing_secrets)
        made.append(settings.Receiver(name, one.url, secret_file, one.timeout, one.kind))
    return tuple(made)


def build_alertmanager(file: YamlFile, folder: Path, section: AlertmanagerShape) -> settings.AlertmanagerSettings:
    """Build the section; raises ConfigError where a file that it names cannot be used."""
    for index, url in enumerate(section.urls):
        if url in section.urls[:index]:
            raise file.refuse(("alertmanager", "urls", index), "stands here twice", "name each Alertmanager once")
        if url.endswith(("/api/v2", "/api/v2/alerts", "/api/v1/alerts")):
            advice = "leave out /api and what follows: that is added"
            raise file.refuse(("alertmanager", "urls", index), "a URL of the API", advice)
    bearer_file = ca_file = None
    if section.bearer_file is not None:
        bearer_file = readable(file, folder, section.bearer_file, ("alertmanager", "bearer_file"), read_bearer)
    if section.ca_file is not None:
        ca_file = readable(file, folder, section.ca_file, ("alertmanager", "ca_file"), certificates)
    return settings.AlertmanagerSettings(
        tuple(section.urls), section.resend, section.resolved_for, section.timeout, bearer_file, ca_file
    )


def build_alerts(
    file: YamlFile, folder: Path, section: AlertsShape, receivers: tuple[settings.Receiver, ...]
) -> settings.AlertSettings:
    """Build the section; raises ConfigError where it names a receiver that takes no alerts."""
    kinds = {receiver.name: receiver.kind for receiver in receivers}
    for index, name in enumerate(section.receivers):
        place: KeyPath = ("alerts", "receivers", index)
        if name not in kinds:
            advice = did_you_mean(name, list(kinds)) if kinds else "name it in the section `receivers`"
            raise file.refuse(place, f"{name!r} is no receiver", advice)
        if kinds[name] != "notification":
            raise file.refuse(place, f"{name!r} takes actions", "alerts go to receivers of `kind: notification`")
        if name in section.receivers[:index]:
            raise file.refuse(place, f"{name!r} stands here twice", "")
    for key, written in (("log", section.log), ("dead_letter", section.dead_letter)):
        if written is not None and (folder / written).is_dir():
            raise file.refuse(("alerts", key), f"{written} is a folder", "name a file in it")
    return settings.AlertSettings(
        log=None if section.log is None else folder / section.log,
        receivers=tuple(section.receivers),
        settle_s=section.settle,
        otlp=None if section.otlp is None else target(file, folder, section.otlp, ("alerts", "otlp")),
        dead_letter=None if section.dead_letter is None else folder / section.dead_letter,
    )


def build_actions(file: YamlFile, folder: Path, section: ActionsShape) -> settings.ActionSettings:
    """Build the section; raises ConfigError for an instance of two engines, and for files that cannot be used."""
    engines = []
    whose: dict[tuple[Verb, str], str] = {}
    for name, one in section.engines.items():
        place: KeyPath = ("actions", "engines", name)
        for instance in one.instances:
            for verb in sorted(settings.DOES[one.kind]):
                other = whose.setdefault((verb, instance), name)
                if other != name:
                    message = f"{instance!r} is an instance of {other!r} already, which does `{verb}` too"
                    raise file.refuse((*place, "instances", instance), message, "name it once", at_key=True)
        for key, kinds in _ONLY_FOR.items():
            if getattr(one, key) is not None and one.kind not in kinds:
                advice = f"it belongs to {' or '.join(kinds)}"
                raise file.refuse((*place, key), f"an engine of kind {one.kind} has no {key}", advice, at_key=True)
        for key, kinds in _NEEDED_BY.items():
            if getattr(one, key) is None and one.kind in kinds:
                raise file.refuse((*place, key), "missing", f"an engine of kind {one.kind} needs it")
        for instance, url in one.instances.items() if one.kind == "relay" else ():
            if url.endswith(settings.RELAY_PATH):
                advice = f"leave {settings.RELAY_PATH} out: name the relay's web port"
                raise file.refuse((*place, "instances", instance), "the path of a relay is added to its URL", advice)
        token_file = secret_file = None
        if one.token_file is not None:
            token_file = readable(file, folder, one.token_file, (*place, "token_file"), read_bearer)
        if one.secret_file is not None:
            secret_file = readable(file, folder, one.secret_file, (*place, "secret_file"), read_signing_secrets)
        instances = tuple(one.instances.items())
        engines.append(settings.Engine(name, one.kind, instances, one.url, token_file, secret_file, one.abort_path))
    kill_switch = None if section.kill_switch is None else folder / section.kill_switch
    return settings.ActionSettings(tuple(engines), kill_switch, section.wedge_timeout)


def certificates(path: Path) -> None:
    """Read a file of certificates; raises ConfigError where it holds none."""
    try:
        ssl.create_default_context(cafile=str(path))
    except ssl.SSLError:
        raise ConfigError(str(path), None, None, "", "no certificates in PEM", "name the file of who signs") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableConfigError(str(path), None, None, "", reason, "name a file that can be read") from None


def readable(file: YamlFile, folder: Path, name: str, place: KeyPath, read: Callable[[Path], object]) -> Path:
    """Return the path of a file after reading it once, so that one that cannot be used is refused at the start."""
    path = folder / name
    try:
        read(path)
    except UnreadableConfigError as error:
        raise file.refuse_file(place, error) from None
    return path
