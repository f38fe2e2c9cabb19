"""Rows, windows and decisions do not depend on how a fleet is fed to the evaluator or how its rules are evaluated.

`pytest --hypothesis-profile=long tests/evaluate/test_columns_same.py` tries 25 times as many fleets.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import example, given, settings
from support.audit.audit_oracle import audited
from support.chance import chances
from support.core.core_fleets import Seen, advances, fleet
from support.core.core_rules import rule_set
from support.core.core_spans import needs_kernels
from support.examples import examples

from otel_llm.formats.rows import Row

"""A seed draws a whole fleet: there is nothing to be made smaller one draw at a time."""


def by_stream(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (str(row["trace_id"]), str(row["span_id"]), int(row["choice"] or 0)))


def same(one: Seen, other: Seen) -> None:
    """Check that all that came out of two evaluators is the same."""
    assert by_stream(one.rows) == by_stream(other.rows)
    assert one.windows == other.windows
    assert one.story() == other.story()
    assert one.totals() == other.totals()
    assert one.windowing.late == other.windowing.late


@settings(max_examples=examples(30))
@given(chances())
@example(Random(1046))  # a sibling appears at the very instant at which the first choice falls due
@example(Random(2050))  # a request span ends a stream that was due before
@example(Random(2151))  # a rule on deadlines at the instant of another rule
@example(Random(2181))
@example(Random(2509))
@example(Random(10058))  # an edge of a linear fact between two looks at deadlines
def test_columns_and_the_engine_alone_decide_the_same(random: Random) -> None:
    drawn = fleet(random)
    drawn = replace(drawn, rules=rule_set(random))
    instants = advances(random, drawn)
    by_columns = Seen(drawn).run()
    for other in (
        Seen(drawn).run(columns=False),
        Seen(drawn).run(advances=instants),
        Seen(drawn, by_columns=False).run(),
        Seen(drawn, by_columns=False).run(columns=False, advances=instants),
    ):
        same(by_columns, other)
        # An advance to an instant may count what is there as late or as repeated; nothing else counts otherwise.
    assert by_columns.counts() == Seen(drawn, by_columns=False).run(columns=False).counts()


@settings(max_examples=examples(30))
@given(chances())
@example(Random(75))  # clocks that are off, and a first batch that is not in order of number
def test_the_grouping_into_export_requests_makes_no_difference(random: Random) -> None:
    drawn = fleet(random)
    together, alone = Seen(drawn).run(), Seen(drawn.alone()).run()
    assert by_stream(together.rows) == by_stream(alone.rows)
    assert together.windows == alone.windows
    assert together.totals() == alone.totals()


@settings(max_examples=examples(30))
@given(chances())
@example(Random(230078))  # a choice that ended long before its request span comes, and would be lost if it had not
@example(Random(19218646))  # a choice that begins by the request span; its own segment 0 then says that it began later
def test_columns_give_the_rows_and_windows_of_the_audit(random: Random) -> None:
    drawn = fleet(random, calm=True)
    live = Seen(drawn).run()
    rows, windows = audited(drawn.exports(), drawn.classes, drawn.window_ns, drawn.timeouts.lateness_ns)
    assert by_stream(live.rows) == by_stream(rows)
    if all(row["outcome"] != "lost" for row in rows):  # a lost stream's end is known long after its window
        assert [dict(one) for one in live.windows] == windows
        assert live.windowing.late == 0


@needs_kernels
def test_most_of_what_is_drawn_goes_by_columns() -> None:
    segments = columns = prefiltered = decisions = 0
    for seed in range(20):
        random = Random(seed)
        drawn = fleet(random)
        seen = Seen(replace(drawn, rules=rule_set(random)))
        for delivery in drawn.deliveries:
            batch = delivery.batch(columns=True)
            columns += 0 if batch.plain is None else len(batch.plain)
            segments += batch.spans - len(batch.requests)
            seen.take(delivery)
            prefiltered += int(seen.evaluator.table.prefiltered.sum())
        decisions += len(seen.rest().decisions)
    assert columns > 0.6 * segments
    assert prefiltered > 300
    assert decisions > 100
