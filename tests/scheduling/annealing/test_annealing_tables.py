"""The rebuilt tables of the annealing paper: one row of each again, and the README has what the files have."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import astuple
from functools import partial
from pathlib import Path

import pytest
from support.patience import WAIT_S

from otel_llm.scheduling import Job, load_profile

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "annealing"
sys.path[:0] = [str(FOLDER), str(ROOT / "examples" / "sweeping")]  # scripts that find each other as when they are run

from annealing_figures import figures  # noqa: E402
from annealing_points import TABLES, share_point  # noqa: E402
from annealing_tables import readme_tables  # noqa: E402
from drawn_jobs import draw_jobs, kind_of, predicted  # noqa: E402
from latency_model import DECODE, PREFILL, PROFILE, LatencyModel, fit, samples, table  # noqa: E402
from markdown_tables import inserted  # noqa: E402
from resumed_points import Point, Row, load, text_of  # noqa: E402
from served_jobs import serve  # noqa: E402

REBUILT: dict[str, Point] = {
    "figure-7": {"profile": "v100x2", "max_batch": 2, "jobs": 8, "lengths": "gaussian", "search": "scaled"},
    "figure-8": {"profile": "h100", "jobs": 10, "max_batch": 1, "start": 100, "moves": 50},
    "figure-9": {"profile": "v100x2", "max_batch": 4, "jobs": 10, "lengths": "0.025", "search": "paper"},
    "figure-10": {"phase": "decode", "coefficient": "delta", "deviation": 0.2, "search": "scaled"},
    "figure-11": {"profile": "v100x2", "max_batch": 2, "instances": 1, "search": "scaled"},
    "table-1": {"profile": "v100x2", "jobs": 6, "search": "scaled"},
    "table-2": {"profile": "h100", "phase": "decode"},
    "optimum": {"profile": "v100x2", "max_batch": 1, "jobs": 6},
}


def committed(name: str) -> list[Row]:
    return load(FOLDER / f"{name}.csv")


def test_one_row_of_each_table_is_rebuilt() -> None:
    assert REBUILT.keys() == TABLES.keys()


@pytest.mark.parametrize("name", REBUILT)
def test_a_row_follows_from_its_key(name: str) -> None:
    point = REBUILT[name]
    # The searches by annealing of 200 instances take too long here: those of the other tables are the same.
    compute = partial(share_point, searches=("arrival", "shortest")) if name == "optimum" else TABLES[name].compute
    (row,) = [one for one in committed(name) if all(one[key] == text_of(value) for key, value in point.items())]
    values = {**point, **compute(point)}
    assert row.keys() == values.keys() or (name == "optimum" and row.keys() > values.keys())
    steady = {key: text_of(value) for key, value in values.items() if not key.endswith("_ms")}
    assert {key: row[key] for key in steady} == steady


@pytest.mark.parametrize("name", TABLES)
def test_every_point_has_a_row_in_its_place(name: str) -> None:
    points, _ = TABLES[name]
    keys = [[text_of(cell) for cell in point.values()] for point in points]
    assert [[row[column] for column in point] for point, row in zip(points, committed(name), strict=True)] == keys


def test_the_readme_has_the_tables() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert text == inserted(text, readme_tables({name: committed(name) for name in TABLES}))


def test_each_figure_has_a_picture_and_a_place() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name in figures({name: committed(name) for name in TABLES}):
        assert (FOLDER / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"({name}.png)" in text


def test_the_profile_is_the_papers_equations() -> None:
    profile, model = load_profile(PROFILE), LatencyModel()
    for decodes in (0, 1, 2, 3, 7, 32, 40):
        for context in (1, 99, 2000, 3001):
            for chunk in (0, 1, 150, 5000):
                if decodes or chunk:
                    at = (decodes, decodes * context, chunk)
                    assert profile.iteration_ns(*at) == model.iteration_ns(*at)
    # By hand: 0.0002 x 2 x 300 + 0.275 x 2 + 0.00088 x 300 + 15.85; 0.1 x 200 + 5.7 + 0.01 x 200 + 43.67.
    assert profile.iteration_ns(2, 600) == 16_784_000
    assert profile.iteration_ns(0, 0, 200) == 71_370_000


def test_the_profiles_table_is_the_written_one() -> None:
    lines = PROFILE.with_suffix(".csv").read_text(encoding="utf-8").splitlines()
    assert lines == [",".join(row) for row in table()]


def test_the_fit_finds_the_coefficients() -> None:
    found, _ = fit([(requests, each, PREFILL.ms(requests, each)) for requests in (1, 3) for each in (10, 500)])
    assert astuple(found) == pytest.approx(astuple(PREFILL))
    found, r_squared = fit(samples(LatencyModel(), "decode"))
    assert astuple(found) == pytest.approx(astuple(DECODE), rel=1e-6)
    assert r_squared == pytest.approx(1.0)


def test_served_jobs_by_hand() -> None:
    # A prefill of 200 tokens takes 71.37 ms, a decode 16.125 ms and 1.08 us a token of context: 201 and 202 here.
    first_s = 0.07137
    end_s = first_s + 2 * 0.016125 + 403 * 0.00000108
    jobs = [Job(200, 3, ttft=first_s, tpot=(end_s - first_s) / 2), Job(200, 3, e2e=2 * end_s)]
    profile = load_profile(PROFILE)
    both = serve([[0], [1]], jobs, profile, 1)
    assert (both.met, both.jobs) == (2, 2)
    assert both.latency_s == pytest.approx(3 * end_s, abs=1e-9)
    # The other way round the chat job is late, and the code job has time left. The second batch is sent 0.1 ms later.
    assert serve([[1], [0]], jobs, profile, 1).met == 1
    tight = [jobs[0], Job(200, 3, e2e=2 * end_s - 1e-9)]
    assert serve([[0], [1]], tight, profile, 1).met == 1
    slow = [Job(200, 3, ttft=first_s, tpot=(end_s - first_s) / 2 - 1e-9), jobs[1]]
    assert serve([[0], [1]], slow, profile, 1).met == 1


def test_drawn_jobs_are_half_code_and_below_two_thousand_tokens() -> None:
    jobs = draw_jobs(400, "a")
    assert jobs == draw_jobs(400, "a") != draw_jobs(400, "b")
    assert Counter(map(kind_of, jobs)) == {"chat": 200, "code": 200}
    assert max(job.input + job.output for job in jobs) < 2000
    assert {(job.e2e, job.ttft, job.tpot) for job in jobs} == {(30.0, None, None), (None, 10.0, 0.05)}
    known = predicted(jobs, "0", "x")
    assert known == jobs
    near = predicted(jobs, "0.1", "x")
    assert near != jobs
    assert all(abs(one.output - job.output) <= 0.1 * job.output + 0.5 for one, job in zip(near, jobs, strict=True))


def test_the_help_has_an_example() -> None:
    command = [sys.executable, str(FOLDER / "rebuild_annealing.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert "examples:" in done.stdout
