"""The state machine of a rule on one stream: three states, seven events, one table; the docs are generated from it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Phase(StrEnum):
    """The state of a rule on one stream."""

    INACTIVE = "inactive"
    PENDING = "pending"
    FIRING = "firing"


class Event(StrEnum):
    """The result of an evaluation; exactly one of them at a time."""

    HOLDS = "holds"
    """`when` holds, `for` is not over."""
    DUE = "due"
    """`when` has held for `for`."""
    CLEAR = "clear"
    """`when` does not hold, and no other event applies."""
    RESOLVED = "resolved"
    """`when` has not held for `keep_firing_for`, and `resolve_when` holds."""
    MISSING = "missing"
    """A fact is missing and `on_missing` is hold."""
    REFUTED = "refuted"
    """`when` did not hold at the flip after all: a token was under way."""
    ENDED = "ended"
    """The stream is over."""


class Output(StrEnum):
    """The record that a transition makes."""

    FIRE = "fire"
    RESOLVE = "resolve"
    REFUTE = "refute"
    END = "end"


class Step(NamedTuple):
    """A transition: the state it leads to, and its record."""

    phase: Phase
    output: Output | None = None


class IllegalEventError(ValueError):
    """An event cannot happen in a state; nothing has changed."""

    def __init__(self, phase: Phase, event: Event) -> None:
        super().__init__(f"{event} cannot happen while {phase}")
        self.phase = phase
        self.event = event


TABLE: Final[Mapping[tuple[Phase, Event], Step]] = {
    (Phase.INACTIVE, Event.HOLDS): Step(Phase.PENDING),
    (Phase.INACTIVE, Event.DUE): Step(Phase.FIRING, Output.FIRE),
    (Phase.INACTIVE, Event.CLEAR): Step(Phase.INACTIVE),
    (Phase.INACTIVE, Event.MISSING): Step(Phase.INACTIVE),
    (Phase.INACTIVE, Event.ENDED): Step(Phase.INACTIVE),
    (Phase.PENDING, Event.HOLDS): Step(Phase.PENDING),
    (Phase.PENDING, Event.DUE): Step(Phase.FIRING, Output.FIRE),
    (Phase.PENDING, Event.CLEAR): Step(Phase.INACTIVE),
    (Phase.PENDING, Event.MISSING): Step(Phase.PENDING),
    (Phase.PENDING, Event.ENDED): Step(Phase.INACTIVE),
    (Phase.FIRING, Event.HOLDS): Step(Phase.FIRING),
    (Phase.FIRING, Event.DUE): Step(Phase.FIRING),
    (Phase.FIRING, Event.CLEAR): Step(Phase.FIRING),
    (Phase.FIRING, Event.RESOLVED): Step(Phase.INACTIVE, Output.RESOLVE),
    (Phase.FIRING, Event.MISSING): Step(Phase.FIRING),
    (Phase.FIRING, Event.REFUTED): Step(Phase.INACTIVE, Output.REFUTE),
    (Phase.FIRING, Event.ENDED): Step(Phase.INACTIVE, Output.END),
}
"""Every event that can happen in a state. Only a firing rule can be resolved or refuted."""


def step(phase: Phase, event: Event) -> Step:
    """Return the transition; raises IllegalEventError for an event that cannot happen in this state."""
    try:
        return TABLE[phase, event]
    except KeyError:
        raise IllegalEventError(phase, event) from None
