"""Probes of a simulated fleet: the load of a scenario at the probe's rate, in simulated time, reproducible."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.bench.capacity.fate_log import FateLog, StreamSoFar
from otel_llm.bench.capacity.observations import Observations, ProbeEnd, child_seed
from otel_llm.bench.capacity.statistics.virtual_queue import REFERENCE_REQUESTS, Load
from otel_llm.scheduling.scenario.running import mean_cost, order_of, placement_of, split_fleet
from otel_llm.scheduling.simulator.engine import simulate_in_steps
from otel_llm.scheduling.workload.arrivals import ConstantArrivals, GammaArrivals, PoissonArrivals, TraceArrivals
from otel_llm.scheduling.workload.workload import Workload, WorkloadSpec, draw_workload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_llm.bench.capacity.objective import Clause
    from otel_llm.scheduling.scenario.scenario import Scenario
    from otel_llm.scheduling.simulator.engine import SimulatedRun

STEP: Final = 50
"""Arrivals between two instants at which a probe can be observed."""

SPLIT_REQUESTS: Final = 2000
"""Requests whose mean cost splits a fleet with `prefill: auto`."""


class SimulatedSource:
    """The fleet of a scenario; each probe begins with an idle one, and the cost of a probe are its requests.

    Args:
        scenario: its arrivals are replaced by those of the probes, of the same kind.
        clauses: of the objective.
        seed: probes draw independent loads from it.

    Raises:
        ConfigError: the arrivals are those of a trace, which has no rate; or a static budget is to be searched.
    """

    def __init__(self, scenario: Scenario, clauses: Sequence[Clause], seed: int) -> None:
        if isinstance(scenario.workload.arrivals, TraceArrivals):
            raise scenario.file.refuse(
                ("workload", "arrivals"),
                "the arrivals of a trace have no rate to search for",
                "write {poisson: 1}, {constant: 1} or {gamma: 1, cv: 3}; the rate is replaced",
            )  # fmt: skip
        if scenario.policy.placement == "chunk" and scenario.policy.budget is None:
            raise scenario.file.refuse(
                ("policy", "budget"),
                "a search at many rates has no best static budget",
                "write `budget: 2048`; `otel-llm simulate` finds the best one at a rate",
            )  # fmt: skip
        self._scenario = scenario
        self._clauses = clauses
        self._seed = seed
        self._probes = 0
        if scenario.is_split:  # once, so that all probes are of one fleet
            drawn = self._draw(1.0, SPLIT_REQUESTS, child_seed(seed, 0), scenario.workload)
            self._scenario = replace(scenario, fleet=split_fleet(scenario, mean_cost(scenario, drawn)))

    def begin(self, rate: float, limit: float) -> SimulatedProbe:
        """Start a probe of at most `limit` requests."""
        self._probes += 1
        seed = child_seed(self._seed, self._probes)
        workload = self._draw(rate, max(1, int(limit)), seed, self._scenario.workload)
        return SimulatedProbe(self._scenario, workload, self._clauses, seed)

    def reference(self) -> Load:
        """Return a long draw of the law at 1 request/s."""
        spec = replace(self._scenario.workload, tiers=())  # the promises do not change the load
        drawn = self._draw(1.0, REFERENCE_REQUESTS, child_seed(self._seed, 0), spec)
        return _load(drawn, len(drawn.arrivals_ns))

    def _draw(self, rate: float, requests: int, seed: int, spec: WorkloadSpec) -> Workload:
        arrivals = spec.arrivals
        assert isinstance(arrivals, (ConstantArrivals, GammaArrivals, PoissonArrivals))  # noqa: S101 - init refuses
        at_rate = replace(arrivals, rate=Fraction(rate))
        return draw_workload(
            replace(spec, arrivals=at_rate, requests=requests, warmup_ns=0), self._scenario.profile, seed
        )


class SimulatedProbe:
    """A probe in simulated time; `now` is the last event of the simulation."""

    def __init__(self, scenario: Scenario, workload: Workload, clauses: Sequence[Clause], seed: int) -> None:
        self._workload = workload
        self._requests = workload.requests()
        self._steps: Iterator[SimulatedRun] = simulate_in_steps(
            self._requests,
            scenario.profile,
            scenario.fleet,
            placement_of(scenario, workload, seed, scenario.policy.budget),
            STEP,
            order_of(scenario, workload, seed),
        )
        self._run: SimulatedRun | None = None
        self._log = FateLog(clauses)
        self._over = False

    @property
    def most_requests(self) -> float:
        """Return the number of requests that were drawn."""
        return float(len(self._requests))

    def observe(self, requests: int) -> Observations | None:
        """Simulate until so many requests have arrived, or all are over."""
        if self._over:
            return None
        while self._arrived < min(requests, len(self._requests)):
            self._run = next(self._steps)
        if self._arrived == len(self._requests):
            *_, self._run = [self._run, *self._steps]  # the last requests end, as in the drain of a server
            self._over = True
        assert self._run is not None  # noqa: S101 - one request has arrived
        run, count, now_ns = self._run, self._arrived, self._run.end_ns
        self._log.extend(lambda place: self._stream(run, place), count, now_ns)
        ends_ns = np.array([now_ns + 1 if one.end_ns is None else one.end_ns for one in self._requests[:count]])
        at_ns = self._workload.arrivals_ns[:count]
        in_flight = np.arange(count) - np.searchsorted(np.sort(ends_ns), at_ns, side="right")
        return Observations(
            _load(self._workload, count),
            in_flight.astype(np.float64),
            (np.minimum(ends_ns, now_ns) - at_ns) / 1e9,
            self._log.fates,
            self._log.waits,
        )

    def end(self) -> ProbeEnd:
        """Return what the probe cost, in requests."""
        count = self._arrived
        seconds = 0.0 if self._run is None else self._run.end_ns / 1e9
        ended = [one for one in self._requests[:count] if one.end_ns is not None and not one.dropped]
        tokens = sum(one.output for one in ended)
        return ProbeEnd(float(count), seconds, count, tokens / seconds if seconds else None)

    @property
    def _arrived(self) -> int:
        if self._run is None:
            return 0
        return int(np.searchsorted(self._workload.arrivals_ns, self._run.end_ns, side="right"))

    def _stream(self, run: SimulatedRun, place: int) -> StreamSoFar:
        request = self._requests[place]
        slo = self._workload.classes[request.tier].slo
        if request.end_ns is None:
            return StreamSoFar(slo, request.arrival_ns, run.tokens_so_far(request).tolist(), input_tokens=request.input)
        outcome = "error" if request.dropped else "completed"
        tokens = run.token_times(request).tolist()
        return StreamSoFar(slo, request.arrival_ns, tokens, None, request.end_ns, outcome, request.input)


def _load(workload: Workload, count: int) -> Load:
    return Load(
        workload.arrivals_ns[:count] / 1e9,
        workload.input[:count].astype(np.float64),
        workload.output[:count].astype(np.float64),
    )
