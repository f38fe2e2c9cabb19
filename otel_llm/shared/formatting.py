"""Format numbers for people, in the same way for the terminal and the page.

Values are shown with three significant digits; the exact ones are in `--requests` and `--format json`.
"""

from __future__ import annotations

import datetime as dt

from otel_llm.shared.printable import MISSING

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def seconds(value: float | None) -> str:
    """Format a duration given in seconds: `450 ms`, `1.25 s`, `2 min 5 s`."""
    if value is None:
        return MISSING
    if value == 0:
        return "0 s"
    magnitude = abs(value)
    if magnitude < 0.0009995:
        return f"{_digits(value * 1e6)} µs"
    if magnitude < 0.9995:
        return f"{_digits(value * 1e3)} ms"
    if magnitude < 119.5:
        return f"{_digits(value)} s"
    minutes, rest = divmod(round(magnitude), 60)
    sign = "-" if value < 0 else ""
    if minutes < 120:
        return f"{sign}{minutes} min {rest} s"
    return f"{sign}{minutes // 60} h {minutes % 60} min"


def number(value: float | None) -> str:
    """Format a quantity with three significant digits and thousands separators: `0.256`, `12.5`, `1,250`."""
    if value is None:
        return MISSING
    if isinstance(value, int):
        return f"{value:,}"
    return _digits(value)


def share(value: float | None) -> str:
    """Format a ratio of 0..1 as per cent; only exactly all or nothing is `100 %` or `0 %`."""
    if value is None:
        return MISSING
    if value in (0, 1):
        return f"{int(value) * 100} %"
    percent = f"{value * 100:.2f}"
    if percent == "100.00":
        return "> 99.99 %"
    if percent == "0.00":
        return "< 0.01 %"
    return f"{percent.rstrip('0').rstrip('.')} %"


def truth(value: bool | None) -> str:
    """Format met as `yes`, `no` or `cannot say`."""
    return "cannot say" if value is None else "yes" if value else "no"


def instant(unix_nano: int | None) -> str:
    """Format a wall clock instant in UTC to the millisecond, or as the raw number if no calendar holds it."""
    if unix_nano is None:
        return MISSING
    try:
        at = _EPOCH + dt.timedelta(microseconds=unix_nano // 1000)
    except OverflowError:
        return f"{unix_nano} ns"
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """Format a count with its noun: `1 request`, `2 requests`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _digits(value: float) -> str:
    """Format three significant digits without an exponent and without trailing zeros."""
    magnitude = abs(value)
    if magnitude == 0:
        return "0"
    if magnitude >= 99.95:
        return f"{value:,.0f}"
    decimals = 1 if magnitude >= 9.995 else 2 if magnitude >= 0.9995 else 3
    text = f"{value:.{decimals}f}".rstrip("0").rstrip(".")
    return "0" if text in {"", "-0"} else text
