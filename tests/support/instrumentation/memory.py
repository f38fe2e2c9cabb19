"""What a parser holds while it is fed, as the allocator of Python sees it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

NOISE_BYTES = 8_000
"""Less than a parser that held its input would hold in any test, and more than other threads of the process and what
Python makes at the first call of a function leave behind (up to 1,100 bytes were seen)."""


@dataclass
class Held:
    """Bytes that were allocated since: now, and at most."""

    now: int = 0
    most: int = 0


@contextmanager
def held() -> Iterator[Held]:
    """Measure what is allocated within and still there at its end, and the most of it."""
    found = Held()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        yield found
        now, most = tracemalloc.get_traced_memory()
        found.now, found.most = now - before, most - before
    finally:
        tracemalloc.stop()
