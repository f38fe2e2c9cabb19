"""Dispatch decided actions: to the relay's own actor for its streams and backends, to the settings' engines else.

All of it runs in the event loop. `take` never calls the actor itself: rules decide in the middle of an update of a
stream, and an actor updates streams. Each action is completed exactly once.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

from otel_llm.actions.execute.circuit_breaker import CIRCUIT_OPEN
from otel_llm.actions.execute.kill_switch import KillSwitch
from otel_llm.actions.execute.open_actions import Completion, OpenAction, OpenActions
from otel_llm.relay.deciding.command import Command
from otel_llm.rules.decisions.decision_records import ComparedInstance, Migration
from otel_llm.shared.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
    from pathlib import Path

    from otel_llm.actions.execute.action_attempts import NotSent
    from otel_llm.actions.execute.dispatcher import ActionDispatcher
    from otel_llm.actions.execute.events import Order
    from otel_llm.formats.records import RequestKey, StreamKey
    from otel_llm.relay.deciding.standing import StandingMigrations
    from otel_llm.rules.decisions.decision_records import Decision, Outcome
    from otel_llm.shared.clock import Clock

Complete: TypeAlias = "Callable[[str, str, Mapping[str, Any]], None]"
"""Gets an action's outcome, a line of detail, and further fields of its record: of a migration `from`, `to`,
`tokens_carried`, `gap_seconds`, and `candidates`, rows of instance, score and reason."""
KILL_SWITCH_TIMEOUT_S: Final = 1.0
"""A disk that does not answer for so long counts as an active kill switch."""
MOST_OPEN: Final = 10_000
"""Actions open at one time; without a budget in the rules there may be one for every stream."""
_OWN: Final = frozenset({"migrate", "preempt", "abort", "drain"})
_ONCE_MORE: Final = frozenset({"failed", "refuted"})
_ONE_A_REQUEST: Final = frozenset({"migrate", "abort"})
_ONE_AN_INSTANCE: Final = frozenset({"abort", "drain", "scale"})
log = logging.getLogger(__name__)


class Actor(Protocol):
    """The actions on the relay's requests and backends; `complete` is called once, now or later, in the loop."""

    def may_pause(self, key: RequestKey) -> bool:
        """Tell whether a request's stream could be paused now."""

    def migrate(self, command: Command, complete: Complete) -> None:
        """Move a request's stream to another backend."""

    def preempt(self, command: Command, complete: Complete) -> None:
        """Pause a stream whose reader has text left."""

    def abort(self, command: Command, complete: Complete) -> None:
        """End a request's stream."""

    def drain(self, command: Command, complete: Complete) -> None:
        """Stop sending new streams to a backend."""


_Open: TypeAlias = "OpenAction[Command]"


