"""Dispatch actions of `mode: enforce`: each at most once and in time, one at a time for an instance, and confirmed.

`take` and `ended` are called in the evaluator's thread; they never wait and never raise. All other work runs in
threads. Each action that was taken is settled exactly once, at most its time to live and the wedge timeout later. An
action is open until it is settled; while an open one acts on an instance, no other on this instance is begun.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from otel_llm.actions.execute.action_attempts import Delivery, NotSent
from otel_llm.actions.execute.kill_switch import KillSwitch

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from pathlib import Path

    from otel_llm.actions.execute.events import Order
    from otel_llm.actions.execute.executor import Executor, Reply
    from otel_llm.rules.decisions.decision_records import Decision, Migration, Outcome
    from otel_llm.rules.language.snapshot import StreamKey

WORKERS: Final = 16
MOST_WAITING: Final = 10_000
"""Actions that wait for a worker; without a budget in the rules there may be one for every stream."""
LOOK_EVERY_S: Final = 0.1
LOOK_TIMEOUT_S: Final = 1.0
NOT_DONE: Final = frozenset({"completed", "lost"})
"""Outcomes of a stream that do not show that it was aborted: it may have ended by itself."""
CONFIRMATION: Final = "confirmation"
"""The name of the limit, beside those of the budget, that allows one open action an instance."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settled:
    """The result of an action.

    `open_elsewhere`: it was not begun since another is open for its instance; `migration`: the details of a `migrate`.
    """

    outcome: Outcome
    detail: str = ""
    open_elsewhere: bool = False
    migration: Migration | None = None


@dataclass(slots=True)
class _PendingAction:
    order: Order
    executor: Executor
    settled: Callable[[Settled], None]
    sent: bool = False
    wedged_ns: int | None = None
    """When waiting for its effect ends; set once it was sent."""


