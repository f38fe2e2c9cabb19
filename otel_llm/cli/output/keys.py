"""The keys of a terminal, one at a time and without an echo."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

END: Final = "q"
_NAMES: Final = {
    "\x1b[A": "up", "\x1bOA": "up", "k": "up", "\x1b[B": "down", "\x1bOB": "down", "j": "down", "\x1b[H": "home",
    "\x1bOH": "home", "\x1b[1~": "home", "\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end", "\x1b[5~": "page up",
    "\x1b[6~": "page down", "\r": "enter", "\n": "enter", "\x1b": "escape",
}  # fmt: skip
_KEY: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO[A-Za-z]|.", re.DOTALL)
"""A control sequence (ECMA-48, section 5.4), a key in application mode, or one character."""
_CUT: Final = re.compile(r"\x1b(\[[0-?]*[ -/]*|O)?\Z")
"""The begin of a sequence at the end of what was read."""
_REST_S: Final = 0.05
"""How long the rest of a sequence may take; without one it was the key Escape."""
_MOST_BYTES: Final = 64


@contextmanager
def pressed_keys() -> Iterator[Callable[[float], list[str]]]:
    """Give a function that waits so many seconds for keys and returns their names, a letter for a letter.

    If standard input is no terminal it waits, and returns none. A terminal that is gone has pressed END. The
    terminal's settings are restored.
    """
    if not sys.stdin.isatty():
        yield _wait
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield lambda seconds: read_keys(descriptor, seconds)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def read_keys(descriptor: int, seconds: float, rest_s: float = _REST_S) -> list[str]:
    """Return the names of the keys that a terminal sends within so many seconds, as soon as there are some.

    `rest_s`: the longest wait for the rest of a sequence.
    """
    if not _ready(descriptor, seconds):
        return []
    typed = _read(descriptor)
    if not typed:
        return [END]
    while _CUT.search(typed) and _ready(descriptor, rest_s) and (rest := _read(descriptor)):
        typed += rest
    return names_of_keys(typed)


def names_of_keys(typed: str) -> list[str]:
    """Return the names of the keys in what a terminal has sent; sequences of other keys are left out."""
    return [_NAMES.get(one, one) for one in _KEY.findall(typed) if one in _NAMES or len(one) == 1]


def _ready(descriptor: int, seconds: float) -> bool:
    return bool(select.select((descriptor,), (), (), seconds)[0])


def _read(descriptor: int) -> str:
    try:
        return os.read(descriptor, _MOST_BYTES).decode("utf-8", "replace")
    except OSError:  # the other end of a pseudo-terminal is closed
        return ""


def _wait(seconds: float) -> list[str]:
    select.select((), (), (), seconds)
    return []