class OwnActions:
    """The dispatcher of the relay's actions; made in the running loop.

    `others` does what the actor does not: it has threads of its own. `kill_switch`: nothing is begun while this file
    exists. `standing`: the migrations that are attempted until they are done, set by the owner before it runs.
    """

    def __init__(
        self,
        actor: Actor,
        clock: Clock,
        *,
        others: ActionDispatcher | None = None,
        kill_switch: Path | None = None,
        wedge_timeout_s: float = 10.0,
        disk_timeout_s: float = KILL_SWITCH_TIMEOUT_S,
    ) -> None:
        self.standing: StandingMigrations | None = None
        self._actor = actor
        self._clock = clock
        self._others = others
        self._kill_switch = KillSwitch(kill_switch)
        self._wedge_timeout_s = wedge_timeout_s
        self._disk_timeout_s = disk_timeout_s
        self._loop = asyncio.get_running_loop()
        self._disk = ThreadPoolExecutor(1, "otel-llm-kill-switch")
        self._open: OpenActions[Command] = OpenActions()
        self._unsent: dict[str, _Open] = {}
        """Actions for the actor that it has not received yet."""
        self._sending: asyncio.Task[None] | None = None
        self._none_open = asyncio.Event()
        self._stopping = False

    def do(self, command: Command, completed: Callable[[Completion], None]) -> None:
        """Do a command of another process; `completed` is called once, in the loop: now, if it is refused, else later.

        A migration that fails or is refuted is attempted again until the command expires.
        """
        backoff = Backoff(command.id.encode())

        def attempt() -> None:
            self._complete_refused(lambda: self._take(command, over), over)

        def over(how: Completion) -> None:
            pause_s = backoff.next_s()
            in_time = self._clock.now_ns() + int(pause_s * 1e9) < command.expires_ns
            if command.verb == "migrate" and how.outcome in _ONCE_MORE and in_time and not self._stopping:
                self._loop.call_later(pause_s, attempt)
            else:
                completed(how)

        attempt()

    # Called by the sinks.

    def take(self, order: Order, completed: Callable[[Completion], None]) -> None:
        """Do an order; `completed` is called once, in the loop: now, if it is refused, else later."""
        self._complete_refused(lambda: self._take(Command.of_order(order), completed, order), completed)

    def _complete_refused(self, take: Callable[[], Completion | None], completed: Callable[[Completion], None]) -> None:
        """Complete a refused action at once."""
        try:
            refused = take()
        except Exception as bug:  # a bug of ours must not stop the evaluation
            log.exception("otel-llm: an action could not be begun")
            refused = Completion("failed", f"a bug of ours: {type(bug).__name__}")
        if refused is not None:
            self._open.outcomes[refused.outcome] += 1
            completed(refused)

    def keep(self, decision: Decision) -> bool:
        """Keep a migration; return whether it is attempted and recorded from now on, see `StandingMigrations`."""
        return self.standing is not None and self.standing.keep(decision)

    def withdraw(self, decision: Decision) -> None:
        """Withdraw the unsent actions of a firing that has ended."""
        if self.standing is not None:
            self.standing.withdraw(decision)
        for one in self._open.of((decision.rule_hash, decision.subject)):
            self._complete(one, Completion(decision.outcome, "withdrawn: the firing ended first"), unsent=True)
        if self._others is not None:
            self._others.withdraw(decision)

    def ended(self, stream: StreamKey, outcome: str) -> None:
        """Expect the open action of an ended stream to be completed soon; its firings end first, see `withdraw`."""
        if self.standing is not None:
            self.standing.ended(stream)
        one = self._open.holder(("request", stream[:3]))
        if one is not None:
            self._loop.call_later(self._wedge_timeout_s, self._give_up, one)
        if self._others is not None:
            self._others.ended(stream, outcome)

    def notes(self) -> Sequence[str]:
        """Return a sentence for each receiver to which nothing is sent now."""
        return () if self._others is None else self._others.notes()

    # Called by the service.

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Return the number of completed actions by outcome."""
        return self._open.outcomes

    def counts(self) -> dict[str, int]:
        """Return the number of actions by outcome, and how many are open."""
        others = {} if self._others is None else self._others.counts()
        return {
            **{f"actions.{outcome}": n for outcome, n in self._open.outcomes.items()},
            **{name: n for name, n in others.items() if name.startswith(CIRCUIT_OPEN)},
            "actions_open": len(self._open),
        }

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more; wait for open actions, and complete what is left then."""
        self._stopping = True
        if self.standing is not None:
            self.standing.stop()
        waiting = [self._loop.create_task(self._wait_for_none(grace_s))]
        if self._others is not None:
            waiting.append(self._loop.create_task(asyncio.to_thread(self._others.stop, grace_s)))
        await asyncio.wait(waiting)
        for one in self._open:
            self._complete(one, Completion("unconfirmed" if one.sent else "expired", "the relay stopped"))
        if self._sending is not None:
            self._sending.cancel()
        self._disk.shutdown(wait=False)

    # From the decision to the actor.

    def _take(
        self, command: Command, completed: Callable[[Completion], None], order: Order | None = None
    ) -> Completion | None:
        """Begin a command; return why it is refused. `order`: that of an own rule, which `others` may have to do."""
        if self._stopping:
            return Completion("expired", "the relay is stopping")
        others = self._others if order is not None and self._is_for_others(order) else None
        if others is None and command.verb not in _OWN:
            return Completion("failed", f"nothing is configured that does `{command.verb}`")
        if len(self._open) >= MOST_OPEN:
            return Completion("failed", f"{MOST_OPEN} actions are open")
        exclusive = tuple(_exclusive(command))
        if (refused := self._open.refusal(command.id, exclusive)) is not None:
            return refused
        about = () if order is None else ((order.decision.rule_hash, order.decision.subject),)
        one = OpenAction(command.id, command, completed, exclusive=exclusive, about=about)
        self._open.open(one)
        self._none_open.clear()
        if others is not None and order is not None:
            one.sent = True
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
                    if self._unsent.pop(one.id, None) is one:
                        self._begin(one, not_sent)
        finally:
            self._sending = None

    async def _forbidden(self) -> NotSent | None:
        if self._kill_switch.path is None:
            return None
        check = self._loop.run_in_executor(self._disk, self._kill_switch.forbidden)
        done, _ = await asyncio.wait({check}, timeout=self._disk_timeout_s)
        if done:
            return check.result()
        check.cancel()
        return self._kill_switch.killed("the kill switch cannot be read: the disk does not answer")

    def _begin(self, one: _Open, not_sent: NotSent | None) -> None:
        command = one.what
        late_ns = self._clock.now_ns() - command.expires_ns
        if not_sent is not None:
            self._complete(one, Completion(not_sent.outcome, not_sent.detail))
            return
        if late_ns >= 0:
            self._complete(one, Completion("expired", f"its time to live was over {late_ns / 1e6:.0f} ms ago"))
            return
        one.sent = True

        def complete(outcome: str, detail: str, facts: Mapping[str, Any]) -> None:
            try:
                migration = _migration(facts)
            except (KeyError, TypeError, AttributeError):  # a bug of ours must not stop the stream that it is about
                log.exception("otel-llm: how a migration went cannot be recorded")
                migration = None
            self._complete(one, Completion(cast("Outcome", outcome), detail, migration=migration))

        acts = {
            "migrate": self._actor.migrate,
            "preempt": self._actor.preempt,
            "abort": self._actor.abort,
            "drain": self._actor.drain,
        }
        try:
            acts[command.verb](command, complete)
        except Exception as bug:  # a bug of ours must not stop the other actions
            log.exception("otel-llm: an action could not be done")
            self._complete(one, Completion("unconfirmed", f"a bug of ours: {type(bug).__name__}"))

    # From the actor to the record.

    def _in_loop(self, one: _Open, how: Completion) -> None:
        """Complete from any thread."""
        self._loop.call_soon_threadsafe(self._complete, one, how)

    def _complete(self, one: _Open, how: Completion, *, unsent: bool = False) -> None:
        """Complete an action, once; raises nothing: an actor calls it in the middle of its own work.

        `unsent`: only if its receiver does not have it yet.
        """
        if self._open.get(one.id) is not one or self._open.close(one.id, how.outcome, unsent=unsent) is None:
            return
        self._unsent.pop(one.id, None)
        if not self._open:
            self._none_open.set()
        try:
            one.completed(how)
        except Exception:  # a bug of ours must not stop the stream that it is about
            log.exception("otel-llm: the outcome of an action could not be recorded")

    def _give_up(self, one: _Open) -> None:
        waited = f"the stream has ended, and its outcome was not known {self._wedge_timeout_s:g} s later"
        self._complete(one, Completion("unconfirmed", waited))

    async def _wait_for_none(self, grace_s: float) -> None:
        if self._open:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._none_open.wait(), grace_s)


def _exclusive(command: Command) -> Iterator[tuple[str, Hashable]]:
    """Yield that for which no other action may be open: its request, its instance."""
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
