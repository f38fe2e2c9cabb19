"""Durations as options of commands, written as in the rule files."""

from __future__ import annotations

import click

from otel_llm.rules.files.durations import parse_duration_ns


class Duration(click.ParamType[int]):
    """A duration as `500ms`, `10s`, `2m` or a number of seconds; more than zero, and at least `shortest_ns`."""

    name = "duration"

    def __init__(self, shortest_ns: int = 1) -> None:
        self._shortest_ns = shortest_ns

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return ns."""
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
