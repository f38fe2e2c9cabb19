"""What a search sees of its probes: the interface between the statistics and a client or a simulator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from otel_llm.bench.capacity.objective import UNREPORTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from otel_llm.bench.capacity.statistics.virtual_queue import Load

    Floats = NDArray[np.float64]

WARM_UP_REQUESTS: Final = 50
WARM_UP_S: Final = 5.0
INTERRUPTED: Final = "interrupted"
"""Why a search ends that the user has ended."""


class SourceError(Exception):
    """The search cannot continue; the text says why."""


@dataclass(frozen=True, slots=True)
class Observations:
    """The requests of a probe at one instant, by intended time.

    `load`: the N requests whose intended time has passed, `at` in s from the start of the probe; `in_flight` (N,): the
    requests in flight at each intended time; `residence_s` (N,): the time in the system so far. The fates of the first
    F of them are known: `fates` (C, F) int8, one row a clause; `wait_s` (F,): their time to the first token, so far.
    """

    load: Load
    in_flight: Floats
    residence_s: Floats
    fates: NDArray[np.int8]
    wait_s: Floats

    @property
    def known(self) -> int:
        """Return F, the length of the prefix whose fates are known."""
        return int(self.fates.shape[1])

    @property
    def warm_up(self) -> int:
        """Return the number of requests cut as warm-up: 50, or those of the first 5 s if they are more."""
        return max(WARM_UP_REQUESTS, int(np.searchsorted(self.load.at, WARM_UP_S)))

    def unsaid(self, clause: int) -> int:
        """Return the number of requests behind the warm-up without a verdict under a clause."""
        return int((self.fates[clause, self.warm_up :] == UNREPORTED).sum())


@dataclass(frozen=True, slots=True)
class ProbeEnd:
    """The end of a probe: its cost, in the unit of the budget, drain included; whether it was valid, else why not.

    `requests`: those sent; `seconds`: its time, of the simulated clock if there is one; `tokens_per_s`: output
    tokens; `errors`: failed requests by kind.
    """

    cost: float
    seconds: float
    requests: int
    tokens_per_s: float | None = None
    invalid: str | None = None
    errors: Mapping[str, int] = field(default_factory=dict)


class Probe(Protocol):
    """A load at one rate that is being sent."""

    @property
    def most_requests(self) -> float:
        """Return about how many requests it can send within its limit."""
        ...

    def observe(self, requests: int) -> Observations | None:
        """Run until `requests` have been sent, or all have ended; return None if that was so before.

        Raises:
            SourceError: the search cannot continue.
        """
        ...

    def end(self) -> ProbeEnd:
        """Send nothing more, let the server drain, and return how it went."""
        ...


class ProbeSource(Protocol):
    """A server, or its model, that can be probed; probes follow one another."""

    def begin(self, rate: float, limit: float) -> Probe:
        """Start a probe at a rate in requests/s that may cost at most `limit`, in the unit of the budget."""
        ...

    def reference(self) -> Load | None:
        """Return a long draw of the load's law at 1 request/s, independent of what is sent; None if it is unknown."""
        ...


def child_seed(seed: int, number: int) -> int:
    """Return a seed of its own for each probe, and for the reference draw (0)."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0])
