"""How commands write to a terminal and to the log: nothing that telemetry, a file or a server says acts there."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

import click

from otel_llm.shared.printable import LONGEST_LINE, printable, printable_lines

if TYPE_CHECKING:
    from types import TracebackType

CSV_RAW: Final = "Write text in CSV as it is, also what a spreadsheet would run as a formula."


def say(text: str, *, err: bool = False) -> None:
    """Write lines of ours; what a terminal would obey in them is escaped.

    What a program reads is written by `write_data`.
    """
    click.echo(printable_lines(text), err=err)


def write_data(text: str) -> None:
    """Write CSV or YAML as it is; what a terminal would obey in it is escaped where a terminal is the reader."""
    click.echo(printable_lines(text) if sys.stdout.isatty() else text, nl=False)


class SafeLog(logging.Formatter):
    """Write a record as one line, and its traceback in as many as it has."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the message, escaped."""
        return printable(super().formatMessage(record), LONGEST_LINE)

    def formatException(  # noqa: N802 - logging's name
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        """Return the traceback, escaped."""
        return printable_lines(super().formatException(ei))
