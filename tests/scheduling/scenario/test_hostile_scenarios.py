"""Any value anywhere in a scenario gives runs or an error that names it; no other exception, and no endless work."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.scheduling.scenarios import SCENARIO, scenario

from otel_llm.config.yaml_file import ConfigError, parse_yaml
from otel_llm.scheduling.scenario.running import run_scenario
from otel_llm.scheduling.scenario.sweep import PlannedRun, load_runs

Place = tuple[str | int, ...]
NUMBERS = st.integers(-3, 3) | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.sampled_from(["1s", "0.5ns", "1e3s", "-1s", "31y", "trace", "fcfs", "random", "hand.yaml", ".", "", "é\0"])
SCALARS = st.none() | st.booleans() | NUMBERS | WORDS | st.text(max_size=8)
KEYS = st.sampled_from(
    (
        *("poisson", "constant", "gamma", "cv", "trace", "speed", "uniform", "fixed", "percentiles", "50", "99"),
        *("input", "output", "tiers", "prefill", "transfer", "latency", "per_token", "mode"),
        *("workload.requests", "fleet.instances"),
    )
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
BASE = parse_yaml(SCENARIO.replace("requests: 50", "requests: 5").encode(), "f").data


def places_of(data: Any, path: Place = ()) -> list[Place]:
    """Return the path of every value."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(place for key, value in inner for place in places_of(value, (*path, key)))]


def changed(data: Any, path: Place, value: Any) -> Any:
    if not path:
        return value
    copy = data.copy()
    copy[path[0]] = changed(data[path[0]], path[1:], value)
    return copy


@example(("workload", "arrivals"), {"trace": "a\0b"})
@given(st.sampled_from([*places_of(BASE)[1:], ("sweep",), ("objective",)]), VALUES)
def test_any_value_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, place: Place, value: Any) -> None:
    data = {**BASE, "sweep": {}, "objective": {"attainment": 0.5}}
    path = scenario(tmp_path_factory.getbasetemp(), json.dumps(changed(data, place, value)))
    refused = ""
    runs: list[PlannedRun] = []
    try:
        runs = load_runs(path)
        for run in runs[:2]:
            if (run.scenario.workload.requests or 0) < 100 and run.scenario.fleet.instances < 100:
                json.dumps(run_scenario(run.scenario, 0), allow_nan=False)
    except ConfigError as error:
        refused = str(error)
    assert runs or refused
