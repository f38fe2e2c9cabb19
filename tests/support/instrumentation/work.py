"""What a piece of code costs, in counts that no machine changes: lines that ran, and entries that are kept."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import otel_llm

OURS = otel_llm.__path__[0]
HELD = (list, dict, tuple, set, frozenset, deque)


class TooMuchWorkError(BaseException):
    """More lines ran than were allowed; no `except Exception` of the code under test stops it."""


@dataclass
class Work:
    """The lines of ours that ran."""

    lines: int = 0


@contextmanager
def bounded_work(most: int) -> Iterator[Work]:
    """Count the lines of ours that run within, and raise once they are more than `most`."""
    work = Work()

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        work.lines += event == "line"
        if work.lines > most:
            raise TooMuchWorkError(f"{work.lines} lines ran, the last one in {frame.f_code.co_qualname}")
        return line

    def call(frame: FrameType, event: str, arg: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(OURS) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield work
    finally:
        sys.settrace(before)


def entries(root: object) -> int:
    """Return the number of entries of all containers that objects of ours hold, beginning with `root`."""
    found, seen, todo = 0, set[int](), [root]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, HELD):
            found += len(one)
        elif not type(one).__module__.startswith("otel_llm."):
            continue
        todo += [held for held in gc.get_referents(one) if not isinstance(held, type)]
    return found
