"""The scenario of `docs/polyserve.md` runs, and its table names every switch with its default."""

from __future__ import annotations

import re
from pathlib import Path

from support.scheduling.scenarios import scenario

from otel_llm.scheduling.scenario.running import run_scenario
from otel_llm.scheduling.scenario.scenario import COMMON, PolicyShape
from otel_llm.scheduling.scenario.sweep import load_runs

PAGE = (Path(__file__).parents[3] / "docs" / "polyserve.md").read_text(encoding="utf-8")


def test_the_scenario_runs(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    runs = load_runs(scenario(tmp_path, shown), ["workload.requests=150", "workload.warmup=0s"])
    assert [run.settings for run in runs] == [
        {"policy.lazy_promotion": True},
        {"policy.lazy_promotion": False},
    ]
    row = run_scenario(runs[0].scenario, 0)
    assert row["attainment"] > 0.9
    assert row["instance_seconds"] < 20 * row["simulated_s"], "autoscaling counts what is in use"


def test_every_switch_is_named_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\S+)` \|", PAGE, re.MULTILINE))
    fields = {name: field.default for name, field in PolicyShape.model_fields.items() if name not in COMMON}
    assert list(rows) == list(fields)
    for name, default in fields.items():
        text = str(default).lower() if isinstance(default, bool | str) else f"{float(default):g}"
        assert rows[name] == text
