"""The verdict on a probe: looks at what is known so far, until the objective is found to hold or to fail."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import copysign, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_llm.bench.capacity.objective import HELD, UNSAID
from otel_llm.bench.capacity.statistics.backlog import BacklogTest
from otel_llm.bench.capacity.statistics.estimate import LEAST_ESTIMATED, estimate_share
from otel_llm.bench.capacity.statistics.shares import ShareInterval, share_interval
from otel_llm.bench.capacity.statistics.virtual_queue import series_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from otel_llm.bench.capacity.objective import Clause
    from otel_llm.bench.capacity.observations import Observations
    from otel_llm.bench.capacity.rate_search import Verdict
    from otel_llm.bench.capacity.statistics.error_budget import ProbeLevels
    from otel_llm.bench.capacity.statistics.virtual_queue import VirtualQueue

    Floats = NDArray[np.float64]

HOPELESS_FROM: Final = 0.3
"""A probe is given up where it cannot be decided any more, from this share of its requests."""
LEAST_RESIDENCES: Final = 25
LEAST_BAD_RESIDENCES: Final = 5
"""No verdict before so many mean times in the system: requests in flight together share their fate. The second where
the objective seems to fail: a probe begins with an idle server, so that a calm stretch is likelier than a bad one."""


class ClauseFinding(NamedTuple):
    """A clause at the last look: the share of requests that hold, and its interval at all times.

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
    """The looks at one probe at `rate` requests/s; `queues` are those of each clause's target, empty for none.

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
        """Return the verdict at the last look: fails if one clause or the backlog does, holds if all clauses do."""
        verdicts = {finding.verdict for finding in self.findings}
        if self.backlog.grows or "fails" in verdicts:
            return "fails"
        return "holds" if verdicts == {"holds"} else "undecided"

    @property
    def deciding(self) -> ClauseFinding | None:
        """Return the finding that the verdict rests on: one that fails, else that closest to it; None before a look."""
        if not self.findings:
            return None
        return min(
            self.findings,
            key=lambda one: (one.verdict != "fails", one.interval.low - float(one.clause.target)),
        )

    def look(self, seen: Observations) -> Verdict:
        """Judge everything that is known, and return the verdict."""
        behind = seen.warm_up
        sent = slice(behind, len(seen.load.at))
        if len(seen.load.at) > behind:
            self.backlog.look(seen.in_flight[sent], seen.load.at[sent], seen.residence_s[sent])
        if seen.known > behind:
            self.findings = [self._find(seen, place, behind) for place in range(len(self.clauses))]
        return self.verdict

    def is_hopeless(self, seen: Observations, most_requests: float) -> bool:
        """Return whether the rest of the probe would not decide it: what it would cost is saved for other probes.

        Nothing of it can be wrong, as an undecided probe says nothing. A clause is hopeless where its share, even one
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
        said = fates != UNSAID
        held = (fates[said] == HELD).astype(np.float64)
        count = len(held)
        if count < LEAST_ESTIMATED:
            raw = float(held.mean()) if count else 0.0
            unsaid = len(fates) - count
            return ClauseFinding(clause, raw, ShareInterval(0.0, 1.0), raw, count, 0.0, enough=False, unsaid=unsaid)
        queues = self.queues[place]
        deviations = series_of(queues, seen.load, self.rate)[:, known][:, said] if queues else np.empty((0, count))
        waits, in_flight = seen.wait_s[known][said], seen.in_flight[known][said]
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
