"""The lines of the application's side in its host's log: the only place that writes there.

A line holds of a client's, a server's or a library's text no more than its beginning, and no control character.
"""

from __future__ import annotations

import contextlib
import logging
import unicodedata
from collections import deque
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Final

from otel_llm.export.clock import monotonic_s

if TYPE_CHECKING:
    from collections.abc import Callable

VALUE_CHARS: Final = 64
"""The most characters of a foreign value."""
OWN_CHARS: Final = 300
"""The most characters of an endpoint, a remedy or the reason of a failed export."""
EVERY_S: Final = 60.0
"""The least time between two lines of a kind."""
FRAMES: Final = 5
"""The innermost places of an exception's traceback that are named."""

_ESCAPED: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories: controls, directions and other formats, surrogates, private use, unassigned, separators."""

_log: Final = logging.getLogger("otel_llm")


def escaped(text: str, limit: int) -> str:
    """Return a text with control and direction characters escaped, cut to `limit` characters before that.

    A model name may hold an escape sequence for the terminal, a line break or a right-to-left override. A printable
    string is unchanged.
    """
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    return shown if shown.isprintable() else "".join(map(_visible, shown))


class Shown(str):
    """A text that may stand in a line as it is."""

    __slots__ = ()


def shown(value: object, limit: int = VALUE_CHARS) -> Shown:
    """Return a value as it may stand in a line: its beginning, escaped; of an exception its class and text."""
    try:
        text = str(value)
    except Exception:  # noqa: BLE001  an exception of a library may have no text
        text = ""
    name = f"{type(value).__qualname__}: " if isinstance(value, BaseException) else ""
    return Shown(name + escaped(text, limit))


def say(level: int, words: str, *values: object) -> None:
    """Log a line; each value but a number is `shown`, an exception with its places. A handler's failure is no one's."""
    with contextlib.suppress(Exception):
        _log.log(level, words, *map(_safe, values))


def warning(words: str, *values: object) -> None:
    """Log a warning, see `say`."""
    say(logging.WARNING, words, *values)


class HostLog:
    """The log for lines that may repeat: one of a kind a minute; a kind is the words without their values."""

    def __init__(self, clock_s: Callable[[], float] = monotonic_s) -> None:
        self.clock_s = clock_s
        self._said_s: dict[str, float] = {}

    def warning(self, words: str, *values: object) -> bool:
        """Log a warning, see `say`; return whether it was."""
        now_s = self.clock_s()
        said_s = self._said_s.get(words)
        if said_s is not None and now_s - said_s < EVERY_S:
            return False
        self._said_s[words] = now_s
        warning(words, *values)
        return True


def _visible(character: str) -> str:
    return f"\\u{{{ord(character):x}}}" if unicodedata.category(character) in _ESCAPED else character


def _safe(value: object) -> object:
    if isinstance(value, Shown | int | float):
        return value
    return Shown(shown(value) + _places(value)) if isinstance(value, BaseException) else shown(value)


def _places(error: BaseException) -> str:
    """Return where an exception was raised, the innermost place last: names of files of ours and of libraries."""
    frames = deque(walk_tb(error.__traceback__), FRAMES)
    places = [f"{Path(frame.f_code.co_filename).name}:{line} {frame.f_code.co_name}" for frame, line in frames]
    return f" ({', '.join(places)})" if places else ""
