"""Points kept in a CSV file: a second start goes on, also from a row that was cut short."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "sweeping"))

from markdown_tables import inserted, markdown
from resumed_points import Point, load, run_points

POINTS: list[Point] = [{"name": name, "load": load} for name in ("a", "b, c") for load in (1, 2.5)]


def square(point: Point) -> dict[str, str | int | float | None]:
    load = float(point["load"])
    return {"square": load**2, "nothing": None}


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.system)])
def test_all_points_are_computed_in_their_order(jobs: int, tmp_path: Path) -> None:
    done: list[int] = []
    rows = run_points(tmp_path / "t.csv", POINTS, square, jobs, done.append)
    assert done == [1, 2, 3, 4]
    assert (tmp_path / "t.csv").read_text() == (
        'name,load,square,nothing\na,1,1,\na,2.5,6.25,\n"b, c",1,1,\n"b, c",2.5,6.25,\n'
    )
    assert rows == load(tmp_path / "t.csv")


@pytest.mark.parametrize("cut", ["", '"b, c",2.5,6.2,', '"b, c",2.5,6', '"b, c"', "b"])
def test_a_second_start_computes_what_is_missing(cut: str, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text('name,load,square,nothing\n"b, c",1,mine,\na,2.5,6.25,\n' + cut)
    asked: list[Point] = []

    def noted(point: Point) -> dict[str, str | int | float | None]:
        asked.append(point)
        return square(point)

    rows = run_points(file, POINTS, noted)
    assert asked == [POINTS[0], POINTS[3]]
    assert [row["square"] for row in rows] == ["1", "6.25", "mine", "6.25"]
    assert load(file) == rows


def test_what_is_done_stays_when_a_point_fails(tmp_path: Path) -> None:
    def fails_late(point: Point) -> dict[str, str | int | float | None]:
        if point == POINTS[2]:
            raise RuntimeError("interrupted")
        return square(point)

    with pytest.raises(RuntimeError):
        run_points(tmp_path / "t.csv", POINTS, fails_late)
    assert len(load(tmp_path / "t.csv")) == 2


def test_a_finished_file_stays_as_it_is(tmp_path: Path) -> None:
    run_points(tmp_path / "t.csv", POINTS, square)
    before = (tmp_path / "t.csv").stat().st_mtime_ns
    run_points(tmp_path / "t.csv", POINTS, square)
    assert (tmp_path / "t.csv").stat().st_mtime_ns == before


def test_tables_stand_between_their_marks() -> None:
    page = "before\n<!-- one -->\nold\n<!-- end -->\nafter\n"
    table = markdown(("a", "b"), [("x", "1")])
    assert inserted(page, {"one": table}) == (
        "before\n<!-- one -->\n| a | b |\n| --- | ---: |\n| x | 1 |\n<!-- end -->\nafter\n"
    )
    with pytest.raises(ValueError, match="no place for 'two'"):
        inserted(page, {"two": table})
