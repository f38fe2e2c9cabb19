"""Where the monotonic clock stands on the wall clock, one anchor for all requests of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.export.clock import wall_ns

if TYPE_CHECKING:
    from collections.abc import Callable

STEP_NS: Final = 100_000_000
"""A wall clock that is further ahead was set; a smaller difference is time between the two readings."""


class WallAnchor:
    """The offset from monotonic to unix ns.

    Two clocks cannot be read at once: if another thread runs between the two readings, the difference is too large,
    never too small. So the least difference counts, until the wall clock steps ahead. Tokens of one instant then have
    one time in all recordings of a process, also on a busy machine.
    """

    __slots__ = ("_offset_ns", "_wall_ns")

    def __init__(self, wall: Callable[[], int] = wall_ns) -> None:
        self._wall_ns = wall
        self._offset_ns: int | None = None

    def offset_ns(self, clock_ns: Callable[[], int]) -> int:
        """Return what makes unix ns of the times of a monotonic clock, ns."""
        now_ns = clock_ns()
        found_ns = self._wall_ns() - now_ns
        kept_ns = self._offset_ns
        if kept_ns is None or not kept_ns <= found_ns <= kept_ns + STEP_NS:
            self._offset_ns = kept_ns = found_ns
        return kept_ns
