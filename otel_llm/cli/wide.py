"""Where tables are printed: a terminal as wide as it is, anything else wide enough for them."""

from __future__ import annotations

from typing import Final

from rich.console import Console

WIDTH: Final = 120
"""Columns of the tables where the output is no terminal."""


def wide_console(width: int = WIDTH) -> Console:
    """Return the console of standard output, of `width` columns where that is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=width)
