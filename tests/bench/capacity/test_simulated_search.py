"""The short form of `benchmarks/capacity.py`: searches on a simulated fleet hold the truth of `otel-llm simulate`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from support.bench.fleets import fleet

from otel_llm.bench.capacity.capacity_answer import answer, as_json
from otel_llm.bench.capacity.capacity_search import (
    LEAST_SHARE,
    PROBE_SHARE,
    CapacityResult,
    ProbeDecision,
    ProbeResult,
    SearchPlan,
    control_queues,
    find_capacity,
    inflations_below,
)
from otel_llm.bench.capacity.objective import HELD, MISSED, UNREPORTED, parse_objective
from otel_llm.bench.capacity.observations import Observations, ProbeEnd, SourceError, child_seed
from otel_llm.bench.capacity.simulated_source import SimulatedSource
from otel_llm.bench.capacity.statistics.error_budget import ProbeLevels
from otel_llm.bench.capacity.statistics.virtual_queue import Load
from otel_llm.config.yaml_file import ConfigError
from otel_llm.scheduling.scenario.running import run_scenario
from otel_llm.scheduling.scenario.scenario import Scenario
from otel_llm.scheduling.scenario.sweep import load_runs
from otel_llm.scheduling.workload.arrivals import PoissonArrivals, TraceArrivals
from otel_llm.scheduling.workload.trace_file import Trace

OBJECTIVE = parse_objective("attainment >= 0.9")
PLAN = SearchPlan(OBJECTIVE, 2.0, 32.0, precision=0.25, budget=20_000)


def fleet_scenario(folder: Path) -> Scenario:
    """Return the scenario."""
    return load_runs(fleet(folder))[0].scenario


def attainment_at(one: Scenario, rate: float, seed: int = 5) -> float:
    """Return the attainment that `otel-llm simulate` says at a rate."""
    workload = replace(one.workload, arrivals=PoissonArrivals(Fraction(rate)))
    found: float = run_scenario(replace(one, workload=workload), seed)["attainment"]
    return found


def test_intervals_hold_the_truth(tmp_path: Path) -> None:
    one = fleet_scenario(tmp_path)
    queues = control_queues(PLAN, SimulatedSource(one, OBJECTIVE.clauses, 0))
    for seed in range(3):
        found = find_capacity(PLAN, SimulatedSource(one, OBJECTIVE.clauses, seed), queues=queues)
        assert found.decided, answer(found)
        assert found.low is not None
        assert found.high is not None
        assert attainment_at(one, found.low) >= 0.9
        assert attainment_at(one, found.high) < 0.9
        assert found.spent <= PLAN.budget
        assert all(probe.end.requests <= PROBE_SHARE * PLAN.budget for probe in found.probes)


def test_an_observation_is_what_the_whole_run_says(tmp_path: Path) -> None:
    one = fleet_scenario(tmp_path)
    probe = SimulatedSource(one, OBJECTIVE.clauses, 3).begin(12.0, 600)
    early, last = probe.observe(300), None
    while (seen := probe.observe(10**9)) is not None:
        last = seen
    assert early is not None
    assert last is not None
    assert 300 <= len(early.load.at) < 600
    assert last.known == len(last.load.at) == 600
    assert early.known <= len(early.load.at)
    assert (early.fates == last.fates[:, : early.known]).all(), "what was known early stays so"
    count = len(early.load.at)
    assert (early.in_flight == last.in_flight[:count]).all()
    ends = last.load.at + last.residence_s
    wanted = [(ends[:index] > at).sum() for index, at in enumerate(last.load.at)]
    assert last.in_flight.tolist() == wanted
    end = probe.end()
    assert (end.cost, end.requests, end.invalid) == (600.0, 600, None)


def test_arrivals_of_a_trace_have_no_rate(tmp_path: Path) -> None:
    one = fleet_scenario(tmp_path)
    rows = np.array([1, 2], np.int64)
    trace = TraceArrivals(Trace(rows, rows, rows), Fraction(1))
    with pytest.raises(ConfigError, match="trace"):
        SimulatedSource(replace(one, workload=replace(one.workload, arrivals=trace)), OBJECTIVE.clauses, 0)


@dataclass
class Scripted:
    """A source whose requests all hold below `truth`, and miss above it; some of its probes are not valid."""

    truth: float
    invalid: list[int] = field(default_factory=list)
    broken_at: int = 0
    begun: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)

    def begin(self, rate: float, limit: float) -> ScriptedProbe:
        self.begun.append(rate)
        self.limits.append(limit)
        if len(self.begun) == self.broken_at:
            raise SourceError("the disk is full")
        why = "lag" if len(self.begun) in self.invalid else None
        return ScriptedProbe(rate, limit, HELD if rate <= self.truth else MISSED, why)

    def reference(self) -> Load | None:
        return None


@dataclass
class ScriptedProbe:
    rate: float
    limit: float
    fate: int
    why: str | None
    sent: int = 0

    @property
    def most_requests(self) -> float:
        return self.limit

    def observe(self, requests: int) -> Observations | None:
        if self.sent >= int(self.limit):
            return None
        self.sent = min(int(self.limit), requests)
        at = np.arange(self.sent) / self.rate
        return Observations(
            Load(at, np.ones(self.sent), np.ones(self.sent)),
            np.zeros(self.sent),
            np.full(self.sent, 0.01),
            np.full((1, self.sent), self.fate, np.int8),
            np.full(self.sent, 0.01),
        )

    def end(self) -> ProbeEnd:
        return ProbeEnd(self.sent, self.sent / self.rate, self.sent, 100.0, self.why)


def searched(source: Scripted, budget: float = 20_000) -> CapacityResult:
    return find_capacity(replace(PLAN, budget=budget, precision=0.1), source)


def test_no_probe_begins_with_little_of_the_budget() -> None:
    source = Scripted(10.0)
    budget = 333.5  # Four probes that are too short to be decided spend all but half a request.
    assert not searched(source, budget).decided
    assert source.limits == pytest.approx([100.05, 100.05, 100.05, 33.5])
    assert min(source.limits) >= LEAST_SHARE * budget


def test_the_inflation_of_lower_rates_counts_for_higher_ones() -> None:
    def probe(rate: float, inflations: list[float], invalid: str | None = None) -> ProbeResult:
        return ProbeResult(rate, "undecided", None, None, False, ProbeEnd(1.0, 1.0, 1, 1.0, invalid), inflations)

    seen = [
        probe(1.0, [5.0, 1.0]),
        probe(2.0, [4.0, 3.0]),
        probe(2.5, [9.0, 9.0], "lag"),
        probe(2.6, []),
        probe(4.0, [8.0, 8.0]),
    ]
    assert inflations_below(3.0, seen) == [5.0, 3.0]
    assert inflations_below(1.0, seen) == []


def test_an_invalid_probe_is_repeated_and_says_nothing() -> None:
    source = Scripted(10.0, invalid=[1, 2])
    found = searched(source)
    assert source.begun[:4] == pytest.approx([8.0, 8.0, 8.0, 16.0])
    assert found.decided
    assert [probe["valid"] for probe in as_json(found)["probes"]][:3] == [False, False, True]


def test_after_three_repetitions_an_invalid_probe_is_undecided() -> None:
    source = Scripted(10.0, invalid=[2, 3, 4, 5])
    found = searched(source)
    assert source.begun[:6] == pytest.approx([8.0, 16.0, 16.0, 16.0, 16.0, 32.0])
    assert found.high is not None
    assert found.high < 16.0, "found without it"
    never = searched(Scripted(10.0, invalid=list(range(1, 100))), budget=2000)
    assert (never.low, never.high) == (None, None)
    assert "because lag" in answer(never)


def test_no_probe_has_more_than_its_share_or_what_is_left() -> None:
    source = Scripted(10.0)
    found = searched(source, budget=450)
    assert source.limits[0] == pytest.approx(0.3 * 450)
    assert max(source.limits) <= 0.3 * 450
    assert found.spent <= 450
    assert found.why is not None


def test_a_truth_beyond_the_range_is_reported_in_words() -> None:
    below, above = searched(Scripted(1.0)), searched(Scripted(50.0))
    assert (below.low, below.high) == (None, 2.0)
    assert "below the range" in answer(below)
    assert (above.low, above.high) == (32.0, None)
    assert "above the range" in answer(above)
    assert as_json(above)["tokens_per_s_at_low"] == 100.0


def test_every_key_is_on_the_page() -> None:
    whole = as_json(searched(Scripted(10.0)))
    page = (Path(__file__).parents[3] / "docs" / "capacity.md").read_text("utf-8").partition("## JSON")[2]
    assert [key for key in (*whole, *whole["probes"][0]) if f"`{key}`" not in page] == []


def test_a_source_that_breaks_leaves_the_interval_so_far() -> None:
    found = searched(Scripted(10.0, broken_at=3))
    assert (found.low, found.high, found.why) == (8.0, 16.0, "the disk is full")


def decided(fates: np.ndarray, in_flight: np.ndarray | None = None, text: str = "attainment >= 0.9") -> ProbeDecision:
    count = fates.shape[1]
    decision = ProbeDecision(1.0, parse_objective(text).clauses, ProbeLevels(0.005, 0.002, 0.0005), [[], []])
    backlog = np.zeros(count) if in_flight is None else in_flight
    at = np.arange(count, dtype=np.float64)
    decision.evaluate(Observations(Load(at, at, at), backlog, np.full(count, 1.0), fates, np.zeros(count)))
    return decision


def test_it_holds_if_all_clauses_do_and_fails_if_one_does() -> None:
    both = "attainment >= 0.9 && ttft_p99 <= 1s"
    held, missed = np.full(2000, HELD, np.int8), np.full(2000, MISSED, np.int8)
    assert decided(np.stack([held, held]), text=both).verdict == "holds"
    failed = decided(np.stack([held, missed]), text=both)
    assert failed.verdict == "fails"
    assert failed.deciding is not None
    assert failed.deciding.clause.metric == "ttft_p99"
    few = np.where(np.arange(2000) % 10 == 0, MISSED, HELD).astype(np.int8)
    assert decided(few[None, :]).verdict == "undecided"


def test_a_backlog_that_grows_fails_though_every_request_holds() -> None:
    held = np.full((1, 2000), HELD, np.int8)
    assert decided(held, np.arange(2000) * 0.5).verdict == "fails"


def test_the_warm_up_is_cut_and_null_is_left_out_and_counted() -> None:
    fates = np.full(1000, HELD, np.int8)
    fates[:50] = MISSED
    fates[500:600] = UNREPORTED
    (found,) = decided(fates[None, :]).findings
    assert (found.value, found.unsaid, found.requests) == (1.0, 100, 850)


@pytest.mark.parametrize("behind", range(14))
def test_a_look_at_hardly_any_requests_decides_nothing(behind: int) -> None:
    fates = np.full((1, 50 + behind), HELD, np.int8)
    fates[0, ::3] = MISSED
    assert decided(fates).verdict == "undecided"


def test_too_few_requests_or_too_short_a_time_decide_nothing() -> None:
    assert decided(np.full((1, 120), HELD, np.int8)).verdict == "undecided"
    slow = ProbeDecision(100.0, OBJECTIVE.clauses, ProbeLevels(0.005, 0.002, 0.0005), [[]])
    at = np.arange(1500) / 100  # 10 s behind the warm-up of 5 s
    fates = np.full((1, 1500), HELD, np.int8)
    for residence_s, verdict in ((1.0, "undecided"), (0.2, "holds")):
        seen = Observations(Load(at, at, at), np.zeros(1500), np.full(1500, residence_s), fates, np.zeros(1500))
        assert slow.evaluate(seen) == verdict


def test_seeds_of_probes_differ() -> None:
    assert len({child_seed(seed, number) for seed in range(3) for number in range(5)}) == 15
