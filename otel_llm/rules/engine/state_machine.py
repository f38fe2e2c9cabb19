"""The state of a rule on one stream: three states, seven events, one table; the docs are drawn from it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(StrEnum):
    """Where a rule stands on one stream."""

    INACTIVE = "inactive"
    PENDING = "pending"
    FIRING = "firing"


class Event(StrEnum):
    """What a look at the facts found; exactly one of them at a time."""

    HOLDS = "holds"
    """`when` holds, `for` is not over."""
    DUE = "due"
    """`when` has held for `for`."""
    CLEAR = "clear"
    """`when` does not hold, and nothing more can be said."""
    RESOLVED = "resolved"
    """`when` has not held for `keep_firing_for`, and `resolve_when` holds."""
    MISSING = "missing"
    """A fact is missing and `on_missing` is hold."""
    REFUTED = "refuted"
    """`when` did not hold at the flip after all: a token was under way."""
    ENDED = "ended"
    """The stream is over."""


class Output(StrEnum):
    """What a transition has the engine record."""

    FIRE = "fire"
    RESOLVE = "resolve"
    REFUTE = "refute"
    END = "end"


class Step(NamedTuple):
    """A transition: the state it leads to, and what it records."""

    state: State
    output: Output | None = None


class IllegalEventError(ValueError):
    """Say that an event cannot happen in a state; nothing has changed."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"{event} cannot happen while {state}")
        self.state = state
        self.event = event


TABLE: Final[Mapping[tuple[State, Event], Step]] = {
    (State.INACTIVE, Event.HOLDS): Step(State.PENDING),
    (State.INACTIVE, Event.DUE): Step(State.FIRING, Output.FIRE),
    (State.INACTIVE, Event.CLEAR): Step(State.INACTIVE),
    (State.INACTIVE, Event.MISSING): Step(State.INACTIVE),
    (State.INACTIVE, Event.ENDED): Step(State.INACTIVE),
    (State.PENDING, Event.HOLDS): Step(State.PENDING),
    (State.PENDING, Event.DUE): Step(State.FIRING, Output.FIRE),
    (State.PENDING, Event.CLEAR): Step(State.INACTIVE),
    (State.PENDING, Event.MISSING): Step(State.PENDING),
    (State.PENDING, Event.ENDED): Step(State.INACTIVE),
    (State.FIRING, Event.HOLDS): Step(State.FIRING),
    (State.FIRING, Event.DUE): Step(State.FIRING),
    (State.FIRING, Event.CLEAR): Step(State.FIRING),
    (State.FIRING, Event.RESOLVED): Step(State.INACTIVE, Output.RESOLVE),
    (State.FIRING, Event.MISSING): Step(State.FIRING),
    (State.FIRING, Event.REFUTED): Step(State.INACTIVE, Output.REFUTE),
    (State.FIRING, Event.ENDED): Step(State.INACTIVE, Output.END),
}
"""Every event that can happen in a state. Nothing is resolved or refuted that does not fire."""


def step(state: State, event: Event) -> Step:
    """Return the transition; raises IllegalEventError for an event that cannot happen in this state."""
    try:
        return TABLE[state, event]
    except KeyError:
        raise IllegalEventError(state, event) from None
