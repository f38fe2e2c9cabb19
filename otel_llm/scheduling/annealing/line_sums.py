"""The sum of a rounded line over many steps, exactly, without a loop over the steps."""

from __future__ import annotations


def line_sum(count: int, divisor: int, step: int, start: int, floor: int) -> int:
    """Return the sum over i < `count` of max(`floor`, (`start` + i x `step`) // `divisor`); `divisor` is positive.

    The time is logarithmic in `divisor`.
    """
    if step < 0:
        start, step = start + step * (count - 1), -step
    lacking = floor * divisor - start
    low = 0 if lacking <= 0 else min(count, -(-lacking // step)) if step else count
    return low * floor + floor_sum(count - low, divisor, step, start + low * step)


def floor_sum(count: int, divisor: int, step: int, start: int) -> int:
    """Return the sum over i < `count` of (`start` + i x `step`) // `divisor`; `divisor` is positive.

    Euclid's algorithm on the lattice points below the line, as `floor_sum` of AtCoder's library.
    """
    total = 0
    while count > 0:
        whole, step = divmod(step, divisor)
        total += whole * (count * (count - 1) // 2)
        whole, start = divmod(start, divisor)
        total += whole * count
        count, start = divmod(step * count + start, divisor)
        step, divisor = divisor, step
    return total
