"""Batches as the searches see them: what a batch adds to the objective when it starts at a given time."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.scheduling.annealing.jobs import to_ns
from otel_llm.scheduling.annealing.prediction import Predictor, Profile, as_predictor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.scheduling.annealing.jobs import Job

NEVER: Final = -1
"""The latest start of a job that misses its targets even when its batch starts at once."""
ALWAYS: Final = 1 << 100
"""The latest start of a job without targets for its first and last token: later than any sum of iterations."""


class Batch(NamedTuple):
    """Some jobs that run together; times from the start of the batch (ns).

    `members`: bit i stands for job i; `jobs` are their indexes, ascending. `times` has for each the end, and the latest
    start of the batch at which it meets its targets, `NEVER` if there is none. `ends_ns` is the sum of these ends,
    `latest_ns` are these starts, ascending.
    """

    size: int
    duration_ns: int
    ends_ns: int
    latest_ns: tuple[int, ...]
    members: int
    jobs: tuple[int, ...]
    times: tuple[tuple[int, int], ...]

    def met(self, start_ns: int) -> int:
        """Return how many of its jobs meet their targets if it starts then."""
        return self.size - bisect_left(self.latest_ns, start_ns)

    def latency_ns(self, start_ns: int) -> int:
        """Return the sum of the end-to-end latencies of its jobs if it starts then."""
        return self.size * start_ns + self.ends_ns


class BatchTable:
    """The batches of some jobs, each predicted once.

    Raises: ValueError for a `max_batch` outside of 1 to the profile's, or a job that is larger than the KV cache.
    """

    def __init__(self, jobs: Sequence[Job], profile: Profile | Predictor, max_batch: int) -> None:
        self._predictor = as_predictor(profile)
        most, self._kv_tokens = self._predictor.profile.max_batch, self._predictor.profile.kv_tokens
        if not isinstance(max_batch, int) or isinstance(max_batch, bool) or not 1 <= max_batch <= most:
            raise ValueError(f"max_batch is {max_batch!r}; give a number from 1 to the profile's max_batch, {most}")
        for index, job in enumerate(jobs):
            if job.input + job.output > self._kv_tokens:
                raise ValueError(
                    f"job {index} has {job.input} + {job.output} tokens, the profile's KV cache holds "
                    f"{self._kv_tokens}; leave the job out"
                )
        self.jobs = jobs
        self.max_batch = max_batch
        self._predicted: dict[int, Batch | None] = {}

    def get(self, members: int) -> Batch | None:
        """Return the batch of these jobs; None if there are more than `max_batch`, or if their KV does not fit."""
        try:
            return self._predicted[members]
        except KeyError:
            batch = self._predicted[members] = self._make(members)
            return batch

    def fill(self, order: Sequence[int]) -> list[Batch]:
        """Return the batches of an order, each as large as `max_batch` and the KV cache allow."""
        batches: list[Batch] = []
        for index in order:
            wider = self.get(batches[-1].members | 1 << index) if batches else None
            if wider is None:
                batches.append(self.alone(index))
            else:
                batches[-1] = wider
        return batches

    def alone(self, index: int) -> Batch:
        """Return the batch of one job."""
        batch = self.get(1 << index)
        if batch is None:
            raise AssertionError("a job that was let in fits alone")
        return batch

    def _make(self, members: int) -> Batch | None:
        if members.bit_count() > self.max_batch:
            return None
        of = tuple(index for index in range(members.bit_length()) if members >> index & 1)
        jobs = [self.jobs[index] for index in of]
        if sum(job.input + job.output for job in jobs) > self._kv_tokens:
            return None
        first_ns, ends_ns = self._predictor.times(jobs)
        times = [(end_ns, _latest_start_ns(job, first_ns, end_ns)) for job, end_ns in zip(jobs, ends_ns, strict=True)]
        latest_ns = tuple(sorted(latest for _, latest in times))
        return Batch(len(jobs), max(ends_ns), sum(ends_ns), latest_ns, members, of, tuple(times))


def _latest_start_ns(job: Job, first_ns: int, end_ns: int) -> int:
    """Return the latest start of its batch at which a job meets its targets; `NEVER` if there is none (eq. 7 to 9)."""
    e2e_ns, ttft_ns, tpot_ns = to_ns(job.e2e), to_ns(job.ttft), to_ns(job.tpot)
    if tpot_ns is not None and end_ns - first_ns > tpot_ns * (job.output - 1):
        return NEVER
    by_end_ns = ALWAYS if e2e_ns is None else e2e_ns - end_ns
    by_first_ns = ALWAYS if ttft_ns is None else ttft_ns - first_ns
    return max(NEVER, min(by_end_ns, by_first_ns))
