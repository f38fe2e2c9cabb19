"""Compare the decisions of two sides, one by one."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_llm.backtest.decision_store import NEW, THEN

if TYPE_CHECKING:
    from otel_llm.backtest.decision_store import Store

EXAMPLES: Final = 5
"""The number of firings and decisions listed for each difference."""


@dataclass(slots=True)
class Records:
    """The comparison decision by decision."""

    then: int = 0
    new: int = 0
    same: int = 0
    in_order: bool = True
    """Whether the equal ones stand in the same order; two kinds are set aside: actions in `enforce`, which are written
    when their outcome is known, and decisions without a record."""
    fields: Counter[str] = field(default_factory=Counter)
    """The differing fields of decisions with the same rule, subject, flip and action."""
    examples: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        """Return whether both sides made exactly the same decisions, in the same order."""
        return self.in_order and self.then == self.new == self.same


def records_of(store: Store, *, compared: bool) -> Records:
    """Compare the decisions of both sides, or count those of the only side."""
    found = Records(_count(store, THEN), _count(store, NEW))
    if not compared:
        return found
    # The same body may stand more than once, where a rule has two actions of one verb: they are numbered.
    store.rows(
        """CREATE TEMP TABLE numbered AS SELECT side, seq, body,
        ROW_NUMBER() OVER (PARTITION BY side, body ORDER BY seq) AS nth FROM decisions"""
    )
    store.rows("CREATE INDEX temp.by_nth ON numbered (body, nth, side)")
    both = """FROM numbered AS one JOIN numbered AS other ON one.body = other.body AND one.nth = other.nth
        AND one.side = 0 AND other.side = 1"""
    (found.same,) = next(store.rows(f"SELECT COUNT(*) {both}"))
    last = -1
    question = f"""SELECT other.seq {both} JOIN decisions ON decisions.side = 0 AND decisions.seq = one.seq
        WHERE NOT (decisions.acts AND decisions.mode = 'enforce') AND NOT decisions.counted ORDER BY one.seq"""
    for (seq,) in store.rows(question):
        found.in_order = found.in_order and seq > last
        last = seq
    store.rows(
        """CREATE TEMP TABLE odd AS SELECT decisions.* FROM decisions JOIN numbered AS one USING (side, seq)
        WHERE NOT EXISTS (SELECT 1 FROM numbered AS other
          WHERE other.body = one.body AND other.nth = one.nth AND other.side = 1 - one.side)"""
    )
    store.rows("CREATE INDEX temp.odd_ones ON odd (hash, subject, flip_ns)")
    question = """SELECT one.body, other.body FROM odd AS one JOIN odd AS other USING (hash, subject, flip_ns, state)
        WHERE one.action IS other.action AND one.side = 0 AND other.side = 1"""
    for one, other in store.rows(question):
        here, there = json.loads(one), json.loads(other)
        found.fields.update(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    for side, body in store.rows("SELECT side, body FROM odd ORDER BY seq, side LIMIT ?", EXAMPLES):
        found.examples.append(("then" if side == THEN else "new", json.loads(body)))
    return found


def _count(store: Store, side: int) -> int:
    return int(next(store.rows("SELECT COUNT(*) FROM decisions WHERE side = ?", side))[0])
