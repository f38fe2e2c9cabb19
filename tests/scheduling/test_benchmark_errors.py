"""The simulator beside a real engine (`benchmarks/simulator_error.py`): what is compared with what."""

from __future__ import annotations

import sys
from pathlib import Path

from otel_llm.scheduling import load_profile

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from simulator_error_parts.errors import simulated
from simulator_error_parts.load import Served


def test_requests_that_were_sent_the_other_way_round_keep_their_places() -> None:
    served = [Served(10 + after_ms, 10**18 + after_ms * 10**6, [0] * 20) for after_ms in (0, 5, 4, 90)]
    found = simulated(served, load_profile("cpu-tiny"))
    in_order = simulated(sorted(served, key=lambda one: one.sent_ns), load_profile("cpu-tiny"))
    assert [one.input for one in found] == [one.input for one in served]
    assert sorted(found, key=lambda one: one.sent_ns) == in_order
    assert found[2].times_ns[0] <= found[1].times_ns[0]
