"""Store a backtest's decisions on disk: a long journal under an eager rule has more of them than fit in memory."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from otel_llm.actions.execute.open_actions import CONFIRMATION
from otel_llm.formats.records import DEFAULT_TENANT
from otel_llm.rules.decisions.decision_records import stream_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from otel_llm.rules.decisions.decision_records import Decision, LeftOut

THEN: Final = 0
NEW: Final = 1

ACTED: Final = "acted"
"""The outcome of an action that was let through: its real outcome depends on receivers and engines, which no journal
records."""
_DONE: Final = frozenset({"sent", "queued", "done", "unconfirmed"})
"""Outcomes of actions that were done, as far as is known."""
INTERVENING: Final = frozenset({"migrate", "preempt", "abort", "drain", "scale", "webhook"})
"""Actions that would have changed what followed. An alert is for people: its effect on them is unknown and left
out."""
_COMPARED: Final = (
    *("rule", "rule_hash", "scope", "trace_id", "span_id", "tenant", "choice", "labels", "state", "action", "mode"),
    *("flip_unix_nano", "now_offset_nano", "facts", "fact_age_seconds", "budget"),
)
"""The fields of two decision records that must be equal: all but the group's name, the wall clock of the writing,
and the real outcome of an action."""
_COUNTED_SEQ: Final = 2**60
"""Added to the numbers of decisions that are taken for those without a record: numbers are unique on each side."""
_BUNCH: Final = 2000
_TABLE: Final = """
CREATE TABLE decisions (
  side INTEGER, seq INTEGER, at_ns INTEGER, flip_ns INTEGER, offset_ns INTEGER, group_name TEXT, rule TEXT,
  hash TEXT, scope TEXT, request TEXT, subject TEXT, instance TEXT, state TEXT, action TEXT, mode TEXT, outcome TEXT,
  acts INTEGER, done INTEGER, body TEXT, tenant TEXT, counted INTEGER
)
"""
_ROW: Final = "INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_TAKE: Final = """
INSERT INTO decisions SELECT
  ?, seq + ?, at_ns, flip_ns, offset_ns, group_name, rule, hash, scope, request, subject, instance, state, action, mode,
  outcome, acts, done, body, tenant, 1
FROM decisions AS new
WHERE side = ? AND hash = ? AND tenant = ? AND at_ns BETWEEN ? AND ? AND (mode = 'shadow' OR state = 'resolved')
  AND NOT EXISTS (SELECT 1 FROM decisions WHERE side = ? AND body = new.body)
