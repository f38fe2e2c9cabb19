"""A capacity search from its first probe to its interval."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import copysign, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_llm.bench.capacity.objective import HELD, UNREPORTED
from otel_llm.bench.capacity.observations import INTERRUPTED, WARM_UP_REQUESTS, WARM_UP_S, SourceError
from otel_llm.bench.capacity.rate_search import RateSearch, Verdict
from otel_llm.bench.capacity.statistics.backlog import BacklogTest
from otel_llm.bench.capacity.statistics.error_budget import most_probes, probe_levels
from otel_llm.bench.capacity.statistics.estimate import LEAST_ESTIMATED, estimate_share
from otel_llm.bench.capacity.statistics.shares import ShareInterval, share_interval
from otel_llm.bench.capacity.statistics.virtual_queue import series_of, virtual_queues

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from otel_llm.bench.capacity.objective import CapacityObjective, Clause
    from otel_llm.bench.capacity.observations import Observations, ProbeEnd, ProbeSource
    from otel_llm.bench.capacity.rate_search import Verdict
    from otel_llm.bench.capacity.statistics.error_budget import ProbeLevels
    from otel_llm.bench.capacity.statistics.virtual_queue import VirtualQueue

    Floats = NDArray[np.float64]


HOPELESS_FROM: Final = 0.3
"""A probe that cannot be decided any more is stopped after this share of its requests."""
LEAST_RESIDENCES: Final = 25
LEAST_BAD_RESIDENCES: Final = 5
"""The length of a probe before its first verdict, in mean times in the system, since requests in flight together have
the same fate. The second applies if the objective seems to fail: a probe begins with an idle server, so a calm stretch
is more likely than a bad one."""


class ClauseFinding(NamedTuple):
    """A clause at the last evaluation: the share of requests that hold, and its interval at all times.

    `raw`: the share without control variates; `independent`: how many independent requests the `requests` are worth;
    `enough`: there are enough of them for a verdict; `unsaid`: requests without a verdict, which are left out;
    `inflation`: how many requests say as much as one independent one.
    """

    clause: Clause
    value: float
    interval: ShareInterval
    raw: float
    requests: int
    independent: float
    enough: bool
    unsaid: int
    inflation: float = 1.0

    @property
    def verdict(self) -> Verdict:
        """Return whether the clause is found to hold or to fail."""
        if self.enough and self.interval.low >= float(self.clause.target):
            return "holds"
        if self.enough and self.interval.high < float(self.clause.target):
            return "fails"
        return "undecided"


@dataclass(slots=True)
class ProbeDecision:
    """The evaluations of one probe at `rate` requests/s; `queues` are those of each clause's target, empty for none.

    Without `adjust` they say only what correlation to expect. `least_inflations`: of each clause, the greatest
    inflation that was seen at lower rates; empty for none.
    """

    rate: float
    clauses: Sequence[Clause]
    levels: ProbeLevels
    queues: Sequence[Sequence[VirtualQueue]]
    adjust: bool = True
    least_inflations: Sequence[float] = ()
    findings: list[ClauseFinding] = field(default_factory=list)
    backlog: BacklogTest = field(init=False)

    def __post_init__(self) -> None:
        self.backlog = BacklogTest(self.levels.backlog)

    @property
    def verdict(self) -> Verdict:
        """Return the last evaluation's verdict: fails if one clause or the backlog does, holds if all clauses do."""
        verdicts = {finding.verdict for finding in self.findings}
        if self.backlog.grows or "fails" in verdicts:
            return "fails"
        return "holds" if verdicts == {"holds"} else "undecided"

    @property
    def deciding(self) -> ClauseFinding | None:
        """Return the finding that the verdict rests on: one that fails, else that closest to it; None before one."""
        if not self.findings:
            return None
        return min(
            self.findings,
            key=lambda one: (one.verdict != "fails", one.interval.low - float(one.clause.target)),
        )

    def evaluate(self, seen: Observations) -> Verdict:
        """Judge everything that is known, and return the verdict."""
        behind = seen.warm_up
        sent = slice(behind, len(seen.load.at))
        if len(seen.load.at) > behind:
            self.backlog.evaluate(seen.in_flight[sent], seen.load.at[sent], seen.residence_s[sent])
        if seen.known > behind:
            self.findings = [self._find(seen, place, behind) for place in range(len(self.clauses))]
        return self.verdict

    def is_hopeless(self, seen: Observations, most_requests: float) -> bool:
        """Return whether the rest of the probe would not decide it: what it would cost is saved for other probes.

        Nothing of it can be wrong, as an undecided probe says nothing. A clause is hopeless if its share, even one
        standard error further from the target, would be undecided after `most_requests`.
        """
        if len(seen.load.at) < HOPELESS_FROM * most_requests or not self.findings or not seen.known:
            return False
        growth = most_requests / seen.known
        return any(one.enough and self._stays_undecided(one, growth) for one in self.findings)

    def _stays_undecided(self, one: ClauseFinding, growth: float) -> bool:
        target = float(one.clause.target)
        if one.verdict == "holds" or one.independent <= 0:
            return False
        error = sqrt(max(one.value * (1 - one.value), target * (1 - target)) / one.independent)
        value = one.value + copysign(error, one.value - target)
        value = min(1.0, max(0.0, value))
        held, missed = growth * one.independent * value, growth * one.independent * (1 - value)
        interval = share_interval(held, missed, target, self.levels.holds, self.levels.fails)
        return interval.low < target <= interval.high

    def _find(self, seen: Observations, place: int, behind: int) -> ClauseFinding:
        clause, known = self.clauses[place], slice(behind, seen.known)
        target = float(clause.target)
        fates = seen.fates[place, known]
        reported = fates != UNREPORTED
        held = (fates[reported] == HELD).astype(np.float64)
        count = len(held)
        if count < LEAST_ESTIMATED:
            raw = float(held.mean()) if count else 0.0
            unsaid = len(fates) - count
            return ClauseFinding(clause, raw, ShareInterval(0.0, 1.0), raw, count, 0.0, enough=False, unsaid=unsaid)
        queues = self.queues[place]
        deviations = series_of(queues, seen.load, self.rate)[:, known][:, reported] if queues else np.empty((0, count))
        waits, in_flight = seen.wait_s[known][reported], seen.in_flight[known][reported]
        found = estimate_share(
            held,
            waits,
            in_flight,
            target,
            queues,
            deviations,
            self.levels.fails,
            adjust=self.adjust,
            least_inflation=self.least_inflations[place] if self.least_inflations else 1.0,
        )
        mean, independent = found.value, found.independent
        interval = share_interval(
            independent * mean, independent * (1 - mean), target, self.levels.holds, self.levels.fails
        )
        # Of an overloaded server the later requests stay ever longer: only the first ones show its own time.
        first = seen.residence_s[behind : behind + max(1, (seen.known - behind) // 10)]
        lasted = seen.load.at[seen.known - 1] - seen.load.at[behind]
        least = LEAST_RESIDENCES if max(mean, found.raw) >= target else LEAST_BAD_RESIDENCES
        enough = found.enough and bool(lasted >= least * first.mean())
        return ClauseFinding(
            clause, mean, interval, found.raw, count, independent, enough, len(fates) - count, found.inflation
        )


PROBE_SHARE: Final = 0.3
"""No probe takes more of the budget."""
LEAST_SHARE: Final = 0.03
"""No probe begins with less of the budget: it could hardly be decided, and what little it shows could be wrong."""
MOST_REPEATS: Final = 3
"""An invalid probe is repeated so many times; then it is undecided."""
FIRST_LOOK: Final = 100
LOOK_GROWTH: Final = 1.1
"""The factor by which the requests grow between two evaluations: the cost of one is proportional to their number."""


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

    `queues`: those of `control_queues`, if several searches share a law of the load.

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
    """Return the virtual queues of each clause; none if the law of the load is unknown."""
    reference = source.reference()
    if reference is None:
        return [[] for _ in plan.objective.clauses]
    return [virtual_queues(reference, float(clause.target)) for clause in plan.objective.clauses]


def _run_probe(decision: ProbeDecision, source: ProbeSource, limit: float) -> tuple[ProbeResult, str | None]:
    """Run a probe to its end; return it and why the search cannot continue, None if it can."""
    probe = source.begin(decision.rate, limit)
    wanted, problem = FIRST_LOOK, None
    try:
        while (seen := probe.observe(wanted)) is not None:
            wanted = int(LOOK_GROWTH * len(seen.load.at)) + 1
            if decision.evaluate(seen) != "undecided" or decision.is_hopeless(seen, probe.most_requests):
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
    """Return why the search did not decide, None if it did."""
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
