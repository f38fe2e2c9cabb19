"""Who does what: the one table from verbs and kinds of engine to executors, by the settings alone.

A name of an instance that telemetry brings chooses among the URLs of the settings and is never part of one.
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
from otel_llm.rules.files.load import load_with_files
from otel_llm.rules.files.yamlfile import ConfigError
from otel_llm.shared.secret_files import read_signing_secrets, read_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from otel_llm.actions.execute.events import Order
    from otel_llm.actions.execute.executor import Executor
    from otel_llm.actions.settings import Acting, Engine, Receiver
    from otel_llm.rules.files.load import RuleFile
    from otel_llm.rules.files.ruleset import RuleSet, Verb

Notify: TypeAlias = "Callable[[str, str, bytes, str], bool]"
"""Queue a notification that is tried until it arrives: receiver, id, body, what it is about."""
ANY: Final = "*"
"""An instance's name in the settings: whichever has no entry of its own, and decisions that are about none."""
RELAY_DOES: Final = DOES["relay"]
"""What a relay does to its own streams and backends, without an engine in its settings."""
_ONE_OPEN: Final[frozenset[Verb]] = frozenset(("abort", "drain"))
"""What a relay does one at a time for an instance; streams are moved and paused side by side."""


def executors(settings: Acting) -> frozenset[Verb]:
    """Return the verbs, besides `alert`, for which the settings name somebody who does them."""
    verbs: set[Verb] = {verb for engine in settings.actions.engines for verb in DOES[engine.kind]}
    if settings.receivers:
        verbs.add("webhook")
    return frozenset(verbs)


def refuse_unknown_receivers(rules: RuleSet, settings: Acting) -> None:
    """Raise ConfigError for an enforced webhook whose receiver the settings do not name."""
    names = [receiver.name for receiver in settings.receivers]
    for rule in rules.rules:
        for action in rule.actions:
            to = dict(action.arguments).get("to")
            if action.verb == "webhook" and rules.mode(action) == "enforce" and to not in names:
                known = f"write one of {', '.join(names)}" if names else "name it in the section `receivers`"
                raise ConfigError(f"rule {rule.name}", None, None, "webhook.to", f"{to!r} is no receiver", known)


def load_enforced(
    paths: Iterable[str | Path], settings: Acting, own: Collection[Verb] = ()
) -> tuple[RuleSet, list[RuleFile]]:
    """Load rules and their files, for a service with these settings: what it can do may be enforced.

    `own`: the verbs that it does itself, without anybody to ask: of a relay `RELAY_DOES`.

    Raises:
        ConfigError: as `load_rules`, and for an enforced webhook whose receiver the settings do not name.
    """
    rules, files = load_with_files(paths, executors(settings) | frozenset(own))
    refuse_unknown_receivers(rules, settings)
    return rules, files


@dataclass(frozen=True, slots=True)
class _Notification:
    """Queue a notification; it is tried until it arrives, and nothing waits for it."""

    name: str
    source: str
    notify: Notify
    timeout_s: float = 5.0
    exclusive: bool = False
    in_stream: bool = False

    def attempt(self, order: Order, now_ns: int, timeout_s: float) -> Reply:  # noqa: ARG002
        """Queue it."""
        if not self.notify(self.name, order.id, cloud_event(order, self.source), f"rule {order.decision.rule}"):
            return Reply("refused", f"nobody brings notifications to {self.name}")
        return Reply("accepted", "queued; tried until it arrives")

    def look(self, timeout_s: float) -> bool | None:  # noqa: ARG002
        """Return None: nobody looks."""
        return None


class Executors:
    """Find who does an order.

    `source`: the `source` of CloudEvents; `agent`: what the collector calls itself; `notify`: see `Alerts.notify`.
    """

    def __init__(self, settings: Acting, source: str, agent: str, notify: Notify) -> None:
        if settings.receivers or settings.actions.engines:
            prepare()
        self._source = source
        self._agent = agent
        self._receivers = {receiver.name: self._receiver(receiver, notify) for receiver in settings.receivers}
        self._engines: dict[tuple[str, str], Executor] = {}
        for engine in settings.actions.engines:
            for instance, url in engine.instances:
                for verb in DOES[engine.kind]:
                    self._engines[verb, instance] = self._engine(engine, url, verb)

    def find(self, order: Order) -> Executor | str:
        """Return who does it, or words on why nobody does."""
        if order.verb == "webhook":
            name = str(order.decision.arguments.get("to"))
            return self._receivers.get(name) or f"no receiver is called {name!r}"
        found = self._engines.get((order.verb, order.instance)) or self._engines.get((order.verb, ANY))
        if found is None:
            return f"no engine is configured that does `{order.verb}` for instance {order.instance!r}"
        if order.verb == "preempt" and not order.candidates:
            return "nobody to take: no other stream is known on the instance"
        return found

    def _receiver(self, receiver: Receiver, notify: Notify) -> Executor:
        if receiver.kind == "notification":
            return _Notification(receiver.name, self._source, notify)
        return self._webhook(receiver.url, receiver.secret_file, receiver.timeout_s)

    def _webhook(self, url: str, secret_file: Path, timeout_s: float, *, exclusive: bool = False) -> Webhook:
        return Webhook(url, lambda: read_signing_secrets(secret_file), self._source, self._agent, timeout_s, exclusive)

    def _engine(self, engine: Engine, url: str, verb: Verb) -> Executor:
        token = _token(engine.token_file)
        if engine.kind in ("webhook", "relay"):
            assert engine.secret_file is not None  # noqa: S101  the settings file is refused without
            if engine.kind == "relay":
                return self._webhook(url + RELAY_PATH, engine.secret_file, 5.0, exclusive=verb in _ONE_OPEN)
            return self._webhook(url, engine.secret_file, 5.0, exclusive=True)
        if engine.kind == "vllm":
            return VllmAbort(url, token, self._agent, path=engine.abort_path or VLLM_ABORT)
        if engine.kind == "sglang":
            return SglangAbort(url, token, self._agent, path=engine.abort_path or SGLANG_ABORT)
        assert engine.url is not None  # noqa: S101  the settings file is refused without
        return RouterDrain(engine.url, token, self._agent, worker=url, legacy=engine.kind == "vllm_router")


def _token(path: Path | None) -> Callable[[], str | None]:
    return lambda: None if path is None else read_tokens(path)[0].decode()
