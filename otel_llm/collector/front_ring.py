"""The bytes of exports on their way up from the gRPC door's process, in memory that the evaluator's sees too.

Through a pipe each of them costs the system new pages and two copies in system calls, four times what this takes. The
pipe still says what comes, in order: an export that finds no room here goes through it whole.
"""

from __future__ import annotations

from typing import Final

RING_BYTES: Final = 2**22
MOST_BYTES: Final = 2**19
"""Of one export: what is copied here keeps the interpreter to itself meanwhile."""


class Ring:
    """One process puts bytes in, the other takes them out in the same order; places are counted on and on.

    Args:
        memory: what both see.
        taken: one 64-bit integer that both see, 0 at first: up to which place everything was taken out.
    """

    __slots__ = ("_memory", "_put", "_size", "_skipped", "_taken", "_took")

    def __init__(self, memory: memoryview, taken: memoryview) -> None:
        self._memory = memory
        self._size = len(memory)
        self._taken = taken
        self._put = 0
        self._skipped = 0
        """Up to here there is nothing to be taken out, whatever `taken` says."""
        self._took = 0

    def put(self, raw: bytes) -> int | None:
        """Put bytes in, and return their place; None where there is no room for them."""
        length, size, start = len(raw), self._size, self._put
        if length > MOST_BYTES:
            return None
        taken = max(self._taken[0], self._skipped)
        if taken == start:  # all of it: from the beginning again, where the memory is still in a cache
            start = taken = self._skipped = start + -start % size
        elif start % size + length > size:
            start += -start % size
        if start + length - taken > size:
            return None
        self._memory[start % size : start % size + length] = raw
        self._put = start + length
        return start

    def take(self, place: int, length: int) -> bytes:
        """Return the bytes that were put in at a place; their room is given back by `let_go`."""
        start = place % self._size
        self._took = place + length
        return bytes(self._memory[start : start + length])

    def let_go(self) -> None:
        """Give back the room of all that was taken out."""
        self._taken[0] = self._took
