"""A simulation in steps: the run so far has the tokens that the whole run has until then."""

from __future__ import annotations

from random import Random

import pytest
from support.scheduling.scenarios import scenario

from otel_llm.scheduling.scenario.sweep import load_runs
from otel_llm.scheduling.simulator.engine import simulate, simulate_in_steps
from otel_llm.scheduling.simulator.placing import PLACEMENTS
from otel_llm.scheduling.workload.workload import draw_workload


@pytest.mark.parametrize("every", [1, 7, 50, 60])
def test_the_tokens_so_far_are_those_of_the_whole_run_until_then(
    tmp_path_factory: pytest.TempPathFactory, every: int
) -> None:
    # At this rate requests wait, and some are preempted.
    (planned,) = load_runs(scenario(tmp_path_factory.mktemp("steps")), ["workload.arrivals.poisson=20000000"])
    one = planned.scenario
    workload = draw_workload(one.workload, one.profile, 1)
    place = PLACEMENTS["least_load"]
    whole = simulate(workload.requests(), one.profile, one.fleet, place(Random(0)))
    requests = workload.requests()
    steps = 0
    for run in simulate_in_steps(requests, one.profile, one.fleet, place(Random(0)), every):
        steps += 1
        for request, final in zip(requests, whole.requests, strict=True):
            times = whole.token_times(final)
            assert run.tokens_so_far(request).tolist() == times[times <= run.end_ns].tolist()
    assert steps == len(requests) // every + 1
    assert run.end_ns == whole.end_ns
