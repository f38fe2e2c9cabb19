"""The table of executors, by verb and kind of engine, made from the settings alone.

An instance's name in telemetry chooses among the URLs of the settings and is never part of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from otel_llm.actions.delivery.http_request import prepare
from otel_llm.actions.execute.engines import SGLANG_ABORT, VLLM_ABORT, RouterDrain, SglangAbort, VllmAbort
from otel_llm.actions.execute.events import cloud_event
from otel_llm.actions.execute.executor import Reply
from otel_llm.actions.execute.webhook import Webhook
from otel_llm.actions.settings import DOES, RELAY_PATH
from otel_llm.config.secret_files import read_bearer, read_signing_secrets
from otel_llm.config.yaml_file import ConfigError
from otel_llm.rules.files.load import load_with_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from otel_llm.actions.execute.events import Order
    from otel_llm.actions.execute.executor import Executor
    from otel_llm.actions.settings import Engine, Receiver, ServiceSettings
    from otel_llm.rules.files.load import RuleFile
    from otel_llm.rules.files.ruleset import RuleSet, Verb

Notify: TypeAlias = "Callable[[str, str, bytes, str, str], bool]"
"""Queue a notification that is tried until it arrives: receiver, id, body, subject, tenant."""
RECEIVER: Final = "receiver:"
ENGINE: Final = "engine:"
"""The kinds of what is asked, before its name in the settings."""
ANY: Final = "*"
"""The name in the settings for instances without an entry of their own, and for decisions about no instance."""
RELAY_DOES: Final = DOES["relay"]
"""The verbs of a relay for its own streams and backends, without an engine in its settings."""
_ONE_OPEN: Final[frozenset[Verb]] = frozenset(("abort", "drain"))
"""The verbs that a relay does one at a time for an instance; streams are moved and paused side by side."""


def executors(settings: ServiceSettings) -> frozenset[Verb]:
    """Return the verbs, besides `alert`, for which the settings name an executor."""
    verbs: set[Verb] = {verb for engine in settings.actions.engines.values() for verb in DOES[engine.kind]}
    if settings.receivers:
        verbs.add("webhook")
    return frozenset(verbs)


def refuse_unknown_receivers(rules: RuleSet, settings: ServiceSettings) -> None:
    """Raise ConfigError for an enforced webhook whose receiver the settings do not name."""
    names = list(settings.receivers)
    for rule in rules.rules:
        for action in rule.actions:
            to = dict(action.arguments).get("to")
            if action.verb == "webhook" and rules.mode(action) == "enforce" and to not in names:
                known = f"write one of {', '.join(names)}" if names else "name it in the section `receivers`"
                raise ConfigError(f"rule {rule.name}", None, None, "webhook.to", f"{to!r} is no receiver", known)


def load_enforced(
    paths: Iterable[str | Path], settings: ServiceSettings, own: Collection[Verb] = ()
) -> tuple[RuleSet, list[RuleFile]]:
    """Load rules and their files for a service with these settings: only verbs with an executor may be enforced.

    `own`: the verbs that the service does itself; of a relay `RELAY_DOES`.

    Raises:
        ConfigError: as `load_rules`, and for an enforced webhook whose receiver the settings do not name.
    """
    rules, files = load_with_files(paths, executors(settings) | frozenset(own))
    refuse_unknown_receivers(rules, settings)
    return rules, files


@dataclass(frozen=True, slots=True)
class _Notification:
    """A queued notification: it is tried until it arrives, and no caller waits for it."""

    name: str
    source: str
    notify: Notify
    target: str
    timeout_s: float = 5.0
    exclusive: bool = False
    in_stream: bool = False

    def attempt(self, order: Order, now_ns: int, timeout_s: float) -> Reply:  # noqa: ARG002
        """Queue it."""
        body, about = cloud_event(order, self.source), f"rule {order.decision.rule}"
        if not self.notify(self.name, order.id, body, about, order.decision.tenant):
            return Reply("refused", f"no channel of notifications is running for {self.name}")
        return Reply("accepted", "queued; tried until it arrives")

    def check(self, timeout_s: float) -> bool | None:  # noqa: ARG002
        """Return None: delivery is not observed."""
        return None


class Executors:
    """The executors that the settings name, by verb and instance, and the receivers by name.

    `source`: the `source` of CloudEvents; `agent`: the collector's User-Agent; `notify`: see `Alerts.notify`.
    """

    def __init__(self, settings: ServiceSettings, source: str, agent: str, notify: Notify) -> None:
        if settings.receivers or settings.actions.engines:
            prepare()
        self._source = source
        self._agent = agent
        self._receivers = {name: self._receiver(one, notify) for name, one in settings.receivers.items()}
        self._engines: dict[tuple[str, str], Executor] = {}
        self._targets: dict[str, str] = {}
        self._relays: dict[str, str] = {}
        """What relays call themselves, by the URL of their actions."""
        """The name of each URL of an engine: that of the first instance there."""
        for engine in settings.actions.engines.values():
            for instance, url in engine.instances.items():
                for verb in DOES[engine.kind]:
                    self._engines[verb, instance] = self._engine(engine, instance, url, verb)

    def find(self, order: Order) -> Executor | str:
        """Return the executor of an order, or the reason why there is none."""
        if order.verb == "webhook":
            name = str(order.decision.arguments.get("to"))
            return self._receivers.get(name) or f"no receiver is called {name!r}"
        found = self._engines.get((order.verb, order.instance)) or self._engines.get((order.verb, ANY))
        if found is None:
            return f"no engine is configured that does `{order.verb}` for instance {order.instance!r}"
        if order.verb == "preempt" and not order.candidates:
            return "no candidate: no other stream is known on the instance"
        return found

    def _receiver(self, receiver: Receiver, notify: Notify) -> Executor:
        if receiver.kind == "notification":
            return _Notification(receiver.name, self._source, notify, f"{RECEIVER}{receiver.name}")
        return self._webhook(f"{RECEIVER}{receiver.name}", receiver.url, receiver.secret_file, receiver.timeout_s)

    def _webhook(
        self,
        target: str,
        url: str,
        secret_file: Path,
        timeout_s: float,
        *,
        exclusive: bool = False,
        relays: dict[str, str] | None = None,
    ) -> Webhook:
        def secrets() -> tuple[bytes, ...]:
            return read_signing_secrets(secret_file)

        return Webhook(url, secrets, self._source, self._agent, timeout_s, exclusive, target=target, relays=relays)

    def _engine(self, engine: Engine, instance: str, url: str, verb: Verb) -> Executor:
        token = _token(engine.token_file)
        name = f"{ENGINE}{engine.name}/{instance}" if engine.url is None else f"{ENGINE}{engine.name}"
        target = self._targets.setdefault(engine.url or url, name)
        if engine.kind in ("webhook", "relay"):
            assert engine.secret_file is not None  # noqa: S101  the settings file is refused without
            if engine.kind == "relay":
                exclusive = verb in _ONE_OPEN
                path, file = url + RELAY_PATH, engine.secret_file
                return self._webhook(target, path, file, 5.0, exclusive=exclusive, relays=self._relays)
            return self._webhook(target, url, engine.secret_file, 5.0, exclusive=True)
        if engine.kind == "vllm":
            return VllmAbort(url, token, self._agent, target=target, path=engine.abort_path or VLLM_ABORT)
        if engine.kind == "sglang":
            return SglangAbort(url, token, self._agent, target=target, path=engine.abort_path or SGLANG_ABORT)
        assert engine.url is not None  # noqa: S101  the settings file is refused without
        legacy = engine.kind == "vllm_router"
        return RouterDrain(engine.url, token, self._agent, target=target, worker=url, legacy=legacy)


def _token(path: Path | None) -> Callable[[], str | None]:
    return lambda: None if path is None else read_bearer(path)
