"""Judge batches on one core or on all of them, with equal results in the order of the input."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.audit.kernel.judge_batch import judge_batch
from otel_llm.audit.kernel.window_totals import window_partials

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from concurrent.futures import Future

    import pyarrow as pa

    from otel_llm.slo.classes import SloClasses

SMALL_BATCHES: Final = 3
"""The number of batches judged in this process before others are started, which takes longer than judging these."""


class WorkerError(RuntimeError):
    """A process that judged batches is gone."""


class Outcome(NamedTuple):
    """A batch of streams, its judged requests, and its contributions to windows (None: not wanted)."""

    streams: pa.RecordBatch
    judged: pa.RecordBatch
    partials: pa.RecordBatch | None


@dataclass(frozen=True, slots=True)
class Work:
    """The work on each batch: judge by these classes, and charge windows of this length (None: none)."""

    classes: SloClasses
    window_ns: int | None
    lateness_ns: int

    def __call__(self, streams: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        """Return the judged requests of a batch and the partial totals of its windows."""
        judged = judge_batch(streams, self.classes)
        if self.window_ns is None:
            return judged, None
        return judged, window_partials(streams, judged, self.classes, self.window_ns, self.lateness_ns)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def outcomes(
    batches: Iterable[pa.RecordBatch], work: Work, jobs: int, small_batches: int = SMALL_BATCHES
) -> Generator[Outcome]:
    """Yield the outcome of each batch, in order; `jobs` processes, this one (which reads) among them.

    Others are started only if there are more than `small_batches`.

    Raises:
        WorkerError: one of them was killed, or could not start.
    """
    rest = iter(batches)
    if jobs < 2:
        yield from (Outcome(batch, *work(batch)) for batch in rest)
        return
    for _, batch in zip(range(small_batches), rest, strict=False):
        yield Outcome(batch, *work(batch))
    following = next(rest, None)
    if following is None:
        return
    others = jobs - 1
    pool = ProcessPoolExecutor(others, mp_context=get_context("spawn"), initializer=_begin, initargs=(work,))
    waiting: deque[tuple[pa.RecordBatch, Future[tuple[pa.RecordBatch, pa.RecordBatch | None]]]] = deque()
    try:
        waiting.append((following, pool.submit(_run, following)))
        for batch in rest:
            while len(waiting) > 2 * others:
                yield _done(*waiting.popleft())
            waiting.append((batch, pool.submit(_run, batch)))
        while waiting:
            yield _done(*waiting.popleft())
    except BrokenProcessPool as error:
        raise WorkerError(
            "a process that judged requests is gone: killed (for want of memory?), or it could not start; "
            "use fewer (--jobs 1, jobs=1), and in a script of your own call the audit below "
            '`if __name__ == "__main__":`'
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _done(batch: pa.RecordBatch, future: Future[tuple[pa.RecordBatch, pa.RecordBatch | None]]) -> Outcome:
    return Outcome(batch, *future.result())


_work: list[Work] = []


def _begin(work: Work) -> None:
    _work[:] = [work]


def _run(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    return _work[0](batch)
