"""The lifecycle of a stream: the table by itself, and what the evaluator makes of it."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.core.core_cases import commit, ends, seen, segment, take
from support.core.core_fleets import Seen, fleet

from otel_llm.evaluate.streams.lifecycle import (
    FINAL,
    IN_FLIGHT,
    LIFECYCLE,
    OPEN,
    LifecycleError,
    StreamEvent,
    StreamState,
    following,
)
from otel_llm.evaluate.streams.live_stream import LiveStream

PAIRS = [*product(StreamState, StreamEvent)]


@given(st.lists(st.sampled_from(StreamEvent)))
def test_any_events_lead_through_the_table_or_change_nothing(events: list[StreamEvent]) -> None:
    state, ended, over = StreamState.FOUND, False, False
    for event in events:
        if (state, event) in LIFECYCLE:
            assert not over, "nothing happens to a stream that was judged"
            state = following(state, event)
        else:
            with pytest.raises(LifecycleError, match="cannot happen"):
                following(state, event)
        ended = ended or (event is StreamEvent.END and state is StreamState.ENDED)
        over = over or state in FINAL
        assert not (ended and state in OPEN), "a stream that has ended is not in flight again"
        assert over is (state in FINAL)


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_every_state_and_event(state: StreamState, event: StreamEvent) -> None:
    """In words, beside the table: what may happen when."""
    may = {
        StreamEvent.COMMIT: state is StreamState.FOUND,
        StreamEvent.GAP_OPENED: state is StreamState.STREAMING,
        StreamEvent.GAP_CLOSED: state is StreamState.GAP,
        StreamEvent.END: state in OPEN,
        StreamEvent.SILENCE: state in OPEN,
        StreamEvent.INCOMPLETE: state is StreamState.ENDED,
        StreamEvent.VERDICT: state not in OPEN | FINAL,
    }
    assert ((state, event) in LIFECYCLE) is may[event]


def test_every_state_is_reached_and_leads_to_a_verdict() -> None:
    reached = {StreamState.FOUND} | {state for state in StreamState if state in LIFECYCLE.values()}
    assert reached == set(StreamState)
    ending = set(FINAL)
    for _ in StreamState:
        ending |= {state for (state, _), to in LIFECYCLE.items() if to in ending}
    assert ending == set(StreamState)


def state_by_facts(stream: LiveStream) -> StreamState:
    if stream.ended_ns is not None:
        return StreamState.AWAITING_PARTS
    if not stream.begun:
        return StreamState.FOUND
    return StreamState.GAP if stream.waiting else StreamState.STREAMING


def check(one: Seen) -> None:
    table = one.evaluator.table
    for stream in one.evaluator.live.values():
        assert stream.state is state_by_facts(stream)
        assert bool(table.in_flight[stream.slot]) is (stream.state in IN_FLIGHT)
        assert stream.state is StreamState.STREAMING or not table.ready[stream.slot]
        assert (stream.key in one.evaluator.registry.ended) is (stream.state not in OPEN)


@pytest.mark.parametrize("by_columns", [True, False])
def test_the_evaluator_makes_each_transition_of_the_table_and_no_other(
    monkeypatch: pytest.MonkeyPatch, by_columns: bool
) -> None:
    made: set[tuple[StreamState, StreamEvent]] = set()
    move = LiveStream.move

    def noted(stream: LiveStream, event: StreamEvent) -> None:
        made.add((stream.state, event))
        move(stream, event)

    monkeypatch.setattr(LiveStream, "move", noted)
    for seed in range(40):
        one = Seen(fleet(Random(seed)), by_columns=by_columns)
        for delivery in one.fleet.deliveries:
            one.take(delivery, columns=by_columns)
            check(one)
        one.rest()
        assert not one.evaluator.live
    one = seen(by_columns=by_columns)
    take(one, 0, segment(1, 0, [5], 8))  # its commit never comes, nor its end
    check(one)
    one.rest()
    assert not one.evaluator.live
    assert made == set(LIFECYCLE)


def test_one_stream_from_a_gap_to_its_verdict() -> None:
    one = seen()
    take(one, 0, commit())
    (stream,) = one.evaluator.live.values()
    states = [stream.state]
    for ms, span in [
        (10, segment(2, 1, [9], 10)),
        (20, segment(1, 0, [5], 8)),
        (30, segment(3, 2, [], 30, stated=ends(2, 4))),
    ]:
        take(one, ms, span)
        states.append(stream.state)
    one.rest()
    assert [*states, stream.state] == ["streaming", "gap", "streaming", "awaiting parts", "judged"]
