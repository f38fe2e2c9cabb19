"""The state machine is its table: every state, every event."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.rules.engine.state_machine import TABLE, Event, IllegalEventError, Output, State, step

PAIRS = list(product(State, Event))


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_every_event_in_every_state(state: State, event: Event) -> None:
    if (state, event) in TABLE:
        assert step(state, event) == TABLE[state, event]
        return
    # Only what fires can be resolved or refuted.
    assert state is not State.FIRING
    assert event in (Event.RESOLVED, Event.REFUTED)
    with pytest.raises(IllegalEventError) as caught:
        step(state, event)
    assert (caught.value.state, caught.value.event) == (state, event)


def test_the_cells_that_the_page_states() -> None:
    """The sentences of the rules page, one by one."""
    assert step(State.INACTIVE, Event.HOLDS).state is State.PENDING
    assert step(State.PENDING, Event.DUE) == (State.FIRING, Output.FIRE)
    assert step(State.PENDING, Event.CLEAR) == (State.INACTIVE, None)
    assert step(State.FIRING, Event.RESOLVED) == (State.INACTIVE, Output.RESOLVE)
    assert step(State.FIRING, Event.CLEAR) == (State.FIRING, None)
    assert step(State.FIRING, Event.ENDED) == (State.INACTIVE, Output.END)
    assert step(State.FIRING, Event.REFUTED) == (State.INACTIVE, Output.REFUTE)
    assert all(step(state, Event.MISSING) == (state, None) for state in State)
    assert all(step(state, Event.ENDED).state is State.INACTIVE for state in State)


def test_what_is_recorded_is_what_enters_or_leaves_firing() -> None:
    for (state, _), (following, output) in TABLE.items():
        enters = following is State.FIRING and state is not State.FIRING
        leaves = state is State.FIRING and following is not State.FIRING
        assert (output is Output.FIRE) == enters
        assert (output in (Output.RESOLVE, Output.REFUTE, Output.END)) == leaves


@given(st.lists(st.sampled_from(list(Event)), max_size=30))
def test_on_every_path_ends_alternate_with_beginnings(events: list[Event]) -> None:
    state, firing = State.INACTIVE, False
    for event in events:
        try:
            state, output = step(state, event)
        except IllegalEventError:
            continue
        if output is not None:
            assert (output is Output.FIRE) != firing
            firing = not firing
        assert firing == (state is State.FIRING)
