"""The table of a request's states: every event has one meaning, and every end is an end."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from otel_llm.relay.streams.lifecycle import FINAL, TABLE, Event, IllegalEventError, Lifecycle, State

EVENTS = st.lists(st.sampled_from(list(Event)), max_size=30)
BACKED = {State.SERVING, State.RACING, State.SWITCHED}
"""The states in which a backend sends what the client gets."""


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_an_event_leads_to_one_state_or_changes_nothing(state: State, event: Event) -> None:
    life = Lifecycle(state)
    if life.takes(event):
        assert life.on(event) is TABLE[state][event] is life.state
    else:
        with pytest.raises(IllegalEventError, match=f"{event.value} in a request that is {state.value}"):
            life.on(event)
        assert life.state is state


@pytest.mark.parametrize("state", list(State))
def test_every_state_is_reached_and_can_end(state: State) -> None:
    reached, todo = {State.QUEUED}, [State.QUEUED]
    while todo:
        found = set(TABLE[todo.pop()].values()) - reached
        reached |= found
        todo += found
    assert state in reached
    assert (state in FINAL) is (not TABLE[state])
    assert state in FINAL or TABLE[state][Event.STOP] is State.CUT, "whoever leaves ends the request in any state"


@given(EVENTS)
@settings(max_examples=examples(400))
def test_what_follows_from_any_events(events: list[Event]) -> None:
    life, before = Lifecycle(State.QUEUED), State.QUEUED
    raced = False
    for event in events:
        if not life.takes(event):
            continue
        state = life.on(event)
        assert before not in FINAL
        assert life.over is (state in FINAL)
        if event is Event.MOVE:
            assert before is State.SERVING, "one move at a time"
        if event is Event.PAUSE:
            assert before is State.SERVING, "a stream that is moved is not paused"
        if event is Event.BROKE:
            assert before in BACKED
            raced = before is State.RACING
        if event is Event.WON:
            assert before is State.RACING or (before is State.RESUMING)
            assert state is State.SWITCHED
        if event is Event.END:
            assert before in BACKED, "only a backend's stream ends whole"
        if event is Event.GIVEN_UP:
            assert state is (State.SERVING if before is State.RACING else State.RESUMING), "the source is kept"
        if state in BACKED and before not in BACKED:
            assert event in (Event.OPENED, Event.FOUND, Event.WON)
        before = state
    assert raced in (True, False)