@dataclass(slots=True)
class ActionDispatcher:
    """The dispatcher of enforced actions; threads send them and settle each once: `start`, `take`, `stop`.

    `find` returns the executor of an order, or the reason why there is none; `kill_switch`: nothing is sent while this
    file exists, or while its existence cannot be checked.
    """

    now_ns: Callable[[], int]
    find: Callable[[Order], Executor | str]
    kill_switch: Path | None = None
    wedge_timeout_s: float = 10.0
    outcomes: Counter[str] = field(default_factory=Counter)
    _delivery: Delivery = field(init=False)
    _pending: dict[str, _PendingAction] = field(default_factory=dict)
    _busy: dict[str, str] = field(default_factory=dict)
    """The open action, by instance."""
    _about: dict[Hashable, set[str]] = field(default_factory=dict)
    """Open actions by the stream that they are to end, and by the firing that caused them."""
    _waiting: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _empty: threading.Condition = field(init=False)

    def __post_init__(self) -> None:
        self._delivery = Delivery(self.now_ns, KillSwitch(self.kill_switch).forbidden)
        self._empty = threading.Condition(self._lock)

    def start(self) -> None:
        """Start the threads that send and the one that watches."""
        work = [threading.Thread(target=self._work, name="otel-llm-act", daemon=True) for _ in range(WORKERS)]
        self._threads = [*work, threading.Thread(target=self._watch, name="otel-llm-act-watch", daemon=True)]
        for thread in self._threads:
            thread.start()

    def take(self, order: Order, settled: Callable[[Settled], None]) -> None:
        """Do an order; `settled` is called once: now, if the outcome is certain, else later from another thread."""
        try:
            refused = self._begin(order, settled)
        except Exception as bug:  # a bug of ours must not stop the evaluator
            log.exception("otel-llm: an action could not be begun")
            refused = Settled("failed", f"a bug of ours: {type(bug).__name__}")
        if refused is not None:
            with self._lock:
                self.outcomes[refused.outcome] += 1
            settled(refused)

    def withdraw(self, decision: Decision) -> None:
        """Withdraw the unsent actions of a firing that has ended."""
        firing = _firing(decision)
        if firing not in self._about:  # the usual case; no other thread adds actions of this firing
            return
        with self._lock:
            gone = list(self._about.get(firing, ()))
        for action_id in gone:
            self._settle(action_id, Settled(decision.outcome, "withdrawn: the firing ended first"), unsent=True)

    def ended(self, stream: StreamKey, outcome: str) -> None:
        """Settle the actions on a stream that has ended; its end confirms them, unless it completed by itself."""
        if stream not in self._about:
            return
        with self._lock:
            found = [self._pending[one] for one in self._about.get(stream, ()) if one in self._pending]
        for one in found:
            if not one.sent:
                self._settle(one.order.id, Settled("ended", "withdrawn: the stream ended first"), unsent=True)
            elif outcome in NOT_DONE:
                self._settle(one.order.id, Settled("unconfirmed", f"the stream ended as {outcome}"))
            else:
                self._settle(one.order.id, Settled("done", f"the stream ended as {outcome}"))

    def tick(self, now_ns: int) -> None:
        """Check the open actions: settle those that are seen to be done, or were waited for long enough."""
        with self._lock:
            sent = [one for one in self._pending.values() if one.wedged_ns is not None]
        for one in sent:
            if not one.executor.in_stream and one.executor.look(LOOK_TIMEOUT_S):
                self._settle(one.order.id, Settled("done", "seen"))
            elif one.wedged_ns is not None and one.wedged_ns <= now_ns:
                waited = f"not seen within {self.wedge_timeout_s:g} s"
                self._settle(one.order.id, Settled("unconfirmed", waited))

    def stop(self, grace_s: float) -> None:
        """Accept nothing more; wait for what is under way, and settle what is still open then."""
        self._stop.set()
        with self._empty:
            self._empty.wait_for(lambda: not self._pending, grace_s)
            left = [(one.order.id, one.sent) for one in self._pending.values()]
        for action_id, sent in left:
            why = "this process stopped"
            self._settle(action_id, Settled("unconfirmed" if sent else "expired", why))
        for _ in self._threads:
            self._waiting.put(None)

    def counts(self) -> dict[str, int]:
        """Return the number of actions by outcome, and how many are open."""
        with self._lock:
            outcomes = {f"actions.{outcome}": count for outcome, count in self.outcomes.items()}
            return {**outcomes, "actions_open": len(self._pending), "action_tries": self._delivery.tries}

    def awaited(self) -> int:
        """Return how many open actions were sent, and are not seen to be done yet."""
        with self._lock:
            return sum(one.wedged_ns is not None for one in self._pending.values())

    def is_idle(self) -> bool:
        """Tell whether no action is open, and nothing is kept of those that were."""
        with self._lock:
            return not (self._pending or self._busy or self._about)

    def _begin(self, order: Order, settled: Callable[[Settled], None]) -> Settled | None:
        if self._stop.is_set():
            return Settled("expired", "the collector is stopping")
        executor = self.find(order)
        if isinstance(executor, str):
            return Settled("failed", executor)
        with self._lock:
            if order.id in self._pending:
                return Settled("failed", "this very action is open already")
            if len(self._pending) >= MOST_WAITING:
                return Settled("failed", f"{MOST_WAITING} actions are open")
            if executor.exclusive and (other := self._busy.get(order.instance)) is not None:
                return Settled("budget", f"{other} is open for this instance", open_elsewhere=True)
            self._pending[order.id] = _PendingAction(order, executor, settled)
            if executor.exclusive:
                self._busy[order.instance] = order.id
            for about in _about(order, executor):
                self._about.setdefault(about, set()).add(order.id)
        self._waiting.put(order.id)
        return None

    def _work(self) -> None:
        while (action_id := self._waiting.get()) is not None:
            with self._lock:
                one = self._pending.get(action_id)
                if one is None:
                    continue
                one.sent = True  # from here on it cannot be withdrawn
            try:
                result = self._delivery.deliver(one.order, one.executor)
                self._delivered(one, result)
            except Exception as bug:  # a bug of ours must not stop the thread
                log.exception("otel-llm: an action could not be done")
                self._settle(action_id, Settled("unconfirmed", f"a bug of ours: {type(bug).__name__}"))

    def _delivered(self, one: _PendingAction, result: Reply | NotSent) -> None:
        if isinstance(result, NotSent):
            self._settle(one.order.id, Settled(result.outcome, result.detail))
            return
        lost = result.result == "again" and not result.maybe_sent
        if result.result == "refused" or lost:
            self._settle(one.order.id, Settled("failed", result.detail))
        elif result.result == "done":
            self._settle(one.order.id, Settled("done", result.detail))
        elif one.executor.in_stream or (seen := one.executor.look(LOOK_TIMEOUT_S)) is False:
            with self._lock:
                one.wedged_ns = self.now_ns() + int(self.wedge_timeout_s * 1e9)
        elif seen:
            self._settle(one.order.id, Settled("done", "seen"))
        elif result.result == "accepted":
            self._settle(one.order.id, Settled("sent", result.detail))
        else:
            self._settle(one.order.id, Settled("unconfirmed", result.detail))

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            if self._pending:
                self.tick(self.now_ns())

    def _settle(self, action_id: str, settled: Settled, *, unsent: bool = False) -> None:
        """Settle an open action; with `unsent`, only if it was not sent meanwhile."""
        with self._lock:
            one = self._pending.get(action_id)
            if one is None or (unsent and one.sent):
                return
            del self._pending[action_id]
            if self._busy.get(one.order.instance) == action_id:
                del self._busy[one.order.instance]
            for about in _about(one.order, one.executor):
                self._about[about].discard(action_id)
                if not self._about[about]:
                    del self._about[about]
            self.outcomes[settled.outcome] += 1
            self._empty.notify_all()
        one.settled(settled)


def _firing(decision: Decision) -> Hashable:
    return decision.rule_hash, decision.subject


def _about(order: Order, executor: Executor) -> list[Hashable]:
    firing = _firing(order.decision)
    return [firing, order.decision.stream] if executor.in_stream and order.decision.stream is not None else [firing]


def settled_decision(decision: Decision, settled: Settled) -> Decision:
    """Return the decision as it is recorded: with the result of its action."""
    budget = {**decision.budget, CONFIRMATION: False} if settled.open_elsewhere else decision.budget
    findings = {} if settled.migration is None else settled.migration.record()
    if settled.detail:
        findings["detail"] = settled.detail
    return replace(decision, outcome=settled.outcome, budget=budget, findings=findings)
