"""Deliver one action: one try and at most one more, never after its time to live.

An action is worth something only as long as the stall that it answers: hundreds of milliseconds. So there are no
retries with growing pauses. When the first try fails in a way that a second may not, or half of the time has passed
without an answer, it is tried once more under the same id, by which the receiver knows that it is the same action.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from otel_llm.actions.execute.executor import Reply
from otel_llm.actions.execute.lanes import AT_ONE_RECEIVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.actions.execute.events import Order
    from otel_llm.actions.execute.executor import Executor
    from otel_llm.rules.decisions.decision_records import Outcome

PAUSE_NS: Final = 20_000_000
"""The pause between a try that failed at once and the second."""
TRIES: Final = 2
MOST_HANGING: Final = TRIES * AT_ONE_RECEIVER
"""Tries under way at one time for one receiver; one that waits for the resolution of a name outlives its action."""
HANG_NS: Final = 500_000_000
"""The shortest time without an answer that says something of the receiver, and not of the action's ttl."""


@dataclass(frozen=True, slots=True)
class NotSent:
    """Nothing was sent: the action's outcome, and why."""

    outcome: Outcome
    detail: str


@dataclass(slots=True)
class Delivery:
    """The delivery of actions, each in the calling thread.

    `now_ns`: the collector's clock; `forbidden` returns why nothing may be sent now, None when it may. It is called
    before each try.
    """

    now_ns: Callable[[], int]
    forbidden: Callable[[], NotSent | None]
    tries: int = 0
    """Requests made, second ones too."""
    _hanging: Counter[str] = field(default_factory=Counter)
    """Tries under way, by receiver."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def deliver(self, order: Order, executor: Executor) -> Reply | NotSent:
        """Send an action and return its result, before the action expires or the executor's timeout ends.

        A reply is `late` if the receiver had time enough, and used it up.
        """
        begun_ns = self.now_ns()
        until_ns = min(order.expires_ns, begun_ns + int(executor.timeout_s * 1e9))
        result = self._deliver(order, executor, begun_ns, until_ns)
        if isinstance(result, Reply) and until_ns - begun_ns < HANG_NS:
            return replace(result, late=False)
        return result

    def _deliver(self, order: Order, executor: Executor, begun_ns: int, until_ns: int) -> Reply | NotSent:
        answers: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        not_sent = self._try(order, executor, answers, until_ns)
        if not_sent is not None:
            return not_sent
        again_ns: int | None = begun_ns + (until_ns - begun_ns) // 2
        open_tries, maybe_sent, detail, late = 1, False, "no answer in time", False
        while True:
            now_ns = self.now_ns()
            next_ns = until_ns if again_ns is None else min(until_ns, again_ns)
            try:
                reply = answers.get(timeout=max(next_ns - now_ns, 0) / 1e9)
            except queue.Empty:
                now_ns = self.now_ns()
                if again_ns is not None and again_ns <= now_ns < until_ns:
                    again_ns = None
                    open_tries += self._try(order, executor, answers, until_ns) is None
                if now_ns >= until_ns or (not open_tries and again_ns is None):
                    return Reply("again", detail, maybe_sent=maybe_sent or open_tries > 0, late=late or open_tries > 0)
                continue
            if reply.result != "again":
                return reply
            open_tries -= 1
            maybe_sent, detail, late = maybe_sent or reply.maybe_sent, reply.detail, reply.late
            if again_ns is not None:
                again_ns = self.now_ns() + max(PAUSE_NS, int(min(reply.after_s, 3600.0) * 1e9))
                if again_ns >= until_ns:
                    again_ns = None
            if not open_tries and again_ns is None:
                return Reply("again", detail, maybe_sent=maybe_sent, late=late)

    def _try(
        self, order: Order, executor: Executor, answers: queue.SimpleQueue[Reply], until_ns: int
    ) -> NotSent | None:
        """Start a try, unless it is too late or not allowed."""
        not_sent = self.forbidden()
        if not_sent is not None:
            return not_sent
        now_ns = self.now_ns()
        if now_ns >= order.expires_ns:
            return NotSent("expired", f"its time to live was over {(now_ns - order.expires_ns) / 1e6:.0f} ms ago")
        target = executor.target
        with self._lock:
            if self._hanging[target] >= MOST_HANGING:
                return NotSent("failed", f"{MOST_HANGING} tries at {target} are under way and not answered")
            self._hanging[target] += 1
            self.tries += 1
        timeout_s = max(until_ns - now_ns, 1) / 1e9

        def run() -> None:
            try:
                reply = executor.attempt(order, now_ns, timeout_s)
            except Exception as bug:  # noqa: BLE001  an executor raises nothing; one that does has not done it for certain
                reply = Reply("again", f"a bug of ours: {type(bug).__name__}", maybe_sent=True)
            finally:
                self._free(target)
            answers.put(reply)

        try:
            threading.Thread(target=run, name="otel-llm-action", daemon=True).start()
        except RuntimeError as problem:  # no thread can be started
            self._free(target)
            return NotSent("failed", str(problem))
        return None

    def _free(self, target: str) -> None:
        with self._lock:
            self._hanging[target] -= 1
            if not self._hanging[target]:
                del self._hanging[target]
