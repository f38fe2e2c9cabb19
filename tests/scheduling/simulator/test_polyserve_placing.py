"""PolyServe on simulated instances: cases by hand, and properties of every run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduling.simulated import HandProfile, requests_of

from otel_llm.scheduling import load_profile
from otel_llm.scheduling.polyserve.settings import PolyServeSettings
from otel_llm.scheduling.simulator.engine import Fleet, SimulatedRun, simulate
from otel_llm.scheduling.simulator.instance import Instance
from otel_llm.scheduling.simulator.polyserve_placing import PolyServePlacement
from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest
from otel_llm.scheduling.workload.arrivals import PoissonArrivals
from otel_llm.scheduling.workload.lengths import UniformLengths
from otel_llm.scheduling.workload.tiers import Tier
from otel_llm.scheduling.workload.workload import WorkloadSpec, draw_workload

MS = 10**6
TPOTS_NS = (300, 800)
DEFAULT = PolyServeSettings()


class Checked(PolyServePlacement):
    """PolyServe that checks the promises of the policy at every step."""

    bounds: dict[int, int]

    def begin(
        self, arrivals: Sequence[Instance], decoders: Sequence[Instance], grow: Callable[[bool], Instance]
    ) -> None:
        super().begin(arrivals, decoders, grow)
        self.instances = list(dict.fromkeys((*arrivals, *decoders)))
        self.tries = 0

    def place(self, request: SimulatedRequest, pool: Sequence[Instance], now_ns: int) -> Instance | None:
        instance = super().place(request, pool, now_ns)
        if instance is None:
            self.tries += 1
        else:
            self._check(request, instance)
        return instance

    def retry(self, now_ns: int) -> Any:
        for request, instance in super().retry(now_ns):
            self._check(request, instance)
            yield request, instance

    def _check(self, request: SimulatedRequest, instance: Instance) -> None:
        assert instance.kv_free >= 0
        assert instance.hands_over is (self._prefill is not None and not request.ready)
        if instance.hands_over or request.late:
            return
        others = [*instance.decoding.values(), *instance.partial, *instance.waiting]
        in_time = [TPOTS_NS[one.tier] for one in others if not one.late]
        # A tight request never runs if the loop of the tier is looser: the bound of an instance is its tightest.
        held = instance.tokens + request.context
        length_ns = instance.profile.iteration_ns(len(others) + 1, held) + instance.profile.step_overhead_ns
        assert length_ns <= min([TPOTS_NS[request.tier], *in_time])


rows = st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 60), st.integers(1, 25)), min_size=1, max_size=16).map(
    lambda drawn: sorted(drawn, key=lambda row: row[0])
)
settings = st.builds(
    PolyServeSettings,
    load_gradient=st.booleans(),
    lazy_promotion=st.booleans(),
    dynamic_chunking=st.booleans(),
    continuous_prediction=st.booleans(),
    chunking=st.sampled_from(["slack", "tpot"]),
    unlimited=st.booleans(),
)
profiles = st.builds(
    HandProfile, kv_tokens=st.integers(80, 400), max_batch=st.integers(1, 5), max_batched_tokens=st.integers(2, 60)
)


def run_of(
    drawn: Sequence[tuple[int, int, int]],
    tiers: Sequence[int],
    ttft_ns: int,
    chosen: PolyServeSettings = DEFAULT,
    profile: HandProfile | None = None,
    fleet: Fleet | None = None,
    expected: int = 8,
) -> tuple[SimulatedRun, Checked]:
    requests = requests_of(drawn, [arrival + ttft_ns for arrival, _, _ in drawn])
    for request, tier in zip(requests, tiers, strict=False):
        request.tier = tier
    placement = Checked(chosen, TPOTS_NS, expected)
    return simulate(requests, profile or HandProfile(), fleet or Fleet(1), placement), placement


@given(
    rows, st.lists(st.integers(0, 1), min_size=16, max_size=16), st.integers(150, 3000), settings, profiles, st.data()
)
def test_every_request_ends(
    drawn: list[tuple[int, int, int]],
    tiers: list[int],
    ttft_ns: int,
    chosen: PolyServeSettings,
    profile: HandProfile,
    data: st.DataObject,
) -> None:
    instances = data.draw(st.integers(1, 3))
    fleet = Fleet(instances, data.draw(st.integers(0, instances - 1)))
    runs = [run_of(drawn, tiers, ttft_ns, chosen, profile, fleet) for _ in range(2)]
    (run, placement), (again, _) = runs
    assert placement.holds == 0
    for request in run.requests:
        assert request.end_ns is not None
        assert len(run.token_times(request)) == (0 if request.dropped else request.output)
    for instance in run.instances:
        assert instance.kv_free == profile.kv_tokens
        assert instance.requests == 0
    assert [one.runs for one in run.requests] == [one.runs for one in again.requests]
    if not chosen.unlimited:
        assert len(run.instances) == instances
        assert run.instance_ns == instances * run.end_ns
    else:
        assert run.instance_ns == sum(one.busy_ns for one in run.instances)


def test_a_held_request_is_placed_at_the_end_that_makes_room() -> None:
    # One at a time. The second would end its prefill at 132 + 126 + 115 and is due at 1000.
    run, placement = run_of([(0, 10, 2), (0, 5, 1)], [1, 1], 1000, profile=HandProfile(max_batch=1))
    assert [run.token_times(one).tolist() for one in run.requests] == [[132, 258], [373]]
    assert placement.tries == 1
    assert run.decisions == 2


def test_held_requests_are_before_those_that_arrive_at_that_instant() -> None:
    # The first ends at 258, when the third becomes visible: 251 + 7.
    run, _ = run_of([(0, 10, 2), (0, 5, 1), (251, 5, 1)], [1, 1, 1], 2000, profile=HandProfile(max_batch=1))
    assert [run.token_times(one).tolist()[-1] for one in run.requests] == [258, 373, 488]


def test_only_use_counts_where_the_pool_is_unlimited() -> None:
    run, _ = run_of([(0, 10, 1), (1000, 10, 1)], [1, 1], 1000, replace(DEFAULT, unlimited=True), fleet=Fleet(4))
    assert run.instance_ns == 2 * 125
    run, _ = run_of([(0, 10, 1), (1000, 10, 1)], [1, 1], 1000, fleet=Fleet(4))
    assert run.instance_ns == 4 * 1132


def test_an_unlimited_disaggregated_fleet_grows_on_both_sides() -> None:
    drawn = [(number, 40, 20) for number in range(8)]
    run, _ = run_of(drawn, [0] * 8, 500, replace(DEFAULT, unlimited=True), HandProfile(max_batch=2), Fleet(2, 1))
    assert sum(one.hands_over for one in run.instances) > 1
    assert sum(not one.hands_over for one in run.instances) > 1
    assert not any(one.late for one in run.requests)


def test_late_requests_start_after_all_others() -> None:
    # The second is late from the start (7 + 205 > 100). The third comes at 10, before the first iteration ends.
    instance = Instance(0, HandProfile(), lambda _: 100)
    requests = requests_of([(0, 5, 1), (0, 6, 1), (0, 7, 1)])
    requests[0].late = True
    for request in requests:
        instance.add(request)
    assert [one.number for one in instance.waiting] == [1, 2, 0]


def tiered_run(chosen: PolyServeSettings) -> list[list[int]]:
    """Return the token times of a crowded fleet of six with a budget of 2,048 tokens."""
    profile = replace(load_profile("h200-paper-era"), max_batched_tokens=2048)
    tiers = tuple(Tier(f"t{ms}", ms * MS, (300 * MS, 1000 * MS), Fraction(1, 2)) for ms in (30, 100))
    lengths = (UniformLengths(1, 8191), UniformLengths(1, 1023))
    workload = draw_workload(WorkloadSpec(PoissonArrivals(Fraction(30)), *lengths, 400, tiers), profile, 0)
    tpots_ns = [one.slo.deadline.next_ns or 0 for one in workload.classes]
    run = simulate(workload.requests(), profile, Fleet(6), PolyServePlacement(chosen, tpots_ns, 256))
    return [run.token_times(one).tolist() for one in run.requests]


@pytest.fixture(scope="module")
def usual() -> list[list[int]]:
    return tiered_run(DEFAULT)


@pytest.mark.parametrize(
    "change",
    [
        {"load_gradient": False},
        {"lazy_promotion": False},
        {"dynamic_chunking": False},
        {"continuous_prediction": False},
        {"chunking": "tpot"},
        {"slack_share": Fraction(1, 2)},
        {"kv_margin": Fraction(9, 10)},
        {"late_share": Fraction(1, 10)},
        {"unlimited": True},
    ],
)
def test_every_switch_changes_a_run(change: dict[str, Any], usual: list[list[int]]) -> None:
    assert tiered_run(replace(DEFAULT, **change)) != usual
