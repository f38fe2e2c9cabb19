"""The facts of many streams as columns, each computed when a rule first asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from otel_llm.rules.condition import LOOK_EVERY_NS

if TYPE_CHECKING:
    from collections.abc import Iterable

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NEVER: Final = np.iinfo(np.int64).max
ALWAYS: Final = np.iinfo(np.int64).min


CAN_MISS: Final = frozenset(
    {"ttft_seconds", "rate_tokens_per_second", "deadlines", "deadline_misses", "fluidity_index"}
)
"""Facts that are missing until something has happened; the others only when they are old, or a segment is missing."""


class Lines(NamedTuple):
    """A linear fact of many streams, as `Line`: `rises` or falls with time from `zero_ns`, never below its floor.

    `still`: where it does not move at all but stands at its floor.
    """

    rises: bool
    zero_ns: Ints
    floor_ns: Ints | None = None
    still: Bools | None = None

    def reaches(self, edge_ns: int) -> Ints:
        """Return the first instant at which a fact that rises is at least the edge, or one that falls below it."""
        if not self.rises:
            return self.zero_ns - (edge_ns - 1)
        found = self.zero_ns + edge_ns
        if self.still is not None:
            found = np.where(self.still, NEVER, found)
        if self.floor_ns is not None:
            found = np.where(self.floor_ns >= edge_ns, ALWAYS, found)
        return found


class Given(NamedTuple):
    """What the facts are computed from: (S,) columns; instants in ns on each stream's axis, `x_ns` its now.

    `offset_ns`: that less the collector's now; `due_ns` as in RunningMany (negative: not known); `identity`: the
    sieve's bits; `one_a_token`: not 0 where misses are counted a late token, not a deadline; `known_tokens`: how many
    there were when the engine last looked.
    """

    x_ns: Ints
    offset_ns: Ints
    watermark_ns: Ints
    commit_ns: Ints
    tokens: Ints
    first_token_ns: Ints
    last_token_ns: Ints
    tokens_read: Ints
    first_read_ns: Ints
    last_read_ns: Ints
    allowance_ns: Ints
    dry_ns: Ints
    pace_ns: Ints
    due_ns: Ints
    tbt_ns: Ints
    late: Ints
    missed: Ints
    one_a_token: Ints
    identity: Ints
    known_tokens: Ints


class Columns:
    """The facts at each stream's now; values in the units of the facts, `present` where none of them is missing."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self.x_ns = given.x_ns
        self.offset_ns = given.offset_ns
        self.watermark_ns = given.watermark_ns
        self.commit_ns = given.commit_ns
        self.due_ns = given.due_ns
        self.identity = given.identity
        self.never = np.full(len(given.x_ns), NEVER)
        self.always = np.full(len(given.x_ns), ALWAYS)
        self._lines: dict[str, Lines] = {}
        self._fresh: dict[int, tuple[Ints, Bools]] = {}
        self._next_deadline: Ints | None = None
        self._values: dict[str, Ints | Floats] = {}

    def __len__(self) -> int:
        return len(self.x_ns)

    @property
    def has_more_tokens(self) -> Bools:
        """Tell which streams have had a token since the engine looked at them."""
        found: Bools = self._given.tokens != self._given.known_tokens
        return found

    @property
    def knows_due(self) -> Bools:
        """Tell of which streams the deadlines are known."""
        return self.due_ns >= 0

    @property
    def next_deadline(self) -> Ints:
        """Return the first instant at which the next deadline is overdue."""
        if self._next_deadline is None:
            given = self._given
            since = np.maximum(0, self.x_ns - given.due_ns)
            later = given.due_ns + (since // given.tbt_ns + 1) * given.tbt_ns
            passes = np.where(self.x_ns <= given.due_ns, given.due_ns + 1, later)
            self._next_deadline = np.where(self.knows_due, passes, NEVER)
        return self._next_deadline

    def look_from(self, instant_ns: Ints) -> Ints:
        """Return the first look at a stream, one every 100 ms from its commit, at an instant or after it."""
        moving = (instant_ns > self.x_ns) & (instant_ns != NEVER)
        since = np.where(moving, instant_ns, self.x_ns) - self.commit_ns
        looks = self.commit_ns + -(-since // LOOK_EVERY_NS) * LOOK_EVERY_NS
        return np.where(moving, looks, instant_ns)

    def fresh(self, max_age_ns: int) -> tuple[Ints, Bools]:
        """Return up to when facts are no older than this, and where they are not now."""
        found = self._fresh.get(max_age_ns)
        if found is None:
            until_ns = self.watermark_ns + max_age_ns
            found = self._fresh[max_age_ns] = until_ns, self.x_ns <= until_ns
        return found

    def line(self, name: str) -> Lines:
        """Return a linear fact."""
        found = self._lines.get(name)
        if found is None:
            found = self._lines[name] = self._line(name)
        return found

    def value(self, name: str) -> Ints | Floats:
        """Return any other fact; anything where it is missing."""
        found = self._values.get(name)
        if found is None:
            found = self._values[name] = self._value(name)
        return found

    def present(self, names: Iterable[str]) -> Bools:
        """Tell of which streams none of these facts is missing (but for their age)."""
        found = np.ones(len(self), dtype=bool)
        given = self._given
        for name in names:
            if name == "ttft_seconds":
                found &= given.tokens > 0
            elif name == "rate_tokens_per_second":
                found &= given.last_read_ns > given.first_read_ns
            elif name in ("deadlines", "deadline_misses"):
                found &= self.knows_due
            elif name == "fluidity_index":
                found &= self.knows_due & (self.value("deadlines") > 0)
        return found

    def _line(self, name: str) -> Lines:
        given = self._given
        match name:
            case "age_seconds":
                return Lines(True, given.commit_ns)
            case "gap_seconds":
                return Lines(True, given.last_token_ns)
            case "fact_age_seconds":
                return Lines(True, given.watermark_ns)
            case "runway_seconds":
                zero = np.where(given.tokens_read > 0, given.dry_ns, given.allowance_ns)
                return Lines(False, zero)
            case "idle_seconds":
                floor = np.maximum(0, np.maximum(given.dry_ns, given.commit_ns) - given.allowance_ns)
                return Lines(True, given.allowance_ns, floor)
            case "idle_decode_seconds":
                begun = given.tokens_read > 0
                through = given.first_read_ns + given.tokens_read * given.pace_ns
                return Lines(True, through, np.where(begun, given.dry_ns - through, 0), ~begun)
        raise LookupError(name)

    def _value(self, name: str) -> Ints | Floats:
        given = self._given
        match name:
            case "tokens":
                return given.tokens
            case "tokens_read":
                return given.tokens_read
            case "ttft_seconds":
                return (given.first_token_ns - given.commit_ns) / 1e9
            case "rate_tokens_per_second":
                reading_s = np.maximum(1, given.last_read_ns - given.first_read_ns) / 1e9
                rate: Floats = (given.tokens_read - 1) / reading_s
                return rate
            case "deadline_misses":
                overdue = np.where(self.x_ns <= given.due_ns, 0, 1 + (self.x_ns - given.due_ns) // given.tbt_ns)
                return np.where(given.one_a_token != 0, given.late + (overdue > 0), given.missed + overdue)
            case "deadlines":
                return given.tokens_read - given.late + self.value("deadline_misses")
            case "fluidity_index":
                deadlines = self.value("deadlines")
                return (deadlines - self.value("deadline_misses")) / np.maximum(1, deadlines)
        raise LookupError(name)
