"""What `rules explain` and `rules backtest` say of a file of something else that is named as decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from otel_llm.rules.decisions.files import read_back
from otel_llm.rules.decisions.transitions import read_record

if TYPE_CHECKING:
    from pathlib import Path


def refuse_others(path: Path, broken: int) -> None:
    """Refuse a file that has lines, none of which is a record."""
    if broken:
        none = (
            "its only line is no decision record"
            if broken == 1
            else f"none of its {broken:,} lines is a decision record"
        )
        raise click.UsageError(f"{path}: {none}; name the file that `collect --decisions` writes")


def refuse_without_record(path: Path) -> None:
    """Refuse a file that has lines, none of which is a record; one that has a record is read no further than there.

    Raises OSError where it cannot be read; a file that is not there has no lines.
    """
    broken = 0
    for line in read_back(path):
        if read_record(line) is not None:
            return
        broken += 1
    refuse_others(path, broken)
