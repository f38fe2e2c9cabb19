"""The check that a file holds decision records, for `rules explain` and `rules backtest`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from otel_llm.rules.decisions.files import read_back
from otel_llm.rules.decisions.transitions import read_record

if TYPE_CHECKING:
    from pathlib import Path


def refuse_others(path: Path, broken: int) -> None:
    """Refuse a file without records that has `broken` other lines.

    Raises:
        UsageError: it has.
    """
    if broken:
        none = (
            "its only line is no decision record"
            if broken == 1
            else f"none of its {broken:,} lines is a decision record"
        )
        raise click.UsageError(f"{path}: {none}; name the file that `collect --decisions` writes")


def refuse_without_record(path: Path) -> None:
    """Refuse a file that has lines but no record; read it up to the first record only.

    Raises:
        UsageError: it has none.
        OSError: it cannot be read. A missing file has no lines.
    """
    broken = 0
    for line in read_back(path):
        if read_record(line) is not None:
            return
        broken += 1
    refuse_others(path, broken)
