"""Counts of decisions that were left out of the decision files, as lines of these files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_llm.rules.decisions.decision_records import FIRST_KEY, LEFT_OUT

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST: Final = 2**63
"""Integers beyond it do not fit in a database."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The number of decisions of one rule on one tenant's streams that have no record of their own.

    `first_ns`, `last_ns`: the collector's now when the first and the last of them were made, unix ns.
    """

    tenant: str
    rule: str
    rule_hash: str
    count: int
    first_ns: int
    last_ns: int

    def record(self, time_unix_nano: int) -> dict[str, Any]:
        """Return the line's fields; `time_unix_nano`: the wall clock when it is written."""
        return {
            FIRST_KEY: time_unix_nano,
            LEFT_OUT: self.count,
            "rule": self.rule,
            "rule_hash": self.rule_hash,
            "tenant": self.tenant,
            "first_unix_nano": self.first_ns,
            "last_unix_nano": self.last_ns,
        }


def read_left_out(record: Mapping[str, Any]) -> LeftOut | None:
    """Read a count from a line of a decision file; None if the line is another one.

    Raises:
        ValueError, KeyError, TypeError: it is a count that cannot be read.
    """
    if LEFT_OUT not in record:
        return None
    names = [record[name] for name in ("tenant", "rule", "rule_hash")]
    numbers = [record[name] for name in (LEFT_OUT, "first_unix_nano", "last_unix_nano")]
    if not all(isinstance(name, str) for name in names):
        raise TypeError("a name is no text")
    if not all(type(number) is int and 0 <= number < _MOST for number in numbers):
        raise ValueError("a number is out of range")
    return LeftOut(*names, *numbers)
