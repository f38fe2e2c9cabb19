"""Tables in a README: between `<!-- NAME -->` and `<!-- end -->`, so that a test can hold them to their data."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """Return a table whose first `text_columns` are texts, the others numbers."""
    marks = ["---"] * text_columns + ["---:"] * (len(heads) - text_columns)
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, marks, *rows))


def inserted(text: str, tables: Mapping[str, str]) -> str:
    """Return a page with each table between its marks.

    Raises: ValueError for a table without marks.
    """
    for name, table in tables.items():
        place = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        found = place.search(text)
        if found is None:
            raise ValueError(f"the page has no place for {name!r}: write <!-- {name} --> and <!-- end -->")
        text = f"{text[: found.end(1)]}{table}\n{text[found.start(2) :]}"
    return text


def insert(page: Path, tables: Mapping[str, str]) -> None:
    """Write the tables into a page."""
    page.write_text(inserted(page.read_text(encoding="utf-8"), tables), encoding="utf-8")
