"""The console of tables, of the terminal's width, else wide enough for the tables; and a table of figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.segment import Segment

from otel_llm.shared.printable import printable_lines

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from rich.console import ConsoleOptions, RenderableType
    from rich.table import Table

WIDTH: Final = 120
"""The width if the output is no terminal."""


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
    """Return the console of standard output; `width`: if that is no terminal."""
    console = SafeConsole()
    return console if console.is_terminal else SafeConsole(width=width)


def figures_table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    texts: Collection[int] = (),
    unwrapped: Collection[int] | None = None,
) -> Table:
    """Return a table of figures, to the right, and of texts in the columns `texts`, to the left.

    `unwrapped`: the columns that keep to one line, of a table that may be too wide for a terminal; None: all.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD)
    if unwrapped is not None:
        table.padding = (0, 1, 0, 0)
    for index, heading in enumerate(headings):
        table.add_column(
            heading,
            justify="left" if index in texts else "right",
            no_wrap=unwrapped is None or index in unwrapped,
            overflow="ellipsis" if unwrapped is None else "fold",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table