ORDER BY seq LIMIT ?
"""


class Store:
    """A store of both sides' decisions, added in order and then queried; a temporary file, deleted at the end.

    `acts` of a decision: it lets an action through, done or in shadow, that would have changed what followed.
    `notified`: receivers of the verb `webhook` that only notify people, by name.
    """

    def __init__(self, notified: Collection[str] = ()) -> None:
        self._notified = frozenset(notified)
        self._folder = tempfile.TemporaryDirectory(prefix="otel-llm-backtest-")
        self.folder = Path(self._folder.name)
        self.database = sqlite3.connect(self.folder / "decisions.db", isolation_level=None)
        for line in ("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", "PRAGMA temp_store = FILE", _TABLE):
            self.database.execute(line)
        self._rows: list[tuple[Any, ...]] = []
        self._counts = [0, 0]

    def decided(self, side: int, decisions: Iterable[Decision]) -> None:
        """Add decisions of an evaluator, in order."""
        for one in decisions:
            notified = one.action == "webhook" and one.arguments.get("to") in self._notified
            self._add(side, one.record(), one.now_ns, one.identity.get("instance", ""), notified=notified)

    def recorded(self, record: Mapping[str, Any]) -> None:
        """Add a line of a decision file, in order; raises KeyError, TypeError or ValueError for any other line."""
        instance = record["labels"].get("instance", "") if "labels" in record else ""
        self._add(THEN, record, int(record["time_unix_nano"]), str(instance))

    def flush(self) -> None:
        """Write the buffered decisions."""
        self.database.execute("BEGIN")
        self.database.executemany(_ROW, self._rows)
        self.database.execute("COMMIT")
        self._rows.clear()

    def rows(self, question: str, *values: object) -> Iterator[Any]:
        """Yield the rows of a query's result, one at a time."""
        return self.database.execute(question, values)

    def last_ns(self, side: int) -> int:
        """Return the instant of a side's last decision (unix ns), by its making or writing; 0 if there is none."""
        self.flush()
        (found,) = next(self.rows("SELECT COALESCE(MAX(at_ns), 0) FROM decisions WHERE side = ?", side))
        return int(found)

    def leave_out(self, first_ns: int, until_ns: int) -> int:
        """Drop records outside of `first_ns` to `until_ns` (unix ns); return their number."""
        self.flush()
        # Records written before anything was received; on the collector's axis nothing is decided before it flips.
        question = "DELETE FROM decisions WHERE side = ? AND (at_ns < ? OR flip_ns - offset_ns > ?)"
        return self.database.execute(question, (THEN, first_ns, until_ns)).rowcount

    def take_for(self, counts: Iterable[LeftOut]) -> int:
        """Add to the side of then what was left out of its files, as the other side decides it; return the number.

        A count says how many decisions of a rule and tenant were left out between two instants: as many of those that
        the same rule makes then, and that have no record, are taken for them (`counted`).
        """
        self.flush()
        self.database.execute("CREATE INDEX by_rule ON decisions (side, hash, tenant, at_ns)")
        self.database.execute("CREATE INDEX by_side_and_body ON decisions (side, body)")
        found = 0
        for one in counts:
            values = (THEN, _COUNTED_SEQ, NEW, one.rule_hash, one.tenant, one.first_ns, one.last_ns, THEN, one.count)
            found += self.database.execute(_TAKE, values).rowcount
        return found

    def close(self) -> None:
        """Remove the file."""
        self.database.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, side: int, record: Mapping[str, Any], at_ns: int, instance: str, *, notified: bool = False) -> None:
        subject = _compact(record["labels"]) if "labels" in record else _stream(record)
        outcome, budget = _let_through(record)
        same = {name: record[name] for name in _COMPARED if name in record} | {"outcome": outcome, "budget": budget}
        acts = record["action"] in INTERVENING and outcome in ("shadow", ACTED) and not notified
        done = acts and record["mode"] == "enforce" and record["outcome"] in _DONE
        row = (
            *(side, self._counts[side], at_ns, int(record["flip_unix_nano"])),
            *(int(record["now_offset_nano"]), str(record["group"])),
            *(str(record["rule"]), str(record["rule_hash"]), str(record["scope"])),
            *(subject.rpartition("/")[0], subject, instance),
            *(str(record["state"]), record["action"], record["mode"], outcome),
            *(acts, done, _compact(same)),
            *(str(record.get("tenant", DEFAULT_TENANT)), False),
        )
        self._rows.append(row)
        self._counts[side] += 1
        if len(self._rows) >= _BUNCH:
            self.flush()


def _let_through(record: Mapping[str, Any]) -> tuple[str, dict[str, bool]]:
    """Return the outcome and the budget that a rule gave an action, whatever its real outcome was."""
    outcome, budget = str(record["outcome"]), dict(record["budget"])
    open_elsewhere = budget.pop(CONFIRMATION, None) is not None
    if outcome in ("sent", "queued", "dropped: table full", "done", "unconfirmed", "failed", "expired"):
        return ACTED, budget
    # Enforced, it may have been withdrawn, or held back by the kill switch, or by an unconfirmed one.
    held_back = record["mode"] == "enforce" and record["action"] is not None and outcome not in ("only_if", "budget")
    return ACTED if open_elsewhere or held_back else outcome, budget


def _stream(record: Mapping[str, Any]) -> str:
    trace_id, span_id, tenant, choice = stream_of(record)
    return f"{trace_id}/{span_id}/{choice}" + ("" if tenant == DEFAULT_TENANT else f"/{tenant}")


def _compact(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)
