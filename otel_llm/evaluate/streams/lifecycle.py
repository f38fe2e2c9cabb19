"""The lifecycle of a stream: a table of states and events; `LiveStream.move` makes the only transitions.

A segment that continues a stream without a gap is no event: it leaves the stream STREAMING. Such segments are applied
by columns, thousands at a time.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class StreamState(StrEnum):
    """The states of a stream between its first segment and its verdict."""

    FOUND = "found"
    """A segment was received, but not the commit."""
    STREAMING = "streaming"
    """The commit is known, and every received segment is applied."""
    GAP = "gap"
    """The commit is known, and a received segment waits for an earlier one."""
    ENDED = "ended"
    """The end has just been received; its completeness is not checked yet."""
    AWAITING_PARTS = "awaiting parts"
    """The end was received; missing parts are awaited, for the lateness at most."""
    JUDGED = "judged"
    """The verdict was given after the end."""
    LOST = "lost"
    """The stream was silent for too long; the verdict was given without an end."""


class StreamEvent(StrEnum):
    """The events of a stream."""

    COMMIT = "commit"
    """The commit became known."""
    GAP_OPENED = "gap opened"
    """A segment was received before an earlier one."""
    GAP_CLOSED = "gap closed"
    """The missing segment was received."""
    END = "end"
    """The last segment was received, or a request span with an outcome."""
    INCOMPLETE = "incomplete"
    """The end is known, and a part that may still arrive would change the row."""
    VERDICT = "verdict"
    """The stream is judged: it is complete, or the lateness has passed."""
    SILENCE = "silence"
    """No segment was received for the timeout of silent streams."""


IN_FLIGHT: Final = frozenset({StreamState.STREAMING, StreamState.GAP})
"""Between commit and end: rules are evaluated, and counters and windows are charged."""
OPEN: Final = IN_FLIGHT | {StreamState.FOUND}
"""Without a known end."""
FINAL: Final = frozenset({StreamState.JUDGED, StreamState.LOST})
"""With a verdict."""

LIFECYCLE: Final[Mapping[tuple[StreamState, StreamEvent], StreamState]] = {
    (StreamState.FOUND, StreamEvent.COMMIT): StreamState.STREAMING,
    (StreamState.STREAMING, StreamEvent.GAP_OPENED): StreamState.GAP,
    (StreamState.GAP, StreamEvent.GAP_CLOSED): StreamState.STREAMING,
    **{(state, StreamEvent.END): StreamState.ENDED for state in sorted(OPEN)},
    **{(state, StreamEvent.SILENCE): StreamState.LOST for state in sorted(OPEN)},
    (StreamState.ENDED, StreamEvent.INCOMPLETE): StreamState.AWAITING_PARTS,
    (StreamState.ENDED, StreamEvent.VERDICT): StreamState.JUDGED,
    (StreamState.AWAITING_PARTS, StreamEvent.VERDICT): StreamState.JUDGED,
}
"""The next state, by state and event; other events are impossible."""


class LifecycleError(ValueError):
    """An event is impossible in a state; nothing has changed."""

    def __init__(self, state: StreamState, event: StreamEvent) -> None:
        super().__init__(f"{event} cannot happen to a stream that is {state}")
        self.state = state
        self.event = event


def following(state: StreamState, event: StreamEvent) -> StreamState:
    """Return the state after an event.

    Raises:
        LifecycleError: the event is impossible in this state.
    """
    try:
        return LIFECYCLE[state, event]
    except KeyError:
        raise LifecycleError(state, event) from None
