"""The life of a stream in flight: a table of states and events. `LiveStream.move` makes its transitions and no others.

Segments that continue a stream without a gap are applied by columns, thousands at a time. They leave it STREAMING, so
they are no event here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class StreamState(StrEnum):
    """Where a stream stands between its first segment and its verdict."""

    FOUND = "found"
    """Something of it was received, but not its commit."""
    STREAMING = "streaming"
    """Its commit is known, and every segment received is applied."""
    GAP = "gap"
    """Its commit is known, and a segment received waits for one before it."""
    ENDED = "ended"
    """Its end was received just now; whether anything is missing is to be found out."""
    SETTLING = "settling"
    """Its end was received; it waits for what is missing, at most as long as the lateness."""
    JUDGED = "judged"
    """Its verdict was given after its end."""
    LOST = "lost"
    """It was silent for too long; its verdict was given without an end."""


class StreamEvent(StrEnum):
    """What happens to a stream."""

    COMMIT = "commit"
    """Its commit became known."""
    GAP_OPENED = "gap opened"
    """A segment was received before one that precedes it."""
    GAP_CLOSED = "gap closed"
    """The segment that others waited for was received."""
    END = "end"
    """Its last segment was received, or a request span that says how it ended."""
    INCOMPLETE = "incomplete"
    """Its end is known, and something that may still come would change its row."""
    VERDICT = "verdict"
    """It is judged: all was received, or the lateness is over."""
    SILENCE = "silence"
    """Nothing was received of it for the longest time that a stream may be silent."""


IN_FLIGHT: Final = frozenset({StreamState.STREAMING, StreamState.GAP})
"""Between commit and end: rules are evaluated, and counters and windows are charged."""
OPEN: Final = IN_FLIGHT | {StreamState.FOUND}
"""Its end is not known."""
OVER: Final = frozenset({StreamState.JUDGED, StreamState.LOST})

LIFECYCLE: Final[Mapping[tuple[StreamState, StreamEvent], StreamState]] = {
    (StreamState.FOUND, StreamEvent.COMMIT): StreamState.STREAMING,
    (StreamState.STREAMING, StreamEvent.GAP_OPENED): StreamState.GAP,
    (StreamState.GAP, StreamEvent.GAP_CLOSED): StreamState.STREAMING,
    **{(state, StreamEvent.END): StreamState.ENDED for state in sorted(OPEN)},
    **{(state, StreamEvent.SILENCE): StreamState.LOST for state in sorted(OPEN)},
    (StreamState.ENDED, StreamEvent.INCOMPLETE): StreamState.SETTLING,
    (StreamState.ENDED, StreamEvent.VERDICT): StreamState.JUDGED,
    (StreamState.SETTLING, StreamEvent.VERDICT): StreamState.JUDGED,
}
"""Every event that can happen in a state, and the state to which it leads."""


class LifecycleError(ValueError):
    """Say that an event cannot happen in a state; nothing has changed."""

    def __init__(self, state: StreamState, event: StreamEvent) -> None:
        super().__init__(f"{event} cannot happen to a stream that is {state}")
        self.state = state
        self.event = event


def following(state: StreamState, event: StreamEvent) -> StreamState:
    """Return the state to which an event leads.

    Raises: LifecycleError for an event that cannot happen in this state.
    """
    try:
        return LIFECYCLE[state, event]
    except KeyError:
        raise LifecycleError(state, event) from None
