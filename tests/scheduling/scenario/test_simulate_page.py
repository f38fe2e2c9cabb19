"""What `docs/simulate.md` shows is read, and its tables name every key and placement."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from support.scheduling.scenarios import scenario

from otel_llm.scheduling.placement import DEFAULT, POLICIES, POLYSERVE
from otel_llm.scheduling.scenario.running import run_scenario
from otel_llm.scheduling.scenario.scenario import COMMON, PolicyShape
from otel_llm.scheduling.scenario.sweep import load_runs
from otel_llm.scheduling.simulator.placing import PLACEMENTS

PAGE = (Path(__file__).parents[3] / "docs" / "simulate.md").read_text(encoding="utf-8")


def cells(heading: str) -> list[str]:
    """Return the first cell of each row of the table below a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return [key for row in rows for key in re.findall(r"`(.+?)`", row)]


def test_the_scenario_is_read(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(load_runs(scenario(tmp_path, shown))) == 6


def test_every_key_of_a_run_is_explained(tmp_path: Path) -> None:
    (run,) = load_runs(scenario(tmp_path))
    assert sorted(cells("The results")) == sorted(["settings", *run_scenario(run.scenario, 0)])


def test_every_placement_is_named() -> None:
    (row,) = re.findall(r"^\| `policy.placement` \| (.*) \|$", PAGE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == {*PLACEMENTS, POLYSERVE, DEFAULT} - (set(POLICIES) - {DEFAULT})
    assert "(relay.md#placement)" in row


def test_every_order_is_named_and_every_key_of_the_policy() -> None:
    (row,) = re.findall(r"^\| `policy.order` \| (.*) \|$", PAGE, re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == list(get_args(PolicyShape.model_fields["order"].annotation))
    assert set(re.findall(r"^\| `policy\.(\w+)` \|", PAGE, re.MULTILINE)) == COMMON
