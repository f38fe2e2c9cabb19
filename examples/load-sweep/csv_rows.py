"""Tables as CSV: a row is a named tuple of texts, whole numbers and floats."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Row = TypeVar("Row", bound=tuple[Any, ...])


def write(rows: Sequence[Any], file: Path) -> None:
    """Write named tuples of one kind; there is at least one."""
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(rows[0]._fields)
        writer.writerows(rows)


def load(file: Path, of: type[Row]) -> list[Row]:
    """Read what `write` wrote."""
    kinds = get_type_hints(of)
    with file.open(newline="", encoding="utf-8") as lines:
        return [of(**{name: kinds[name](cell) for name, cell in row.items()}) for row in csv.DictReader(lines)]
