"""A stream that begins by its commit alone begins as any other does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.core.core_cases import at, commit, ends, request, seen, segment, take
from support.otlp import IDENTITY, Value

from otel_llm import semconv
from otel_llm.evaluate.streams.live_stream import LiveStream
from otel_llm.formats.assemble.received_stream import DUPLICATE, ReceivedStream
from otel_llm.formats.records import Segment
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.classes import SloClass, SloClasses

TIMES = st.integers(1, 2**62)


@given(TIMES, TIMES, st.none() | TIMES, st.dictionaries(st.sampled_from(["a", semconv.SLO_CLASS]), st.just("chat")))
def test_the_parts_of_a_commit_are_what_taking_it_in_leaves(
    first_ns: int, second_ns: int, receipt_ns: int | None, stated: dict[str, str | int | float | bool]
) -> None:
    start_ns, end_ns = sorted((first_ns, second_ns))

    def segment() -> Segment:
        return Segment(bytes(16), bytes(8), 0, 0, 0, start_ns, end_ns, [], None, dict(stated), receipt_ns)

    step_by_step = ReceivedStream()
    assert step_by_step.add(segment()) is None
    step_by_step.compact()
    at_once = ReceivedStream.begun(segment())
    assert at_once == step_by_step
    for parts in (at_once, step_by_step):
        assert parts.add(segment()) == DUPLICATE


def facts(stream: LiveStream) -> dict[str, object]:
    """Return all that is known of a stream that has just begun."""
    table, slot = stream.table, stream.slot
    return {
        "identity": (stream.group, stream.exact_resume, stream.slo, stream.shift_ns),
        "row": table.rows[slot].tolist(),
        "due": table.due_ns.item(slot),
        "begun": bool(table.in_flight[slot]),
        "found": table.found_ns.item(slot),
        "parts": stream.received,
        "input_tokens": stream.stream.input_tokens,
        "commit": stream.stream.commit_ns,
        "in flight": [stream.has_gap, stream.ended_ns, stream.waiting, stream.early],
    }


@pytest.mark.parametrize(
    "stated",
    [
        IDENTITY,
        {**IDENTITY, semconv.GEN_AI_USAGE_INPUT_TOKENS: 300, semconv.EXACT_RESUME: True},
        {semconv.SLO_CLASS: "voice", semconv.MEASURED_AT: "relay"},
        {semconv.SLO_CLASS: "no such class", semconv.GEN_AI_RESPONSE_MODEL: "other"},
        {},
    ],
)
@pytest.mark.parametrize("receipt_ms", [0.5, 9_000.0])
def test_at_once_or_step_by_step(stated: dict[str, Value], receipt_ms: float) -> None:
    found, counts = [], []
    for by_columns in (True, False):
        one = seen(by_columns=by_columns)
        take(one, receipt_ms, commit(stated=stated), commit(request=2, stated=stated))
        first = next(iter(one.evaluator.live.values()))
        kept = facts(first)
        if not by_columns:  # who looks at its rules is all that differs: without any rule there is nothing to do
            first.table.prefiltered[first.slot] = True
            first.table.identity[first.slot] = 0
            kept["row"] = first.table.rows[first.slot].tolist()
        found.append(kept)
        counts.append(+one.evaluator.counts)
    assert found[0] == found[1]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("by_columns", [True, False])
def test_a_commit_after_a_reload_is_judged_by_the_classes_of_now(by_columns: bool) -> None:
    before = SloClasses((SloClass("chat"),), "chat")
    after = SloClasses((SloClass("chat", pace_ns=77_000_000),), "chat")
    one = seen(classes=before, by_columns=by_columns)
    take(one, 0, commit(request=1))
    one.evaluator.reload(after, RuleSet(()), at(1))
    take(one, 2, commit(request=2))
    assert [stream.slo for stream in one.evaluator.live.values()] == [before.get("chat"), after.get("chat")]


@pytest.mark.parametrize("by_columns", [True, False])
def test_what_came_before_the_commit_or_comes_with_it_is_not_lost(by_columns: bool) -> None:
    one = seen(classes=load_slo(), by_columns=by_columns)
    take(one, 0, request(900, number=1, stated={**IDENTITY, **ends(1, 2)}))
    take(one, 1, segment(1, 0, [100], 900, request=2, stated=ends(1, 2)))
    take(one, 2, *(commit(request=number) for number in (1, 2, 3)), commit(request=3, choice=1))
    take(one, 3, commit(request=3), segment(1, 0, [100], 900, stated=ends(1, 2)), request(900, number=2))
    one.evaluator.advance(at(20_000))
    rows = {str(row["trace_id"])[-1]: row for row in one.rows}
    assert {number: (row["outcome"], row["tokens"], row["coverage"]) for number, row in rows.items()} == {
        "1": ("completed", 1, 1.0),
        "2": ("completed", 1, 1.0),
    }
    assert sorted(key[3] for key in one.evaluator.live) == [0, 1]
    assert one.evaluator.counts["duplicate_segments"] == 1
