"""The command of an example that rebuilds a paper's tables: CSV files, the tables of its README, pictures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from markdown_tables import insert
from png_pictures import draw_all
from resumed_points import load, run_points

from otel_llm.cli.output.progress import counting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from resumed_points import Cell, Point, Row

    Tables = Mapping[str, Sequence[Row]]


class Table(NamedTuple):
    """A table: its points, and the function of one that returns the other columns."""

    points: Sequence[Point]
    compute: Callable[[Point], Mapping[str, Cell | None]]


def rebuild(
    words: str,
    folder: Path,
    tables: Mapping[str, Table],
    readme_tables: Callable[[Tables], Mapping[str, str]],
    figures: Callable[[Tables], Mapping[str, tuple[str, dict[str, Any]]]],
) -> None:
    """Compute what is missing, as the arguments of the command line say; `words` describe the command."""
    asked = _parser(words, folder, tables).parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name in () if asked.draw else asked.only or tables:
        points, compute = tables[name]
        with counting(name, len(points)) as progress:
            rows = run_points(asked.folder / f"{name}.csv", points, compute, asked.jobs, progress)
        print(f"{name}: {len(rows)} points")
    files = {name: asked.folder / f"{name}.csv" for name in tables}
    if all(file.exists() for file in files.values()):
        found = {name: load(file) for name, file in files.items()}
        if asked.folder == folder:
            insert(folder / "README.md", readme_tables(found))
        draw_all(asked.folder, figures(found))


def _parser(words: str, folder: Path, tables: Mapping[str, Table]) -> argparse.ArgumentParser:
    script = f"python examples/{folder.name}/rebuild_{folder.name}.py"
    examples = f"""examples:
  {script}                              # what is missing, on one processor
  {script} --only figure-7 --jobs 4     # one table
  {script} --folder mine                # all anew, into another folder"""
    parser = argparse.ArgumentParser(
        description=words, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=tables, action="append", help="a table; may be repeated; default: all")
    parser.add_argument(
        "--draw", action="store_true", help="compute nothing: fill and draw from the rows that are there"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--folder", type=Path, default=folder, help="where the CSV files are (default: this example's)")
    return parser
