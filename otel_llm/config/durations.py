"""Parse durations and shares as rule and SLO files write them, exactly."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Final

_UNITS_NS: Final = {
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3600 * 1_000_000_000,
}
_DURATION: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>us|ms|s|m|h)", re.ASCII)
LONGEST_NS: Final = 10**18
"""31 years: added to any wall-clock time it still fits 64 bits."""
DURATION_ADVICE: Final = "write 500us, 300ms, 1s, 2m, 1h or a number of seconds"


def parse_duration_ns(value: object) -> int:
    """Return a duration in ns, rounded once to the nearest: `500us 300ms 1s 2m 1h` or a number of seconds.

    Raises ValueError, with the reason, for anything else, for a negative one and for more than 31 years.
    """
    if isinstance(value, str) and (found := _DURATION.fullmatch(value)):
        length_ns = round(Fraction(found["number"]) * _UNITS_NS[found["unit"]])
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        length_ns = round(exact(value) * _UNITS_NS["s"])
        if value < 0:
            raise ValueError(f"a duration is not negative, {value!r} is")
    elif isinstance(value, str) and value.startswith("-"):
        raise ValueError(f"a duration is not negative, {value!r} is")
    else:
        raise ValueError(f"{value!r} is no duration")
    if length_ns > LONGEST_NS:
        raise ValueError(f"{value!r} is more than {LONGEST_NS // _UNITS_NS['s']} seconds")
    return length_ns


def exact(number: float) -> Fraction:
    """Return the fraction that a number's shortest decimal text means; 0.99 is 99/100.

    Raises ValueError for NaN and infinities.
    """
    if not math.isfinite(number):
        raise ValueError(f"{number!r} is not a finite number")
    return Fraction(repr(number))
