"""The rebuilt figures of PolyServe: one row of each table again, and the README has what the files have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.patience import WAIT_S

from otel_llm.scheduling.scenario.running import drawn_workload, run_scenario
from otel_llm.scheduling.scenario.sweep import load_runs

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "polyserve"
sys.path[:0] = [str(FOLDER), str(ROOT / "examples" / "sweeping")]  # scripts that find each other as when they are run

from markdown_tables import inserted  # noqa: E402
from polyserve_figures import figures  # noqa: E402
from polyserve_points import TABLES, fewest, scenario_of  # noqa: E402
from polyserve_tables import carried, load_at, ratios, readme_tables  # noqa: E402
from resumed_points import Point, Row, load, text_of  # noqa: E402
from shifted_tiers import run_shifted, second_half, shifted_workload  # noqa: E402
from timed_placement import placements_per_s  # noqa: E402

ERA = "h200-paper-era"
REBUILT: dict[str, Point] = {
    "figure-6": {"profile": ERA, "trace": "uniform_4096_1024", "policy": "CO-LMetric", "share": 0.4},
    "mechanisms": {
        "trace": "uniform_4096_1024",
        "profile": ERA,
        "policy": "CO-PolyServe",
        "share": 1.0,
        "switch": "no lazy promotion",
    },
    "figure-7": {"profile": ERA, "policy": "CO-LMetric", "share": 0.6},
    "figure-8": {"profile": ERA, "policy": "CO-PolyServe", "load_req_s": 5},
    "figure-9": {"profile": ERA, "instances": 8, "policy": "CO-PolyServe", "share": 0.6},
}


def committed(name: str) -> list[Row]:
    return load(FOLDER / f"{name}.csv")


@pytest.mark.parametrize("name", REBUILT)
def test_a_row_follows_from_its_key(name: str) -> None:
    point = REBUILT[name]
    (row,) = [one for one in committed(name) if all(one[key] == text_of(value) for key, value in point.items())]
    values = {**point, **TABLES[name].compute(point)}
    assert row == {key: text_of(value) for key, value in values.items()}


@pytest.mark.parametrize("name", TABLES)
def test_every_row_is_of_a_point_and_in_its_place(name: str) -> None:
    points = [tuple(text_of(cell) for cell in point.values()) for point in TABLES[name].points]
    places = [points.index(tuple(row[key] for key in TABLES[name].points[0])) for row in committed(name)]
    assert places == sorted(set(places))
    assert places


def test_the_readme_has_the_tables() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert text == inserted(text, readme_tables({name: committed(name) for name in TABLES}))


def test_each_figure_has_a_picture_and_a_place() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name in figures({name: committed(name) for name in TABLES}):
        assert (FOLDER / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"({name}.png)" in text


@pytest.mark.parametrize("scenario", ["uniform_4096_1024", "splitwise"])
def test_the_scenarios_are_read(scenario: str) -> None:
    assert len(load_runs(FOLDER / f"{scenario}.yaml")) == 4


@pytest.mark.parametrize(
    ("levels", "wanted"),
    [
        ([(10.0, 0.8), (20.0, 0.7)], None),
        ([(10.0, 1.0), (20.0, 0.95)], 20.0),
        ([(10.0, 1.0), (20.0, 0.8)], 15.0),
        ([(10.0, 1.0), (20.0, 0.8), (30.0, 0.9), (40.0, 0.8)], 30.0),
    ],
)
def test_the_load_at_ninety_percent_by_hand(levels: list[tuple[float, float]], wanted: float | None) -> None:
    assert load_at(levels) == (None if wanted is None else pytest.approx(wanted))


def rows_of(**loads: tuple[float, float]) -> list[Row]:
    """Rows of policies at 10 and 20 requests/s with these attainments."""
    return [
        {"policy": name.replace("_", "-"), "load_req_s": str(at), "attainment": str(share)}
        for name, shares in loads.items()
        for at, share in zip((10, 20), shares, strict=True)
    ]


def test_ratios_by_hand() -> None:
    rows = rows_of(PD_PolyServe=(1.0, 0.9), PD_Random=(1.0, 0.8), PD_Minimal=(0.95, 0.8), PD_LMetric=(1.0, 0.85))
    over_paper, over_all = ratios(rows, 2, "PD", "PD-PolyServe")
    assert over_paper == pytest.approx(20 / 15)
    assert over_all == pytest.approx(20 / (10 + 10 * 0.1 / 0.15))
    # A level that was not run says nothing about the policy, and a missing baseline nothing about the best.
    assert carried(rows[:1], 2) is None
    assert ratios(rows[:4] + rows[6:], 2, "PD", "PD-PolyServe") == (None, over_all)


@pytest.mark.parametrize("least", range(3, 10))
def test_the_fewest_instances_are_found(least: int) -> None:
    assert fewest(lambda instances: 0.9 if instances >= least else 0.89, 3, 9) == least


def test_a_mix_that_is_inverted_half_way() -> None:
    scenario = scenario_of("uniform_4096_1024", ERA, ("policy.placement=lmetric",), 12.0, 20)
    workload, plain = shifted_workload(scenario, 3), drawn_workload(scenario, 3)
    later = second_half(workload)
    judged = workload.arrivals_ns >= workload.warmup_ns
    tier = np.array([one.tier for one in workload.classes])[workload.class_index]
    assert (workload.class_index[~later] == plain.class_index[~later]).all()
    assert np.mean(tier[judged & ~later] == "t20") == pytest.approx(0.1, abs=0.06)
    assert np.mean(tier[later] == "t20") == pytest.approx(0.4, abs=0.1)
    assert np.mean(tier[later] == "t100") == pytest.approx(0.1, abs=0.06)
    row, halves = run_shifted(scenario, 3)
    met = halves["before"] * (judged & ~later).sum() + halves["after"] * later.sum()
    assert row["attainment"] * row["requests"] == pytest.approx(met)


def test_a_given_workload_is_served_in_place_of_the_drawn_one() -> None:
    scenario = scenario_of("uniform_4096_1024", ERA, ("policy.placement=random",), 2.0, 20)
    drawn = drawn_workload(scenario, 0)
    speeds = {"decisions_per_s": 0, "wall_s": 0}
    assert run_scenario(scenario, 0, workload=drawn) | speeds == run_scenario(scenario, 0) | speeds
    other = run_scenario(scenario, 0, workload=drawn_workload(scenario, 1))
    assert other | speeds != run_scenario(scenario, 0) | speeds


def test_only_polyserve_is_timed() -> None:
    settings = ("policy.placement=random",)
    with pytest.raises(ValueError, match="write `placement: polyserve`"):
        placements_per_s(scenario_of("uniform_4096_1024", ERA, settings, 1.0, 8), 0)
    assert placements_per_s(scenario_of("uniform_4096_1024", ERA, ("policy.placement=polyserve",), 1.0, 8), 0) > 0


def test_the_help_has_an_example() -> None:
    command = [sys.executable, str(FOLDER / "rebuild_polyserve.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert "--only figure-7" in done.stdout
