"""The states of one owned request, and the table of what each event makes of them; no I/O.

`Lifecycle` owns the state. Everything else of a session reports events and reads the state; what an event means is
written here alone. Some events come too late, such as the end of a race in a stream that was cut: their sender asks
`takes` first.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(Enum):
    """What happens to the request."""

    QUEUED = "queued"
    """It waits for a slot on a backend."""
    OPENING = "opening"
    """A first backend is asked, and the next if that fails."""
    SERVING = "serving"
    """One backend serves the reply."""
    RACING = "racing"
    """One backend serves it, and a destination was asked to go on."""
    SWITCHED = "switched"
    """Another backend goes on; the client has no text of it yet."""
    PAUSED = "paused"
    """It has no backend: its reader reads what is there."""
    RESUMING = "resuming"
    """A backend is searched that goes on, behind a break or a pause."""
    CUT = "cut"
    """The reply has ended before it was whole."""
    WHOLE = "whole"
    """The client has the whole answer."""


class Event(Enum):
    """What happens to a request."""

    PLACED = "placed"
    """The queue, if there is one, has a slot for it."""
    OPENED = "opened"
    """A backend answers with a stream."""
    ANSWERED = "answered"
    """A backend answers with no stream: its answer is passed on."""
    MOVE = "move"
    """A destination is asked to go on."""
    WON = "won"
    """The destination has the next text, and the source is left."""
    GIVEN_UP = "given up"
    """The move is given up: the source went on, or no destination could."""
    TEXT = "text"
    """The client has text."""
    BROKE = "broke"
    """The serving backend broke off."""
    PAUSE = "pause"
    """The backend is left while the reader has text."""
    DUE = "due"
    """A pause is over."""
    FOUND = "found"
    """A search has found a backend that goes on."""
    NONE = "none"
    """No backend can be had."""
    STOP = "stop"
    """The reply is to end here: a rule or an operator says so, or the client has left."""
    END = "end"
    """The client has all of the reply."""


FINAL: Final = frozenset({State.CUT, State.WHOLE})
_ENDS: Final = {Event.STOP: State.CUT}
_SERVED: Final = {**_ENDS, Event.BROKE: State.RESUMING, Event.END: State.WHOLE}
TABLE: Final[Mapping[State, Mapping[Event, State]]] = {
    State.QUEUED: {**_ENDS, Event.PLACED: State.OPENING, Event.NONE: State.CUT},
    State.OPENING: {
        **_ENDS,
        Event.OPENED: State.SERVING,
        Event.ANSWERED: State.WHOLE,
        Event.NONE: State.CUT,
    },
    State.SERVING: {
        **_SERVED,
        Event.MOVE: State.RACING,
        Event.PAUSE: State.PAUSED,
        Event.TEXT: State.SERVING,
    },
    State.RACING: {
        **_SERVED,
        Event.TEXT: State.RACING,
        Event.WON: State.SWITCHED,
        Event.GIVEN_UP: State.SERVING,
    },
    State.SWITCHED: {**_SERVED, Event.TEXT: State.SERVING},
    State.PAUSED: {**_ENDS, Event.DUE: State.RESUMING},
    State.RESUMING: {
        **_ENDS,
        Event.FOUND: State.SWITCHED,
        Event.WON: State.SWITCHED,  # the race that was under way when the source broke off
        Event.GIVEN_UP: State.RESUMING,
        Event.NONE: State.CUT,
    },
    State.CUT: {},
    State.WHOLE: {},
}
"""The next state for each event that may happen in a state."""


class IllegalEventError(Exception):
    """An event that cannot happen in a state: a bug of ours."""


class Lifecycle:
    """The state of one request, from the queue or its first backend to its end."""

    __slots__ = ("state",)

    def __init__(self, state: State = State.OPENING) -> None:
        self.state = state

    @property
    def over(self) -> bool:
        """Tell whether the request has ended."""
        return self.state in FINAL

    def takes(self, event: Event) -> bool:
        """Tell whether an event can happen now."""
        return event in TABLE[self.state]

    def on(self, event: Event) -> State:
        """Apply an event; return the new state.

        Raises:
            IllegalEventError: the event cannot happen now; the state stays.
        """
        try:
            self.state = TABLE[self.state][event]
        except KeyError:
            raise IllegalEventError(f"{event.value} in a request that is {self.state.value}") from None
        return self.state
