"""The tables of columns and figures in docs/audit.md, generated from the tables of metrics.

`python -m otel_llm.audit.columns_page docs/audit.md` writes them anew.
"""

from __future__ import annotations

import re
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_llm.slo.figures import FIGURES
from otel_llm.slo.metrics import COLUMNS, WINDOW_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_llm.slo.figures import Figure
    from otel_llm.slo.metrics import Column, WindowColumn

_TABLES: Final[tuple[tuple[str, str, Iterable[Column | WindowColumn | Figure]], ...]] = (
    ("A request", "column", COLUMNS),
    ("A window", "column", WINDOW_COLUMNS),
    ("The summary", "key", [one for one in FIGURES if one.in_summary]),
)
"""(beginning of the section's title, heading, rows)."""


def with_tables(page: str) -> str:
    """Return the page with the tables as they are now."""
    for title, heading, rows in _TABLES:
        table = "\n".join([f"| {heading} | unit | what it is |", "|---|---|---|", *_lines(rows)])
        found = re.search(rf"\n## {title} [^\n]*\n(?:(?!\||## )[^\n]*\n)*((?:\|[^\n]*\n)+)", page)
        if found is None:
            raise ValueError(f"no table in the section {title!r}")
        page = f"{page[: found.start(1)]}{table}\n{page[found.end(1) :]}"
    return page


def _lines(rows: Iterable[Column | WindowColumn | Figure]) -> Iterable[str]:
    """Yield a line for each run of rows that have unit and meaning in common."""
    for (unit, words), same in groupby(rows, lambda one: (one.unit, one.help)):
        names = ", ".join(f"`{one.name}`" for one in same)
        shown = {"": "", "share": " 0..1"}.get(unit, f" {unit}")
        yield f"| {names} |{shown} | {words} |"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(with_tables(Path(name).read_text("utf-8")), encoding="utf-8")
