"""Give memory back to the system after something large was handled: the allocator keeps it otherwise."""

from __future__ import annotations

import ctypes
import time
from contextlib import suppress
from typing import Any, Final

LARGE_BYTES: Final = 2**20
_ARENA_MAX: Final = -8
"""`M_ARENA_MAX` of glibc's malloc.h."""
_AT_MOST_EVERY_S: Final = 2.0
_C: Final[Any] = ctypes.CDLL(None)


def keep_one_heap() -> None:
    """Have all threads of this process allocate from one heap (glibc); before a second thread is started, or never.

    By default each thread that allocates at the same time as another gets a heap of its own, whose end is not given
    back: sixteen threads that decompress 6 MB each would keep 260 MB.
    """
    with suppress(AttributeError, TypeError):  # another C library
        _C.mallopt(_ARENA_MAX, 1)


class HeapTrimmer:
    """Trim the heap (glibc) when something large has been freed; `tend` is called now and then, from one thread."""

    def __init__(self) -> None:
        self._noted = False
        self._trimmed_s = 0.0

    def note_large(self, size: int) -> None:
        """Learn that so many bytes are handled; from any thread."""
        if size >= LARGE_BYTES:
            self._noted = True

    def trim_if_due(self) -> None:
        """Give back what is free, if something large was noted and it is not long ago that this was done."""
        now_s = time.monotonic()
        if not self._noted or now_s - self._trimmed_s < _AT_MOST_EVERY_S:
            return
        self._noted, self._trimmed_s = False, now_s
        with suppress(AttributeError, TypeError):  # another C library
            _C.malloc_trim(0)


HEAP_TRIMMER: Final = HeapTrimmer()
"""This process's own."""
