"""The anchor of a process: a delay between two readings of clocks counts for nothing, a clock that was set counts."""

from __future__ import annotations

from collections.abc import Iterator

from otel_llm.instrumentation.process.wall_anchor import STEP_NS, WallAnchor

MS = 1_000_000
OFFSET_NS = 1_790_000_000_000_000_000


def offsets(*readings: tuple[int, int]) -> list[int]:
    """Return the offsets for pairs of readings in ms, monotonic and wall, as ms beyond OFFSET_NS."""
    monotonic: Iterator[int] = iter([at * MS for at, _ in readings])
    wall: Iterator[int] = iter([OFFSET_NS + at * MS for _, at in readings])
    anchor = WallAnchor(lambda: next(wall))
    return [(anchor.offset_ns(lambda: next(monotonic)) - OFFSET_NS) // MS for _ in readings]


def test_a_delay_between_the_readings_is_not_taken() -> None:
    assert offsets((0, 0), (10, 27), (20, 20), (30, 31)) == [0, 0, 0, 0]


def test_the_least_delay_counts() -> None:
    assert offsets((0, 9), (10, 12), (20, 25)) == [9, 2, 2]


def test_a_wall_clock_that_was_set_is_followed() -> None:
    step_ms = STEP_NS // MS
    assert offsets((0, 0), (10, 10 + step_ms), (20, 21 + step_ms), (30, 31 + step_ms)) == [
        0,
        0,
        step_ms + 1,
        step_ms + 1,
    ]
    assert offsets((0, 0), (10, -3590), (20, -3580)) == [0, -3600, -3600]
