"""Kinds of options: durations, numbers, lists and ranges of numbers; the format of an output."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from otel_llm.config.durations import exact, parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction


class Duration(click.ParamType[int]):
    """A duration: `500ms`, `10s`, `2m` or a number of seconds; above zero, and at least `shortest_ns`."""

    name = "duration"

    def __init__(self, shortest_ns: int = 1) -> None:
        self._shortest_ns = shortest_ns

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the duration in ns."""
        if isinstance(value, int):
            return value
        try:
            number: object = float(str(value))
        except ValueError:
            number = value
        try:
            length_ns = parse_duration_ns(number)
        except ValueError as problem:
            self.fail(f"{value!r}: {problem}", param, ctx)
        if length_ns <= 0:
            self.fail(f"{value!r} is not longer than zero", param, ctx)
        if length_ns < self._shortest_ns:
            self.fail(f"{value!r} is shorter than {self._shortest_ns / 1e6:g}ms", param, ctx)
        return length_ns


Callback = TypeVar("Callback", bound="Callable[..., Any] | click.Command")

MOST_POINTS: Final = 1000
"""Numbers in one range."""


class KnownRange(click.FloatRange):
    """A number within a range, which NaN is not."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number: float = super().convert(value, param, ctx)  # type: ignore[arg-type]  # it reads texts
        if math.isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number


class NumbersError(ValueError):
    """A list of numbers is malformed; the message says what to write."""


def numbers(text: str, what: str) -> list[float]:
    """Return the numbers of `0,2.5,10`, `0..10` (in steps of 1) or `0..10:0.5`, ascending; `what` names the option.

    Raises:
        NumbersError: `text` is malformed, or a number is negative.
    """
    advice = "write numbers as 0,2.5,10 or a range as 0..10 or 0..10:0.5"
    found: list[Fraction] = []
    try:
        for part in text.split(","):
            first, dots, rest = part.partition("..")
            if not dots:
                found.append(exact(float(part)))
                continue
            last, _, step = rest.partition(":")
            low, high, by = (exact(float(one)) for one in (first, last, step or "1"))
            if by <= 0 or high < low or (high - low) / by > MOST_POINTS:
                raise NumbersError(f"{what} {part!r} is no rising range of at most {MOST_POINTS:,} numbers; {advice}")
            found += [low + by * place for place in range(int((high - low) / by) + 1)]
    except ValueError as error:
        raise error if isinstance(error, NumbersError) else NumbersError(f"{what} {text!r}: {advice}") from None
    if any(value < 0 for value in found):
        raise NumbersError(f"{what} {text!r}: none is negative; {advice}")
    return [float(value) for value in sorted(set(found))]


def format_option(*formats: str, of: str | None = None) -> Callable[[Callback], Callback]:
    """Return the option `--format` with these choices, the first by default; the command gets `output_format`."""
    return click.option(
        "--format", "output_format", type=click.Choice(formats), default=formats[0], show_default=True, help=of
    )
