"""The console of tables: of the terminal's width, else wide enough for the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.segment import Segment

from otel_llm.shared.printable import printable_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType

WIDTH: Final = 120
"""The width where the output is no terminal."""


class SafeConsole(Console):
    """A rich console that escapes control characters in the text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, escaped."""
        for segment in super().render(renderable, options):
            if segment.control is None and not segment.text.isprintable():
                yield Segment(printable_lines(segment.text), segment.style)
            else:
                yield segment


def wide_console(width: int = WIDTH) -> Console:
    """Return the console of standard output; `width`: where that is no terminal."""
    console = SafeConsole()
    return console if console.is_terminal else SafeConsole(width=width)
