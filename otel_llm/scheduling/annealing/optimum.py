"""The optimum of the objective, exactly: Dinkelbach's method on a ratio.

The objective is a ratio. At the best ratio found so far, met and latency have a price each; a schedule whose value is
positive at these prices has a better ratio, and there is none once the largest value is 0 (Dinkelbach, 1967).
"""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Final

from otel_llm.scheduling.annealing.batch_optimum import BatchOptimum
from otel_llm.scheduling.annealing.batches import BatchTable
from otel_llm.scheduling.annealing.order_optimum import best_order
from otel_llm.scheduling.annealing.schedule import Schedule, plan_of
from otel_llm.scheduling.annealing.search import anneal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_llm.scheduling.annealing.batches import Batch
    from otel_llm.scheduling.annealing.jobs import Job, Plan
    from otel_llm.scheduling.annealing.prediction import Predictor, Profile
    from otel_llm.scheduling.annealing.schedule import Score

MOST_JOBS: Final = 16
"""With single jobs: 65,536 subsets."""
MOST_JOBS_IN_BATCHES: Final = 12


def exact(jobs: Sequence[Job], profile: Profile | Predictor, max_batch: int = 1) -> Plan:
    """Return a plan with the greatest objective that any order and batches have.

    Raises: ValueError for more than 16 jobs, or 12 in batches; for a `max_batch` or a job that the profile forbids.
    """
    table = BatchTable(jobs, profile, max_batch)
    most = MOST_JOBS if max_batch == 1 else MOST_JOBS_IN_BATCHES
    if len(jobs) > most:
        raise ValueError(f"exact takes at most {most} jobs with max_batch {max_batch}, not {len(jobs)}; use anneal")
    # A good start saves rounds, and leaves little that could be better.
    start = anneal(jobs, profile, max_batch)
    batches = [batch for members in start.batches if (batch := table.get(sum(1 << index for index in members)))]
    return plan_of(best_from(table, batches)) if jobs else start


def best_from(table: BatchTable, batches: Sequence[Batch]) -> list[Batch]:
    """Return the best batches there are, from any schedule of all jobs; `batches` where none are better."""
    better: Callable[[Score], list[Batch] | None]
    count = len(table.jobs)
    if table.max_batch == 1:
        better = partial(best_order, [table.alone(index) for index in range(count)])
    else:
        better = BatchOptimum(_possible(table), count, table.max_batch).better
    best = Schedule(batches)
    while (found := better(best.score)) is not None:
        schedule = Schedule(found)
        if not schedule.score.better(best.score):
            break
        best = schedule
    return best.batches


def _possible(table: BatchTable) -> list[Batch]:
    """Return all batches that fit, smallest first."""
    jobs = range(len(table.jobs))
    sizes = range(1, min(table.max_batch, len(jobs)) + 1)
    members = (sum(1 << job for job in some) for size in sizes for some in combinations(jobs, size))
    return [batch for some in members if (batch := table.get(some)) is not None]
