"""Dispatch decided actions: to the relay's own actor for its streams and backends, to the settings' engines else.

All of it runs in the event loop. `take` never calls the actor itself: rules decide in the middle of an update of a
stream, and an actor updates streams. Each action is settled exactly once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, cast

from otel_llm.actions.execute.dispatcher import Settled
from otel_llm.actions.execute.kill_switch import KillSwitch
from otel_llm.relay.deciding.command import Command
from otel_llm.rules.decisions.decision_records import ComparedInstance, Migration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from otel_llm.actions.execute.action_attempts import NotSent
    from otel_llm.actions.execute.dispatcher import ActionDispatcher
    from otel_llm.actions.execute.events import Order
    from otel_llm.readers.records import RequestKey
    from otel_llm.rules.decisions.decision_records import Decision, Outcome
    from otel_llm.rules.language.snapshot import StreamKey
    from otel_llm.shared.clock import Clock

Settle: TypeAlias = "Callable[[str, str, Mapping[str, Any]], None]"
"""Gets an action's outcome, a line of detail, and further fields of its record: of a migration `from`, `to`,
`tokens_carried`, `gap_seconds`, and `candidates`, rows of instance, score and reason."""
KILL_SWITCH_TIMEOUT_S: Final = 1.0
"""A disk that does not answer for so long counts as an active kill switch."""
MOST_OPEN: Final = 10_000
"""Actions open at one time; without a budget in the rules there may be one for every stream."""
_OWN: Final = frozenset({"migrate", "preempt", "abort", "drain"})
_ONE_A_REQUEST: Final = frozenset({"migrate", "abort"})
_ONE_AN_INSTANCE: Final = frozenset({"abort", "drain", "scale"})
_Resource: TypeAlias = "tuple[Literal['request'], RequestKey] | tuple[Literal['instance'], str]"
log = logging.getLogger(__name__)


class Actor(Protocol):
    """The actions on the relay's requests and backends; `settle` is called once, now or later, in the loop."""

    def may_pause(self, key: RequestKey) -> bool:
        """Tell whether a request's stream could be paused now."""

    def migrate(self, command: Command, settle: Settle) -> None:
        """Move a request's stream to another backend."""

    def preempt(self, command: Command, settle: Settle) -> None:
        """Pause a stream whose reader has text left."""

    def abort(self, command: Command, settle: Settle) -> None:
        """End a request's stream."""

    def drain(self, command: Command, settle: Settle) -> None:
        """Stop sending new streams to a backend."""


@dataclass(slots=True, eq=False)
class _PendingAction:
    """An action that is not settled.

    `resources`: what no other action may be open for meanwhile; `decision`: the one of the relay's own rules that
    began it, if any.
    """

    command: Command
    settled: Callable[[Settled], None]
    resources: tuple[_Resource, ...]
    decision: Decision | None = None
    begun: bool = False


