"""The error budget of a search: how the probability that the interval misses the truth is shared among its probes.

A probe below the capacity is wrong only if it says `fails`, one above it only if it says `holds`: a probe has one way
to be wrong. The interval holds the truth if no probe is wrong. The union bound over the most probes that a search may
have gives each an equal part; whatever decides where the next probe goes, it cannot change that bound. The sides within
a probe share its part if either of several findings decides: `fails` follows from any clause or from the backlog;
`holds` needs all of them, so that each may have the whole part (an intersection-union test: Berger, Technometrics 24,
1982).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log
from typing import Final

UNDECIDED_PROBES: Final = 4
"""So many probes of a search may be undecided; each takes up to 30 % of the budget."""

BACKLOG_SHARE: Final = 0.1
"""The backlog's share of a probe's part: if a server is overloaded, growth is soon beyond doubt."""


@dataclass(frozen=True, slots=True)
class ProbeLevels:
    """The probabilities of wrong findings in one probe."""

    holds: float
    """That a clause is found to hold, and does not."""
    fails: float
    """That one clause is found to fail, and does not."""
    backlog: float
    """That the backlog is found to grow, and does not."""


def most_probes(low: float, high: float, precision: float) -> int:
    """Return the most probes of a search between two rates: doublings from the middle, bisections, undecided ones."""
    doublings = 1 + ceil(log(high / low) / 2 / log(2))
    bisections = ceil(log(max(1.0, min(log(2), log(high / low)) / log(1 + precision))) / log(2))
    return doublings + bisections + UNDECIDED_PROBES


def probe_levels(confidence: float, probes: int, clauses: int) -> ProbeLevels:
    """Return the levels of each probe of a search with this confidence, of so many probes, for so many clauses."""
    part = (1 - confidence) / probes
    backlog = BACKLOG_SHARE * part
    return ProbeLevels(holds=part, fails=(part - backlog) / clauses, backlog=backlog)
