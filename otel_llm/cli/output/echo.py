"""Output of commands to a terminal and to the log, with control characters escaped."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

import click

from otel_llm.shared.printable import LONGEST_LINE, printable, printable_lines

if TYPE_CHECKING:
    from types import TracebackType

CSV_RAW: Final = "Write text in CSV as it is, also what a spreadsheet would run as a formula."


def echo(text: str, *, err: bool = False) -> None:
    """Write lines for people, with control characters escaped; `write_data` writes data for programs."""
    click.echo(printable_lines(text), err=err)


def write_data(text: str) -> None:
    """Write CSV or YAML as it is; escape control characters on a terminal only."""
    click.echo(printable_lines(text) if sys.stdout.isatty() else text, nl=False)


class SafeLog(logging.Formatter):
    """A formatter that writes a record as one escaped line, followed by its traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the message, escaped."""
        return printable(super().formatMessage(record), LONGEST_LINE)

    def formatException(  # noqa: N802 - logging's name
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        """Return the traceback, escaped."""
        return printable_lines(super().formatException(ei))