class OwnActions:
    """The dispatcher of the relay's actions; made in the running loop.

    `others` does what the actor does not: it has threads of its own. `kill_switch`: nothing is begun while this file
    exists. `refuted` is called with each refuted migration, once it is recorded.
    """

    def __init__(
        self,
        actor: Actor,
        clock: Clock,
        refuted: Callable[[Decision], None],
        *,
        others: ActionDispatcher | None = None,
        kill_switch: Path | None = None,
        wedge_timeout_s: float = 10.0,
        disk_timeout_s: float = KILL_SWITCH_TIMEOUT_S,
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self._actor = actor
        self._clock = clock
        self._refuted = refuted
        self._others = others
        self._kill_switch = KillSwitch(kill_switch)
        self._wedge_timeout_s = wedge_timeout_s
        self._disk_timeout_s = disk_timeout_s
        self._loop = asyncio.get_running_loop()
        self._disk = ThreadPoolExecutor(1, "otel-llm-kill-switch")
        self._pending: dict[str, _PendingAction] = {}
        self._unsent: dict[str, _PendingAction] = {}
        """Actions for the actor that it has not received yet."""
        self._busy: dict[_Resource, str] = {}
        self._sending: asyncio.Task[None] | None = None
        self._none_open = asyncio.Event()
        self._stopping = False

    def do(self, command: Command, settled: Callable[[Settled], None]) -> None:
        """Do a command of another process; `settled` is called once, in the loop: now, if it is refused, else later."""
        self._settle_refused(lambda: self._take(command, settled), settled)

    # Called by the sinks.

    def take(self, order: Order, settled: Callable[[Settled], None]) -> None:
        """Do an order; `settled` is called once, in the loop: now, if it is refused, else later."""
        self._settle_refused(lambda: self._take(Command.of_order(order), settled, order), settled)

    def _settle_refused(self, take: Callable[[], Settled | None], settled: Callable[[Settled], None]) -> None:
        """Settle a refused action at once."""
        try:
            refused = take()
        except Exception as bug:  # a bug of ours must not stop the evaluation
            log.exception("otel-llm: an action could not be begun")
            refused = Settled("failed", f"a bug of ours: {type(bug).__name__}")
        if refused is not None:
            self.outcomes[refused.outcome] += 1
            settled(refused)

    def withdraw(self, decision: Decision) -> None:
        """Withdraw the unsent actions of a firing that has ended."""
        firing = (decision.rule_hash, decision.subject)
        for one in list(self._unsent.values()):
            if one.decision is not None and (one.decision.rule_hash, one.decision.subject) == firing:
                self._settle(one, Settled(decision.outcome, "withdrawn: the firing ended first"))
        if self._others is not None:
            self._others.withdraw(decision)

    def ended(self, stream: StreamKey, outcome: str) -> None:
        """Expect the open action of an ended stream to be settled soon; its firings end first, see `withdraw`."""
        open_id = self._busy.get(("request", stream[:2]))
        if open_id is not None:
            self._loop.call_later(self._wedge_timeout_s, self._give_up, self._pending[open_id])
        if self._others is not None:
            self._others.ended(stream, outcome)

    # Called by the service.

    def counts(self) -> dict[str, int]:
        """Return the number of actions by outcome, and how many are open."""
        return {**{f"actions.{outcome}": n for outcome, n in self.outcomes.items()}, "actions_open": len(self._pending)}

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more; wait for open actions, and settle what is left then."""
        self._stopping = True
        waiting = [self._loop.create_task(self._wait_for_none(grace_s))]
        if self._others is not None:
            waiting.append(self._loop.create_task(asyncio.to_thread(self._others.stop, grace_s)))
        await asyncio.wait(waiting)
        for one in list(self._pending.values()):
            self._settle(one, Settled("unconfirmed" if one.begun else "expired", "the relay stopped"))
        if self._sending is not None:
            self._sending.cancel()
        self._disk.shutdown(wait=False)

    # From the decision to the actor.

    def _take(self, command: Command, settled: Callable[[Settled], None], order: Order | None = None) -> Settled | None:
        """Begin a command; return why it is refused. `order`: that of an own rule, which `others` may have to do."""
        if self._stopping:
            return Settled("expired", "the relay is stopping")
        others = self._others if order is not None and self._is_for_others(order) else None
        if others is None and command.verb not in _OWN:
            return Settled("failed", f"nothing is configured that does `{command.verb}`")
        if command.id in self._pending:
            return Settled("failed", "this very action is open already")
        if len(self._pending) >= MOST_OPEN:
            return Settled("failed", f"{MOST_OPEN} actions are open")
        resources = tuple(_resources(command))
        for name in resources:
            if (other := self._busy.get(name)) is not None:
                return Settled("budget", f"{other} is open for this {name[0]}", open_elsewhere=True)
        decision = None if order is None else order.decision
        one = self._pending[command.id] = _PendingAction(command, settled, resources, decision)
        self._busy.update(dict.fromkeys(resources, command.id))
        self._none_open.clear()
        if others is not None and order is not None:
            one.begun = True
            others.take(order, lambda how: self._in_loop(one, how))
        else:
            self._unsent[command.id] = one
            if self._sending is None:
                self._sending = self._loop.create_task(self._send())
        return None

    def _is_for_others(self, order: Order) -> bool:
        """Tell whether an order is for `others`: another verb, or a drain for which the settings name a router."""
        if order.verb not in _OWN:
            return self._others is not None
        return order.verb == "drain" and self._others is not None and not isinstance(self._others.find(order), str)

    async def _send(self) -> None:
        """Check the kill switch, once for all actions decided before the check; begin those that may be begun."""
        try:
            while self._unsent:
                due = list(self._unsent.values())
                not_sent = await self._forbidden()
                for one in due:
                    if self._unsent.pop(one.command.id, None) is one:
                        self._begin(one, not_sent)
        finally:
            self._sending = None

    async def _forbidden(self) -> NotSent | None:
        if self._kill_switch.path is None:
            return None
        look = self._loop.run_in_executor(self._disk, self._kill_switch.forbidden)
        done, _ = await asyncio.wait({look}, timeout=self._disk_timeout_s)
        if done:
            return look.result()
        look.cancel()
        return self._kill_switch.killed("the kill switch cannot be looked at: the disk does not answer")

    def _begin(self, one: _PendingAction, not_sent: NotSent | None) -> None:
        command = one.command
        late_ns = self._clock.now_ns() - command.expires_ns
        if not_sent is not None:
            self._settle(one, Settled(not_sent.outcome, not_sent.detail))
            return
        if late_ns >= 0:
            self._settle(one, Settled("expired", f"its time to live was over {late_ns / 1e6:.0f} ms ago"))
            return
        one.begun = True

        def settle(outcome: str, detail: str, facts: Mapping[str, Any]) -> None:
            try:
                migration = _migration(facts)
            except (KeyError, TypeError, AttributeError):  # a bug of ours must not stop the stream that it is about
                log.exception("otel-llm: how a migration went cannot be recorded")
                migration = None
            self._settle(one, Settled(cast("Outcome", outcome), detail, migration=migration))

        acts = {
            "migrate": self._actor.migrate,
            "preempt": self._actor.preempt,
            "abort": self._actor.abort,
            "drain": self._actor.drain,
        }
        try:
            acts[command.verb](command, settle)
        except Exception as bug:  # a bug of ours must not stop the other actions
            log.exception("otel-llm: an action could not be done")
            self._settle(one, Settled("unconfirmed", f"a bug of ours: {type(bug).__name__}"))

    # From the actor to the record.

    def _in_loop(self, one: _PendingAction, how: Settled) -> None:
        """Settle from any thread."""
        self._loop.call_soon_threadsafe(self._settle, one, how)

    def _settle(self, one: _PendingAction, how: Settled) -> None:
        """Settle an action, once; raises nothing: an actor calls it in the middle of its own work."""
        command = one.command
        if self._pending.get(command.id) is not one:
            return
        del self._pending[command.id]
        self._unsent.pop(command.id, None)
        for name in one.resources:
            del self._busy[name]
        if not self._pending:
            self._none_open.set()
        self.outcomes[how.outcome] += 1
        try:
            one.settled(how)
            if how.outcome == "refuted" and one.begun and command.verb == "migrate" and one.decision is not None:
                self._refuted(one.decision)
        except Exception:  # a bug of ours must not stop the stream that it is about
            log.exception("otel-llm: the outcome of an action could not be recorded")

    def _give_up(self, one: _PendingAction) -> None:
        waited = f"the stream has ended, and its outcome was not known {self._wedge_timeout_s:g} s later"
        self._settle(one, Settled("unconfirmed", waited))

    async def _wait_for_none(self, grace_s: float) -> None:
        if self._pending:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._none_open.wait(), grace_s)


def _resources(command: Command) -> Iterator[_Resource]:
    """Yield the resources for which no other action may be open: its request, its instance."""
    if command.request is not None and command.verb in _ONE_A_REQUEST:
        yield "request", command.request
    if command.instance and command.verb in _ONE_AN_INSTANCE:
        yield "instance", command.instance


def _migration(facts: Mapping[str, Any]) -> Migration | None:
    """Return the course of a migration; None for one that did not begin, and for other actions."""
    if "from" not in facts:
        return None
    compared = [
        ComparedInstance(str(one["instance"]), one["score"], str(one.get("reason", "")))
        for one in facts.get("candidates", ())
    ]
    return Migration(facts["from"], facts.get("to"), facts.get("tokens_carried"), facts.get("gap_seconds"), compared)
