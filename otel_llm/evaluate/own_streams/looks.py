"""The evaluations of streams that are due at an instant, in order of time."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.formats.records import StreamKey


class Looks:
    """A heap of evaluations; their streams may have ended, or be due at another instant by now."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, StreamKey]] = []
        self._order = count()

    def add(self, at_ns: int, key: StreamKey) -> None:
        """Add an evaluation."""
        heapq.heappush(self._heap, (at_ns, next(self._order), key))

    def due(self, now_ns: int) -> Iterator[tuple[int, StreamKey]]:
        """Remove the evaluations up to an instant; yield the instant and the stream of each."""
        while self._heap and self._heap[0][0] <= now_ns:
            at_ns, _, key = heapq.heappop(self._heap)
            yield at_ns, key

    @property
    def first_ns(self) -> int | None:
        """Return the first instant, None if there is none."""
        return self._heap[0][0] if self._heap else None
