"""Annealing told again, slowly: profiles, a walk token by token, every schedule there is, and drawn jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from random import Random

from otel_llm.scheduling import Job

NS = 1_000_000_000


@dataclass(frozen=True)
class Terms:
    base: Fraction
    per_decode: Fraction
    per_kv_token: Fraction
    per_chunk_token: Fraction
    floor_ns: int = 1


@dataclass(frozen=True)
class Linear:
    """A profile by a formula, which says so."""

    terms: Terms
    kv_tokens: int = 1_000_000
    max_batch: int = 64

    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
        terms = self.terms
        sum_ns = (
            terms.base + terms.per_decode * decodes + terms.per_kv_token * kv_tokens + terms.per_chunk_token * chunk
        )
        return max(terms.floor_ns, int(sum_ns + Fraction(1, 2)))


@dataclass(frozen=True)
class Hidden:
    """The same numbers from a profile that does not say that it is linear."""

    linear: Linear

    @property
    def kv_tokens(self) -> int:
        return self.linear.kv_tokens

    @property
    def max_batch(self) -> int:
        return self.linear.max_batch

    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
        return self.linear.iteration_ns(decodes, kv_tokens, chunk, prior)


@dataclass(frozen=True)
class Uneven:
    """A profile with dips, so that more work may take less time."""

    kv_tokens: int = 1_000_000
    max_batch: int = 64

    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
        return 5_000_000 + (decodes * 7 + kv_tokens * 13 + chunk * 29) % 11 * 1_000_000


Profile = Linear | Hidden | Uneven
PLAIN = Linear(Terms(Fraction(10_000_000), Fraction(100_000), Fraction(67), Fraction(21_000)))
"""A GPU: another request in a batch costs little."""
STEEP = Linear(Terms(Fraction(2_000_000), Fraction(4_000_000), Fraction(67), Fraction(600_000)))
"""Another request in a batch costs nearly as much as one alone: it is open which ones should share one."""


def walk(jobs: Sequence[Job], batches: Sequence[Sequence[int]], profile: Profile) -> tuple[int, int]:
    """Return how many jobs are met, and the sum of their latencies (ns), one iteration after the other."""
    now_ns = met = latency_ns = 0
    for batch in batches:
        now_ns += profile.iteration_ns(0, 0, sum(jobs[job].input for job in batch), 0)
        first_ns = now_ns
        made = dict.fromkeys(batch, 1)
        left = list(batch)
        while left:
            for job in [job for job in left if made[job] == jobs[job].output]:
                left.remove(job)
                latency_ns += now_ns
                met += is_met(jobs[job], first_ns, now_ns)
            if left:
                now_ns += profile.iteration_ns(len(left), sum(jobs[job].input + made[job] for job in left), 0, 0)
                for job in left:
                    made[job] += 1
    return met, latency_ns


def is_met(job: Job, first_ns: int, end_ns: int) -> bool:
    """Tell whether a job meets its targets."""
    return (
        (job.e2e is None or end_ns <= round(job.e2e * NS))
        and (job.ttft is None or first_ns <= round(job.ttft * NS))
        and (job.tpot is None or end_ns - first_ns <= round(job.tpot * NS) * (job.output - 1))
    )


def schedules(jobs: Sequence[int], max_batch: int) -> Iterator[list[list[int]]]:
    """Yield every sequence of batches of these jobs."""
    if not jobs:
        yield []
    for size in range(1, min(max_batch, len(jobs)) + 1):
        for batch in combinations(jobs, size):
            for rest in schedules([job for job in jobs if job not in batch], max_batch):
                yield [list(batch), *rest]


def best_of_all(jobs: Sequence[Job], profile: Profile, max_batch: int) -> Fraction:
    """Return the greatest objective there is (1/ns): each batch walked once, every schedule added up."""
    everyone = range(len(jobs))
    walked = {
        batch: batch_times(jobs, batch, profile)
        for size in range(1, max_batch + 1)
        for batch in combinations(everyone, size)
        if sum(jobs[job].input + jobs[job].output for job in batch) <= profile.kv_tokens
    }
    best = Fraction(0)
    for schedule in schedules(everyone, max_batch):
        if not all(tuple(batch) in walked for batch in schedule):
            continue
        start_ns = met = latency_ns = 0
        for batch in schedule:
            first_ns, ends_ns = walked[tuple(batch)]
            latency_ns += sum(start_ns + end_ns for end_ns in ends_ns)
            met += sum(
                is_met(jobs[job], start_ns + first_ns, start_ns + end_ns)
                for job, end_ns in zip(batch, ends_ns, strict=True)
            )
            start_ns += max(ends_ns)
        best = max(best, Fraction(met, latency_ns))
    return best


def batch_times(jobs: Sequence[Job], batch: Sequence[int], profile: Profile) -> tuple[int, list[int]]:
    """Return the first token of a batch and the last of each job (ns): a sum over steps for each."""
    first_ns = profile.iteration_ns(0, 0, sum(jobs[job].input for job in batch), 0)
    steps = [first_ns]
    for made in range(1, max(jobs[job].output for job in batch)):
        running = [jobs[job] for job in batch if jobs[job].output > made]
        steps.append(profile.iteration_ns(len(running), sum(job.input + made for job in running), 0, 0))
    return first_ns, [sum(steps[: jobs[job].output]) for job in batch]


def drawn_job(chance: Random, longest: int = 40) -> Job:
    """Return a job whose targets are about as long as a few jobs take; sometimes without."""
    tokens = chance.randrange(1, longest), chance.randrange(1, longest)
    e2e, ttft, tpot = (chance.randrange(0, 40) / scale for scale in (20, 20, 2000))
    return Job(*tokens, e2e=e2e or None, ttft=ttft or None, tpot=tpot or None)


def drawn_jobs(chance: Random, least: int = 1, most: int = 6) -> list[Job]:
    """Return some jobs."""
    return [drawn_job(chance) for _ in range(chance.randrange(least, most + 1))]
