"""The state machine is its table: every state, every event."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.rules.engine.state_machine import TABLE, Event, IllegalEventError, Output, Phase, step

PAIRS = list(product(Phase, Event))


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_every_event_in_every_state(state: Phase, event: Event) -> None:
    if (state, event) in TABLE:
        assert step(state, event) == TABLE[state, event]
        return
    # Only what fires can be resolved or refuted.
    assert state is not Phase.FIRING
    assert event in (Event.RESOLVED, Event.REFUTED)
    with pytest.raises(IllegalEventError) as caught:
        step(state, event)
    assert (caught.value.phase, caught.value.event) == (state, event)


def test_the_cells_that_the_page_states() -> None:
    """The sentences of the rules page, one by one."""
    assert step(Phase.INACTIVE, Event.HOLDS).phase is Phase.PENDING
    assert step(Phase.PENDING, Event.DUE) == (Phase.FIRING, Output.FIRE)
    assert step(Phase.PENDING, Event.CLEAR) == (Phase.INACTIVE, None)
    assert step(Phase.FIRING, Event.RESOLVED) == (Phase.INACTIVE, Output.RESOLVE)
    assert step(Phase.FIRING, Event.CLEAR) == (Phase.FIRING, None)
    assert step(Phase.FIRING, Event.ENDED) == (Phase.INACTIVE, Output.END)
    assert step(Phase.FIRING, Event.REFUTED) == (Phase.INACTIVE, Output.REFUTE)
    assert all(step(state, Event.MISSING) == (state, None) for state in Phase)
    assert all(step(state, Event.ENDED).phase is Phase.INACTIVE for state in Phase)


def test_what_is_recorded_is_what_enters_or_leaves_firing() -> None:
    for (state, _), (following, output) in TABLE.items():
        enters = following is Phase.FIRING and state is not Phase.FIRING
        leaves = state is Phase.FIRING and following is not Phase.FIRING
        assert (output is Output.FIRE) == enters
        assert (output in (Output.RESOLVE, Output.REFUTE, Output.END)) == leaves


@given(st.lists(st.sampled_from(list(Event)), max_size=30))
def test_on_every_path_ends_alternate_with_beginnings(events: list[Event]) -> None:
    state, firing = Phase.INACTIVE, False
    for event in events:
        try:
            state, output = step(state, event)
        except IllegalEventError:
            continue
        if output is not None:
            assert (output is Output.FIRE) != firing
            firing = not firing
        assert firing == (state is Phase.FIRING)
