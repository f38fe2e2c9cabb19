"""Rebuild figures 7 to 11 and tables 1 and 2 of the SLO-aware annealing scheduler (arXiv 2504.14966).

Each table is a CSV file. A point whose row is there is not computed again, so that a second start goes on. Then come
the tables of README.md, and the pictures where a Chromium is installed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "sweeping"))

from annealing_figures import figures  # noqa: E402
from annealing_points import TABLES  # noqa: E402
from annealing_tables import readme_tables  # noqa: E402
from markdown_tables import insert  # noqa: E402
from png_pictures import draw_all  # noqa: E402
from resumed_points import load, run_points  # noqa: E402

from otel_llm.cli.output.progress import counting  # noqa: E402

EXAMPLE = """example:
  python examples/annealing/rebuild_annealing.py                                  # what is missing, on one processor
  python examples/annealing/rebuild_annealing.py --only figure-7 --jobs 4         # one table
  python examples/annealing/rebuild_annealing.py --folder mine                    # all anew, into another folder"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=TABLES, action="append", help="a table; may be repeated; default all")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1: times are those of an idle machine)")
    parser.add_argument("--folder", type=Path, default=HERE, help="where the CSV files are (default: this folder)")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name in asked.only or TABLES:
        points, compute = TABLES[name]
        with counting(name, len(points)) as progress:
            rows = run_points(asked.folder / f"{name}.csv", points, compute, asked.jobs, progress)
        print(f"{name}: {len(rows)} points")
    files = {name: asked.folder / f"{name}.csv" for name in TABLES}
    if all(file.exists() for file in files.values()):
        rows_of = {name: load(file) for name, file in files.items()}
        if asked.folder == HERE:
            insert(HERE / "README.md", readme_tables(rows_of))
        draw_all(asked.folder, figures(rows_of))


if __name__ == "__main__":
    main()
