"""Ctrl-C during a load: the first ends it in order, and prints and keeps what there is."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def interrupts() -> Iterator[list[int]]:
    """Give the list of the signals that ask for an end; the second Ctrl-C raises KeyboardInterrupt."""
    came: list[int] = []

    def note(signum: int, _frame: object) -> None:
        came.append(signum)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {signum: signal.signal(signum, note) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
