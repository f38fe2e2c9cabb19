"""Send a request to a second backend if the first is late with its first token; whichever speaks first serves it.

The first attempt is never given up for being late: if all backends are merely slow, it serves the request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from otel_llm.relay.attempts.run import close_late
from otel_llm.relay.backends.backends import STREAMING_S
from otel_llm.relay.backends.upstream import UpstreamError
from otel_llm.shared.clock import monotonic_s

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from otel_llm.relay.attempts.run import Run
    from otel_llm.relay.backends.backend import Backend
    from otel_llm.relay.backends.pool import Pool

MEDIANS: Final = 3.0
"""A backend is late after so many times the median of its times to the first token."""
LEAST_S: Final = 0.2
"""... and not before so long: less may be this process, or the network."""
EVALUATION_EVERY_S: Final = 1.0
"""The interval of checks for a reason to hedge, once a backend is late."""


class Hedging:
    """When one request is hedged; one hedge at a time.

    `others` returns the backends that it can be sent to beside one; `silent` is called with one that serves no stream.
    """

    def __init__(
        self, pool: Pool, others: Callable[[Backend], list[Backend]], silent: Callable[[Backend], None]
    ) -> None:
        self._pool = pool
        self._others = others
        self._silent = silent
        self._send: Callable[[], None] | None = None
        self._asked: Backend | None = None
        self._sent_s = 0.0
        self._under_way = False
        self._timer: asyncio.TimerHandle | None = None
        pool.hedges.request()

    def begin(self, asked: Backend, tokens: int) -> None:
        """Note that a backend is asked now, with a prompt of so many tokens."""
        self.end()
        self._asked, self._sent_s = asked, monotonic_s()
        failover, median_s = self._pool.settings.failover, asked.first_tokens.median(tokens)
        after_s = failover.hedge_after_s
        if after_s is None:
            after_s = failover.first_byte_s if median_s is None else max(LEAST_S, MEDIANS * median_s)
        self._evaluate_in(min(after_s, failover.first_byte_s))

    def sends(self, send: Callable[[], None]) -> None:
        """Set the function that starts a hedge; the caller reports its outcome by `completed`."""
        if self._under_way:
            self.completed("refuted")
        self._send = send

    def completed(self, outcome: str) -> None:
        """Note that a hedge has won (`done`), has lost (`refuted`) or has failed."""
        self._under_way = False
        self._pool.metrics.hedged(outcome)

    def end(self) -> None:
        """Hedge no more: there is a token, or the request is over."""
        self._asked = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _evaluate_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._evaluate)

    def _evaluate(self) -> None:
        asked = self._asked
        if asked is None:
            return
        self._evaluate_in(EVALUATION_EVERY_S)
        if self._send is not None and not self._under_way and self._may(asked):
            self._under_way = True
            self._send()

    def _may(self, asked: Backend) -> bool:
        """Tell whether to hedge now: by the budget, or because the backend is down, while another one is well."""
        backends, now_s = self._pool.backends, monotonic_s()
        others = [one for one in self._others(asked) if backends.is_well(one)]
        if not others:
            return False
        if not backends.is_well(asked):
            return True
        waited_s = now_s - self._sent_s
        if (
            waited_s >= self._pool.settings.failover.first_byte_s
            and asked.heard_s < self._sent_s
            and any(one.heard_s > now_s - STREAMING_S for one in others)
        ):  # it serves no stream, and others do: no overload
            self._silent(asked)
            return True
        return self._pool.hedges.take()


class HedgedAttempt:
    """The attempt of one backend, and perhaps one beside it, until the first has an answer."""

    def __init__(self) -> None:
        self._beside: asyncio.Task[Run] | None = None
        self._first: asyncio.Timeout | None = None

    async def first(self, attempt: Coroutine[Any, Any, Run], failed: Callable[[UpstreamError], None]) -> Run | None:
        """Return what the attempt brings, or sooner the one beside it; None if both fail, after `failed` was called."""
        try:
            try:
                async with asyncio.timeout(None) as self._first:
                    return await attempt
            except UpstreamError as problem:
                self._first = None
                failed(problem)
                if self._beside is not None:
                    await asyncio.wait({self._beside})
            except TimeoutError:  # the one beside it was sooner
                pass
            beside, self._beside = self._beside, None
            return None if beside is None or beside.exception() is not None else beside.result()
        finally:
            self._first = None
            if self._beside is not None:
                self._beside.cancel()
                self._beside.add_done_callback(close_late)

    def beside(self, attempt: Coroutine[Any, Any, Run], failed: Callable[[UpstreamError], None]) -> None:
        """Begin another attempt; `failed` is called if it fails."""

        def over(task: asyncio.Task[Run]) -> None:
            if task.cancelled():
                return
            problem = task.exception()
            if problem is None:
                if self._first is not None:
                    self._first.reschedule(asyncio.get_running_loop().time())
                return
            if self._beside is task and self._first is not None:
                self._beside = None
            if isinstance(problem, UpstreamError):
                failed(problem)

        self._beside = asyncio.get_running_loop().create_task(attempt)
        self._beside.add_done_callback(over)


def hedge_completed(hedging: Hedging) -> Callable[[str, str, Mapping[str, Any]], None]:
    """Return what a move calls at its end, if it is a hedge."""
    return lambda outcome, _detail, _facts: hedging.completed(outcome)
