"""Dispatch actions of `mode: enforce`: each at most once and in time, one at a time for an instance, and confirmed.

`take` and `ended` are called in the evaluator's thread; they never wait and never raise. All other work runs in
threads, those of one receiver apart from those of others; to a receiver that hangs nothing is sent for a while. Each
action that was taken is completed exactly once, at most its time to live and the wedge timeout later. An action is open
until it is completed; while an open one acts on an instance, no other on this instance is begun.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from otel_llm.actions.execute.action_attempts import Delivery, NotSent
from otel_llm.actions.execute.circuit_breaker import CIRCUIT_OPEN, CircuitBreaker
from otel_llm.actions.execute.kill_switch import KillSwitch
from otel_llm.actions.execute.lanes import Lanes
from otel_llm.actions.execute.open_actions import Completion, OpenAction, OpenActions
from otel_llm.core.fair_shares import has_room

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from pathlib import Path

    from otel_llm.actions.execute.events import Order
    from otel_llm.actions.execute.executor import Executor, Reply
    from otel_llm.formats.records import StreamKey
    from otel_llm.rules.decisions.decision_records import Decision

MOST_WAITING: Final = 10_000
"""Actions that are open, shared by tenants (`has_room`); without a budget in the rules there may be one for every
stream."""
EVALUATION_EVERY_S: Final = 0.1
CHECK_TIMEOUT_S: Final = 1.0
NOT_DONE: Final = frozenset({"completed", "lost"})
"""Outcomes of a stream that do not show that it was aborted: it may have ended by itself."""
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sending:
    """What the lanes need to send an action; `wedged_ns`: when waiting for its effect ends, set once it was sent."""

    order: Order
    executor: Executor
    wedged_ns: int | None = None


_Open: TypeAlias = "OpenAction[_Sending]"


@dataclass(slots=True)
class ActionDispatcher:
    """The dispatcher of enforced actions; threads send them and complete each once: `start`, `take`, `stop`.

    `find` returns the executor of an order, or the reason why there is none; `kill_switch`: nothing is sent while this
    file exists, or while its existence cannot be checked.
    """

    now_ns: Callable[[], int]
    find: Callable[[Order], Executor | str]
    kill_switch: Path | None = None
    wedge_timeout_s: float = 10.0
    _delivery: Delivery = field(init=False)
    _open: OpenActions[_Sending] = field(default_factory=OpenActions)
    _breakers: defaultdict[str, CircuitBreaker] = field(default_factory=lambda: defaultdict(CircuitBreaker))
    """By receiver."""
    _checked: set[str] = field(default_factory=set)
    """The receivers that are being checked."""
    _lanes: Lanes = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _empty: threading.Condition = field(init=False)

    def __post_init__(self) -> None:
        self._delivery = Delivery(self.now_ns, KillSwitch(self.kill_switch).forbidden)
        self._empty = threading.Condition(self._lock)
        self._lanes = Lanes(self._work)

    def start(self) -> None:
        """Start the threads that send and the one that watches."""
        self._lanes.start()
        threading.Thread(target=self._watch, name="otel-llm-act-watch", daemon=True).start()

    def take(self, order: Order, completed: Callable[[Completion], None]) -> None:
        """Do an order; `completed` is called once: now, if the outcome is certain, else later from another thread."""
        try:
            refused = self._begin(order, completed)
        except Exception as bug:  # a bug of ours must not stop the evaluator
            log.exception("otel-llm: an action could not be begun")
            refused = Completion("failed", f"a bug of ours: {type(bug).__name__}")
        if refused is not None:
            with self._lock:
                self._open.outcomes[refused.outcome] += 1
            completed(refused)

    def keep(self, decision: Decision) -> bool:  # noqa: ARG002
        """Keep nothing: each action is done once."""
        return False

    def withdraw(self, decision: Decision) -> None:
        """Withdraw the unsent actions of a firing that has ended."""
        firing = _firing(decision)
        if not self._open.concerns(firing):  # the usual case; no other thread adds actions of this firing
            return
        with self._lock:
            gone = self._open.of(firing)
        for one in gone:
            self._complete(one.id, Completion(decision.outcome, "withdrawn: the firing ended first"), unsent=True)

    def ended(self, stream: StreamKey, outcome: str) -> None:
        """Complete the actions on a stream that has ended; its end confirms them, unless it completed by itself."""
        if not self._open.concerns(stream):
            return
        with self._lock:
            found = self._open.of(stream)
        for one in found:
            if not one.sent:
                self._complete(one.id, Completion("ended", "withdrawn: the stream ended first"), unsent=True)
            elif outcome in NOT_DONE:
                self._complete(one.id, Completion("unconfirmed", f"the stream ended as {outcome}"))
            else:
                self._complete(one.id, Completion("done", f"the stream ended as {outcome}"))

    def tick(self, now_ns: int) -> None:
        """Check the open actions: complete those that are seen to be done, or were waited for long enough."""
        with self._lock:
            sent = [one for one in self._open if one.what.wedged_ns is not None]
        to_look_for: dict[str, list[_Open]] = {}
        for one in sent:
            executor, wedged_ns = one.what.executor, one.what.wedged_ns
            if wedged_ns is not None and wedged_ns <= now_ns:
                waited = f"not seen within {self.wedge_timeout_s:g} s"
                self._complete(one.id, Completion("unconfirmed", waited))
            elif not executor.in_stream and executor.target not in self._checked:
                to_look_for.setdefault(executor.target, []).append(one)
        for receiver, found in to_look_for.items():
            checking = threading.Thread(
                target=self._evaluate, args=(receiver, found), name="otel-llm-look", daemon=True
            )
            self._checked.add(receiver)
            try:
                checking.start()
            except RuntimeError:  # no thread can be started: at a later tick
                self._checked.discard(receiver)

    def stop(self, grace_s: float) -> None:
        """Accept nothing more; wait for what is under way, and complete what is still open then."""
        self._stop.set()
        with self._empty:
            self._empty.wait_for(lambda: not self._open, grace_s)
            left = [(one.id, one.sent) for one in self._open]
        for action_id, sent in left:
            why = "this process stopped"
            self._complete(action_id, Completion("unconfirmed" if sent else "expired", why))
        self._lanes.stop()

    def counts(self) -> dict[str, int]:
        """Return the number of actions by outcome, and how many are open."""
        with self._lock:
            return {
                **{f"actions.{outcome}": count for outcome, count in self._open.outcomes.items()},
                **{f"{CIRCUIT_OPEN}{name}": int(breaker.open) for name, breaker in self._breakers.items()},
                "actions_open": len(self._open),
                "action_tries": self._delivery.tries,
            }

    def notes(self) -> Sequence[str]:
        """Return a sentence for each receiver to which nothing is sent now."""
        with self._lock:
            refusals = {name: breaker.refusal(self.now_ns()) for name, breaker in self._breakers.items()}
        return [f"no actions are sent to {name}: {why}" for name, why in refusals.items() if why is not None]

    def awaited(self) -> int:
        """Return how many open actions were sent, and are not seen to be done yet."""
        with self._lock:
            return sum(one.what.wedged_ns is not None for one in self._open)

    def is_idle(self) -> bool:
        """Tell whether no action is open, and nothing is kept of those that were."""
        with self._lock:
            return self._open.is_idle

    def _begin(self, order: Order, completed: Callable[[Completion], None]) -> Completion | None:
        if self._stop.is_set():
            return Completion("expired", "the collector is stopping")
        executor = self.find(order)
        if isinstance(executor, str):
            return Completion("failed", executor)
        with self._lock:
            exclusive = [("instance", order.instance)] if executor.exclusive else []
            tenant = order.decision.tenant
            own, every = self._open.of_tenant(tenant), len(self._open)
            if not has_room(own, every, MOST_WAITING):
                return Completion(
                    "failed", f"too many are open: {own} of this tenant, {every} of {MOST_WAITING} in all"
                )
            if (refusal := self._breakers[executor.target].refusal(self.now_ns())) is not None:
                return Completion("failed", f"not sent to {executor.target}: {refusal}")
            if (refused := self._open.refusal(order.id, exclusive)) is not None:
                return refused
            what, about = _Sending(order, executor), _about(order, executor)
            self._open.open(OpenAction(order.id, what, completed, tenant, exclusive, about))
        self._lanes.put(executor.target, order.id)
        return None

    def _work(self, receiver: str, action_id: str) -> None:
        with self._lock:
            one = self._open.get(action_id)
            if one is None:
                return
            breaker = self._breakers[receiver]
            refusal = breaker.refusal(self.now_ns())
            if refusal is None:
                breaker.begin()
                one.sent = True  # from here on it cannot be withdrawn
        if refusal is not None:
            self._complete(action_id, Completion("failed", f"not sent to {receiver}: {refusal}"))
            return
        try:
            result = self._delivery.deliver(one.what.order, one.what.executor)
            self._note(receiver, breaker, None if isinstance(result, NotSent) else result.late)
            self._delivered(one, result)
        except Exception as bug:  # a bug of ours must not stop the thread
            log.exception("otel-llm: an action could not be done")
            self._note(receiver, breaker, None)
            self._complete(action_id, Completion("unconfirmed", f"a bug of ours: {type(bug).__name__}"))

    def _note(self, receiver: str, breaker: CircuitBreaker, hung: bool | None) -> None:
        """Tell the breaker how an action went, and the log when the circuit opens or closes."""
        with self._lock:
            before = breaker.open
            breaker.end(self.now_ns(), hung=hung)
            now = breaker.open
        if before != now:
            log.warning("otel-llm: %s to %s", "no actions are sent" if now else "actions are sent again", receiver)

    def _evaluate(self, receiver: str, actions: Sequence[_Open]) -> None:
        """Complete those of a receiver's open actions that are seen to be done."""
        try:
            for one in actions:
                if one.what.executor.check(CHECK_TIMEOUT_S):
                    self._complete(one.id, Completion("done", "seen"))
        except Exception:  # a bug of ours must not end the check
            log.exception("otel-llm: an action could not be checked")
        finally:
            self._checked.discard(receiver)

    def _delivered(self, one: _Open, result: Reply | NotSent) -> None:
        executor = one.what.executor
        if isinstance(result, NotSent):
            self._complete(one.id, Completion(result.outcome, result.detail))
            return
        lost = result.result == "again" and not result.maybe_sent
        if result.result == "refused" or lost:
            self._complete(one.id, Completion("failed", result.detail))
        elif result.result == "done":
            self._complete(one.id, Completion("done", result.detail))
        elif executor.in_stream or (seen := executor.check(CHECK_TIMEOUT_S)) is False:
            with self._lock:
                one.what.wedged_ns = self.now_ns() + int(self.wedge_timeout_s * 1e9)
        elif seen:
            self._complete(one.id, Completion("done", "seen"))
        elif result.result == "accepted":
            self._complete(one.id, Completion("sent", result.detail))
        else:
            self._complete(one.id, Completion("unconfirmed", result.detail))

    def _watch(self) -> None:
        while not self._stop.wait(EVALUATION_EVERY_S):
            if self._open:
                self.tick(self.now_ns())

    def _complete(self, action_id: str, completed: Completion, *, unsent: bool = False) -> None:
        """Complete an open action; with `unsent`, only if it was not sent meanwhile."""
        with self._lock:
            one = self._open.close(action_id, completed.outcome, unsent=unsent)
            if one is None:
                return
            self._empty.notify_all()
        one.completed(completed)


def _firing(decision: Decision) -> Hashable:
    return decision.rule_hash, decision.subject


def _about(order: Order, executor: Executor) -> list[Hashable]:
    firing = _firing(order.decision)
    return [firing, order.decision.stream] if executor.in_stream and order.decision.stream is not None else [firing]
