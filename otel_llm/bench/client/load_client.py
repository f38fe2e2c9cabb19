"""The load client: worker processes for one server, and runs one after another.

How a run is started and observed:

    target = Target.read(url, model=..., api="chat", headers=..., key=...)
    spec = PromptSpec(seed, salt=...)
    learned = learn(target, spec)                 # raises UnreachableError, LearningError
    spec = replace(spec, lengths=learned.lengths)
    plan = LoadPlan(at_ns, input_tokens, output_tokens, first_number=0)
    with LoadClient(target, learned, spec, workers=1) as client:
        run = client.start(plan)
        while run.sending:
            for request in run.step(0.1):         # those that changed: sent, tokens, ended
                ...
            if decided:
                run.stop()                        # send no further request; those in flight go on
        run.drain(60.0)                           # wait, then cancel what has not ended
        run.validity()                            # valid, why, send_lag_ms, cpu

A prompt depends on the spec and its request's number: give each run a `first_number` above the last one's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

import numpy as np

from otel_llm.bench.client.load_run import LoadRun
from otel_llm.bench.client.messages import Configure, Run
from otel_llm.bench.client.workers import Workers
from otel_llm.shared.clock import monotonic_ns

if TYPE_CHECKING:
    from otel_llm.bench.client.learning import Learned
    from otel_llm.bench.client.target import Target
    from otel_llm.bench.plan.load_plan import LoadPlan
    from otel_llm.bench.plan.prompts import PromptSpec

LEAD_NS: Final = 200_000_000
"""The time between the start of a run and its time 0, in which the workers get ready."""


class LoadClient:
    """Worker processes for one target; a context manager.

    Args:
        target: the server.
        learned: what it refuses, and where it is.
        spec: of the prompts.
        workers: processes, each of one core.

    Raises:
        WorkerDiedError: a worker does not start.
    """

    def __init__(self, target: Target, learned: Learned, spec: PromptSpec, *, workers: int = 1) -> None:
        self._workers = Workers(workers, Configure(target, learned.address, learned.options, spec))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.close()

    @property
    def pids(self) -> list[int]:
        """Return the numbers of the worker processes."""
        return self._workers.pids

    def start(
        self,
        plan: LoadPlan,
        *,
        concurrency: int | None = None,
        requests: int | None = None,
        duration_ns: int | None = None,
    ) -> LoadRun:
        """Start a run, after the last one has finished; it begins LEAD_NS from now.

        `concurrency`: of a closed loop (a plan without times), which ends after `requests` or `duration_ns`.
        """
        started_ns = monotonic_ns() + LEAD_NS
        count = self._workers.count
        for index in range(count):
            if plan.at_ns is not None:
                run = _open_share(plan, started_ns, index, count)
            else:
                until_ns = None if duration_ns is None else started_ns + duration_ns
                run = Run(
                    started_ns,
                    plan.input_tokens,
                    plan.output_tokens,
                    concurrency=_share_of(concurrency or 1, index, count),
                    first=plan.first_number + index,
                    step=count,
                    until_ns=until_ns,
                    most=None if requests is None else _share_of(requests, index, count),
                )
            self._workers.send(index, run)
        return LoadRun(self._workers, started_ns, open_loop=plan.at_ns is not None)


def _open_share(plan: LoadPlan, started_ns: int, index: int, count: int) -> Run:
    assert plan.at_ns is not None  # noqa: S101
    numbers = np.arange(plan.first_number + index, plan.first_number + len(plan), count, dtype=np.int64)
    rows = slice(index, None, count)
    return Run(started_ns, plan.input_tokens[rows], plan.output_tokens[rows], numbers, started_ns + plan.at_ns[rows])


def _share_of(total: int, index: int, count: int) -> int:
    """Return a worker's part of a total."""
    return total // count + (index < total % count)
