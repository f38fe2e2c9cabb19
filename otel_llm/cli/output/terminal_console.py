"""Where tables are printed: a terminal as wide as it is, anything else wide enough for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.segment import Segment

from otel_llm.shared.printable import printable_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType

WIDTH: Final = 120
"""Columns of the tables where the output is no terminal."""


class SafeConsole(Console):
    """Write as rich does, and escape what a terminal would obey in the text: only the styles are ours."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of what is to be written."""
        for segment in super().render(renderable, options):
            if segment.control is None and not segment.text.isprintable():
                yield Segment(printable_lines(segment.text), segment.style)
            else:
                yield segment


def wide_console(width: int = WIDTH) -> Console:
    """Return the console of standard output, of `width` columns where that is no terminal."""
    console = SafeConsole()
    return console if console.is_terminal else SafeConsole(width=width)
