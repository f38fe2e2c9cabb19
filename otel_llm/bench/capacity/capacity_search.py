"""A capacity search from its first probe to its interval."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.bench.capacity.observations import INTERRUPTED, WARM_UP_REQUESTS, WARM_UP_S, SourceError
from otel_llm.bench.capacity.probe_decision import ClauseFinding, ProbeDecision
from otel_llm.bench.capacity.rate_search import RateSearch, Verdict
from otel_llm.bench.capacity.statistics.error_budget import most_probes, probe_levels
from otel_llm.bench.capacity.statistics.virtual_queue import virtual_queues

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_llm.bench.capacity.objective import CapacityObjective
    from otel_llm.bench.capacity.observations import ProbeEnd, ProbeSource
    from otel_llm.bench.capacity.statistics.virtual_queue import VirtualQueue

PROBE_SHARE: Final = 0.3
"""No probe takes more of the budget."""
LEAST_SHARE: Final = 0.03
"""No probe begins with less of the budget: it could hardly be decided, and what little it shows could be wrong."""
MOST_REPEATS: Final = 3
"""An invalid probe is repeated so many times; then it is undecided."""
FIRST_LOOK: Final = 100
LOOK_GROWTH: Final = 1.1
"""From one look to the next the requests grow by so much: a look costs as much as there are."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What to search for: `budget` in the unit of the source's costs, rates in requests/s."""

    objective: CapacityObjective
    bottom: float
    top: float
    precision: float = 0.1
    confidence: float = 0.95
    budget: float = 30_000
    control_variates: bool = True


class ProbeResult(NamedTuple):
    """A probe that ended; `finding` is the clause that its verdict rests on, `slope` the growth of its backlog.

    `inflations`: of each clause, see `ClauseFinding`.
    """

    rate: float
    verdict: Verdict
    finding: ClauseFinding | None
    slope: float | None
    backlog_grows: bool
    end: ProbeEnd
    inflations: Sequence[float] = ()


@dataclass(slots=True)
class CapacityResult:
    """The interval [low, high] requests/s, as far as it was found, the probes, and why the search ended."""

    plan: SearchPlan
    low: float | None = None
    high: float | None = None
    decided: bool = False
    why: str | None = None
    probes: list[ProbeResult] = field(default_factory=list)

    @property
    def spent(self) -> float:
        """Return what the probes cost."""
        return sum(probe.end.cost for probe in self.probes)


def find_capacity(
    plan: SearchPlan,
    source: ProbeSource,
    report: Callable[[CapacityResult], None] | None = None,
    queues: Sequence[Sequence[VirtualQueue]] | None = None,
) -> CapacityResult:
    """Search for the highest rate at which the objective holds; `report` is called after each probe.

    `queues`: those of `control_queues`, where several searches share a law of the load.

    Ctrl-C (KeyboardInterrupt) and a SourceError end the search with the interval so far; the probe that they end is
    among the probes, undecided.
    """
    search = RateSearch(plan.bottom, plan.top, plan.precision)
    allowed = most_probes(plan.bottom, plan.top, plan.precision)
    levels = probe_levels(plan.confidence, allowed, len(plan.objective.clauses))
    result = CapacityResult(plan)
    repeats = valid = 0
    try:
        queues = control_queues(plan, source) if queues is None else queues
        while (rate := search.next_rate()) is not None:
            left = plan.budget - result.spent
            if left < plan.budget * LEAST_SHARE or valid == allowed:
                break
            known = inflations_below(rate, result.probes)
            decision = ProbeDecision(rate, plan.objective.clauses, levels, queues, plan.control_variates, known)
            probe, problem = _run_probe(decision, source, min(plan.budget * PROBE_SHARE, left))
            result.probes.append(probe)
            if problem is not None:
                result.why = problem
                return result
            if probe.end.invalid is None:
                valid, repeats = valid + 1, 0
                search.record(rate, probe.verdict)
            elif repeats < MOST_REPEATS:
                repeats += 1
            else:
                repeats = 0
                search.record(rate, "undecided")
            result.low, result.high, result.decided = search.low, search.high, search.decided
            if report is not None:
                report(result)
    except (KeyboardInterrupt, SourceError) as stop:
        result.why = str(stop) or INTERRUPTED
        return result
    result.why = _why(result, search, alpha_spent=valid == allowed)
    return result


def control_queues(plan: SearchPlan, source: ProbeSource) -> list[list[VirtualQueue]]:
    """Return the virtual queues of each clause; none where the law of the load is unknown."""
    reference = source.reference()
    if reference is None:
        return [[] for _ in plan.objective.clauses]
    return [virtual_queues(reference, float(clause.target)) for clause in plan.objective.clauses]


def _run_probe(decision: ProbeDecision, source: ProbeSource, limit: float) -> tuple[ProbeResult, str | None]:
    """Run a probe to its end; return it, and why the search cannot go on, None where it can."""
    probe = source.begin(decision.rate, limit)
    wanted, problem = FIRST_LOOK, None
    try:
        while (seen := probe.observe(wanted)) is not None:
            wanted = int(LOOK_GROWTH * len(seen.load.at)) + 1
            if decision.look(seen) != "undecided" or decision.is_hopeless(seen, probe.most_requests):
                break
    except (KeyboardInterrupt, SourceError) as stop:
        problem = str(stop) or INTERRUPTED
    end = probe.end()
    verdict = decision.verdict if end.invalid is None else "undecided"
    slope, grows = decision.backlog.slope, decision.backlog.grows
    inflations = [finding.inflation for finding in decision.findings]
    return ProbeResult(decision.rate, verdict, decision.deciding, slope, grows, end, inflations), problem


def inflations_below(rate: float, probes: Sequence[ProbeResult]) -> list[float]:
    """Return the greatest inflation of each clause that valid probes at lower rates have seen; empty for none.

    Correlation grows with the rate up to the capacity. A calm stretch near it does not show its own.
    """
    seen = [probe.inflations for probe in probes if probe.rate < rate and probe.end.invalid is None]
    return [max(of_clause) for of_clause in zip(*filter(None, seen), strict=True)]


def _why(result: CapacityResult, search: RateSearch, *, alpha_spent: bool) -> str | None:
    """Return why the search did not decide, None where it did."""
    if result.decided:
        return None
    if search.high is not None and search.high <= search.bottom:
        return "the objective fails at the lowest rate: the capacity is below the range"
    if search.low is not None and search.low >= search.top:
        return "the objective holds at the highest rate: the capacity is above the range"
    if alpha_spent:
        why = "the error budget is spent: too many probes were undecided"
    elif search.next_rate() is None:
        why = "no rate left to probe: those between the ends are undecided"
    else:
        why = "the budget is spent"
    if all(probe.finding is None for probe in result.probes):
        why += (
            f"; no probe was longer than its warm-up ({WARM_UP_REQUESTS} requests, {WARM_UP_S:g} s): raise the budget"
        )
    invalid = [probe.end.invalid for probe in result.probes if probe.end.invalid is not None]
    return f"{why}; {len(invalid)} probes were not valid, the last one because {invalid[-1]}" if invalid else why
