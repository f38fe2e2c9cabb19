"""The type of duration options, written as in rule files."""

from __future__ import annotations

import click

from otel_llm.config.durations import parse_duration_ns


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
