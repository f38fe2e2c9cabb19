"""Points of a table, computed on several processors and kept in a CSV file, so that a second start goes on.

A point is a mapping of names to texts and numbers, the key of its row. Each row is written when its point is done; a
point whose row is there is not computed again. At the end the rows stand in the order of the points.
"""

from __future__ import annotations

import csv
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

Cell = str | int | float
Point = dict[str, Cell]
Row = dict[str, str]
"""Cells by the names of their columns, as the file has them."""


def select(rows: Iterable[Row], **wanted: str) -> list[Row]:
    """Return the rows with these cells."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def run_points(
    file: Path,
    points: Sequence[Point],
    compute: Callable[[Point], Mapping[str, Cell | None]],
    jobs: int = 1,
    progress: Callable[[int], None] | None = None,
) -> list[Row]:
    """Compute the points that the file lacks, and return the rows of all.

    All points have the same names, and there is at least one. `compute` is a function of a module, as other processes
    import it. `progress` is called with the points done.
    """
    kept = {tuple(row.get(name, "") for name in points[0]): row for row in load(file)} if file.exists() else {}
    rows = {key: kept[key] for point in points if (key := text_key(point)) in kept}
    missing = [point for point in points if text_key(point) not in rows]
    if missing:
        _write(file, rows.values())  # without a row that an interruption cut short
    for point, values in _computed(missing, compute, jobs):
        row = {name: text_of(value) for name, value in {**point, **values}.items()}
        new = not rows
        rows[text_key(point)] = row
        with file.open("a", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, list(row), lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(row)
        if progress is not None:
            progress(len(rows))
    ordered = [rows[text_key(point)] for point in points]
    if missing:
        _write(file, ordered)
    return ordered


def load(file: Path) -> list[Row]:
    """Return the rows of a file, without one that an interruption cut short."""
    whole = file.read_text(encoding="utf-8").rpartition("\n")[0]
    return [row for row in csv.DictReader(whole.splitlines()) if None not in row and None not in row.values()]


def text_key(point: Point) -> tuple[str, ...]:
    """Return the key of a point as its row has it."""
    return tuple(text_of(cell) for cell in point.values())


def text_of(cell: Cell | None) -> str:
    """Return a cell as the file has it: a number with six digits, nothing for None."""
    if cell is None:
        return ""
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def _computed(
    points: Sequence[Point], compute: Callable[[Point], Mapping[str, Cell | None]], jobs: int
) -> Iterable[tuple[Point, Mapping[str, Cell | None]]]:
    if min(jobs, len(points)) < 2:
        for point in points:
            yield point, compute(point)
        return
    # A started process inherits no threads, such as those of a progress bar.
    with ProcessPoolExecutor(min(jobs, len(points)), multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(compute, point): point for point in points}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _write(file: Path, rows: Iterable[Row]) -> None:
    """Replace the file as a whole, so that an interruption leaves the old or the new one."""
    rows = list(rows)
    beside = file.with_suffix(".new")
    with beside.open("w", newline="", encoding="utf-8") as out:
        if rows:
            writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    beside.replace(file)
