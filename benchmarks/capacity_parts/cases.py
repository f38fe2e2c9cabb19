"""The systems whose capacity is known, each a source of probes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from capacity_parts.queue_source import QueueSource, SlotQueue

from otel_llm.bench.capacity.objective import parse_objective
from otel_llm.bench.capacity.simulated_source import SimulatedSource
from otel_llm.config.yaml_file import parse_yaml
from otel_llm.scheduling import load_profile
from otel_llm.scheduling.scenario.running import run_scenario
from otel_llm.scheduling.scenario.scenario import PolicyShape, Scenario
from otel_llm.scheduling.simulator.engine import Fleet
from otel_llm.scheduling.workload.arrivals import GammaArrivals, PoissonArrivals
from otel_llm.scheduling.workload.lengths import UniformLengths
from otel_llm.scheduling.workload.tiers import Tier
from otel_llm.scheduling.workload.workload import WorkloadSpec

if TYPE_CHECKING:
    from otel_llm.bench.capacity.observations import ProbeSource

MS = 10**6


@dataclass(frozen=True)
class Case:
    """A system and the range of rates; `attainment` is that of one run."""

    bottom: float
    top: float

    def source(self, seed: int) -> ProbeSource:
        raise NotImplementedError

    def attainment(self, rate: float, requests: int, seed: int) -> float:
        raise NotImplementedError


@dataclass(frozen=True)
class QueueCase(Case):
    queue: SlotQueue

    def source(self, seed: int) -> ProbeSource:
        return QueueSource(self.queue, seed)

    def attainment(self, rate: float, requests: int, seed: int) -> float:
        return self.queue.attainment(rate, requests, seed)


@dataclass(frozen=True)
class EngineCase(Case):
    scenario: Scenario

    def source(self, seed: int) -> ProbeSource:
        return SimulatedSource(self.scenario, parse_objective("attainment >= 0.9").clauses, seed)

    def attainment(self, rate: float, requests: int, seed: int) -> float:
        scenario = self.scenario
        kind = scenario.workload.arrivals
        assert isinstance(kind, (PoissonArrivals, GammaArrivals))
        arrivals = replace(kind, rate=Fraction(rate))
        spec = replace(scenario.workload, arrivals=arrivals, requests=requests, warmup_ns=60_000 * MS)
        found: float | None = run_scenario(replace(scenario, workload=spec), seed)["attainment"]
        return found or 0.0


def engine(tpot_ms: int, arrivals: PoissonArrivals | GammaArrivals) -> Scenario:
    workload = WorkloadSpec(
        arrivals,
        UniformLengths(1, 2000),
        UniformLengths(1, 400),
        None,
        (Tier("t", tpot_ms * MS, (500 * MS,), Fraction(1)),),
        feasible=False,
    )
    profile = load_profile("h200-llama-3.1-8b")
    file = parse_yaml(b"version: 1", "benchmark")  # named in errors
    return Scenario(file, profile, Fleet(1), False, workload, PolicyShape(), None, ())


CASES: dict[str, Case] = {
    "md4": QueueCase(0.5, 64, SlotQueue(4, 0.5, 1.0)),
    "md16": QueueCase(0.5, 64, SlotQueue(16, 0.3, 1.0)),
    "gamma": QueueCase(0.5, 64, SlotQueue(4, 1.0, 2.0)),
    "engine": EngineCase(1, 128, engine(20, PoissonArrivals(Fraction(1)))),
    "bursts": EngineCase(1, 128, engine(40, GammaArrivals(Fraction(1), 2.0))),
}
