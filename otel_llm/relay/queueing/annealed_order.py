"""The annealed order of a queue: planned in a thread, again and again while requests wait.

The loop goes on meanwhile. It waits for the planning thread no longer than the interpreter's switch interval (5 ms) at
a time, however long a plan takes; a search in the loop itself could not be bounded, since a table's sums are made at
their first use. A process of its own would need a second core.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from otel_llm.scheduling.release_order import plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_llm.scheduling.annealing import Predictor
    from otel_llm.scheduling.release_order import WaitingRequest

REST: Final = 4.0
"""The pause behind a plan, times the time that it took: planning takes a fifth of the core at most."""
log = logging.getLogger(__name__)


class AnnealedOrder:
    """The planner; made in the running loop.

    `slots` returns the slots of the engine that is planned for, `waiting` the requests in a list of the caller's
    that does not change; `apply` gets the numbers of a plan; some of them may have left meanwhile. `now_ns`: the clock
    of arrivals.
    """

    def __init__(
        self,
        predictor: Predictor,
        slots: Callable[[], int],
        waiting: Callable[[], Sequence[WaitingRequest]],
        apply: Callable[[list[int]], None],
        now_ns: Callable[[], int],
    ) -> None:
        self._predictor = predictor
        self._slots = slots
        self._waiting = waiting
        self._apply = apply
        self._now_ns = now_ns
        self._thread = ThreadPoolExecutor(1, "otel-llm-annealing")
        self._task: asyncio.Task[None] | None = None
        self._stale = False

    def changed(self) -> None:
        """Plan anew: requests have come or gone."""
        self._stale = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """Stop planning; a plan under way is dropped."""
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._stale:
                self._stale = False
                waiting = self._waiting()
                if len(waiting) < 2:
                    break
                begun_s = loop.time()
                order = await loop.run_in_executor(
                    self._thread, plan, waiting, self._predictor, self._slots(), self._now_ns()
                )
                self._apply(order)
                await asyncio.sleep(REST * (loop.time() - begun_s))
        except Exception:  # a bug of ours must not stop the queue: it goes on by arrival
            log.exception("otel-llm: the order of the queue could not be planned")
        finally:
            self._task = None
