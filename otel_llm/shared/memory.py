"""Return of memory to the system after large objects, which the allocator would keep."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any, Final

from otel_llm.shared.clock import monotonic_s

LARGE_BYTES: Final = 2**20
_ARENA_MAX: Final = -8
"""`M_ARENA_MAX` of glibc's malloc.h."""
_AT_MOST_EVERY_S: Final = 2.0
_C: Final[Any] = ctypes.CDLL(None)


def keep_one_heap() -> None:
    """Make all threads of this process allocate from one heap (glibc); call it before a second thread starts.

    By default concurrent threads get heaps of their own, whose ends are not returned: sixteen threads that decompress
    6 MB each would keep 260 MB.
    """
    with suppress(AttributeError, TypeError):  # another C library
        _C.mallopt(_ARENA_MAX, 1)


class HeapTrimmer:
    """Trims the heap (glibc) after large objects; one thread calls `trim_if_due` now and then."""

    def __init__(self) -> None:
        self._noted = False
        self._trimmed_s = 0.0

    def note_large(self, size: int) -> None:
        """Note an object of `size` bytes; safe from any thread."""
        if size >= LARGE_BYTES:
            self._noted = True

    def trim_if_due(self) -> None:
        """Return free memory to the system, if a large object was noted; not more often than every 2 s."""
        now_s = monotonic_s()
        if not self._noted or now_s - self._trimmed_s < _AT_MOST_EVERY_S:
            return
        self._noted, self._trimmed_s = False, now_s
        with suppress(AttributeError, TypeError):  # another C library
            _C.malloc_trim(0)


HEAP_TRIMMER: Final = HeapTrimmer()
"""This process's own."""
