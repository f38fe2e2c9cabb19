"""When the next tokens of a replica's decodes are due, without work per token."""

from __future__ import annotations

from heapq import heappop, heappush


class DueTimes:
    """The due times of decodes that each get a token an iteration; token i of a request is due at due + i tpot.

    The token that iteration n gives is due at a constant + n tpot. So the earliest of the decodes with one tpot stays
    the earliest, and a heap for each tpot needs no work between the first and the last token.
    """

    __slots__ = ("_constants", "_heaps")

    def __init__(self) -> None:
        self._heaps: dict[int, list[tuple[int, int]]] = {}
        self._constants: dict[int, int] = {}

    def add(self, number: int, tpot_ns: int, due_ns: int, iteration: int) -> None:
        """Add request `number`, whose next token is due at `due_ns` and comes with this iteration."""
        constant = due_ns - iteration * tpot_ns
        self._constants[number] = constant
        heappush(self._heaps.setdefault(tpot_ns, []), (constant, number))

    def remove(self, number: int) -> None:
        """Remove a request; one that is not there is ignored."""
        self._constants.pop(number, None)

    def earliest_ns(self, iteration: int, end_ns: int) -> int | None:
        """Return the earliest due time of a token that this iteration gives, None if there is no decode.

        A request whose token is due before `end_ns` is late in any case: it is removed, and no longer counts.
        """
        earliest = None
        constants = self._constants
        for tpot_ns, heap in self._heaps.items():
            while heap:
                constant, number = heap[0]
                due_ns = constant + iteration * tpot_ns
                if constants.get(number) == constant:
                    if due_ns >= end_ns:
                        if earliest is None or due_ns < earliest:
                            earliest = due_ns
                        break
                    del constants[number]
                heappop(heap)
        return earliest
