"""Parse server-sent events incrementally: bytes in, the data of events out. Holds at most one unfinished event.

The format is that of the WHATWG HTML Standard, section 9.2.6 (Interpreting an event stream). Ids and retry times are
ignored. If real servers leave out the blank line between events, `Whole` tells where one ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    Whole = Callable[[bytes], Any]
    """Reads the data of an event; None if the data is not all of an event."""

MAX_EVENT_BYTES: Final = 1 << 20
"""A longer event is dropped and counted; a chunk of a reply has a few hundred bytes."""

MAX_NAME: Final = 256
"""The bytes of an event's name that are read."""

BOM: Final = b"\xef\xbb\xbf"
"""A byte order mark, which may stand before the first line."""
TELLING_BYTES: Final = len(BOM + b"data")
"""The beginning of a line that shows whether it has data."""


_BEGINNINGS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
"""What a line of a stream of events begins with, if it is not blank."""
MOST_BLANK: Final = 1 << 10
"""The most blanks at the beginning of a body that hide its form."""


def begins_events(body: bytes) -> bool | None:
    """Return whether a body is a stream of events, as its first bytes show; None if more of them are needed."""
    line = body.removeprefix(BOM).lstrip(b"\r\n")
    if line.startswith(_BEGINNINGS):
        return True
    unknown = BOM.startswith(body) or any(beginning.startswith(line) for beginning in _BEGINNINGS)
    return None if unknown and len(body) <= MOST_BLANK else False


class Event(NamedTuple):
    """The data of one event, and what its reader makes of it."""

    data: bytes
    value: Any


class Parser(Protocol):
    """A parser of a body: bytes in, the chunks that end in them out."""

    @property
    def lost(self) -> int:
        """Return the number of chunks that were dropped for their length."""

    @property
    def between(self) -> bool:
        """Return whether nothing is held."""

    def feed(self, data: bytes, /) -> list[Any]:
        """Apply the next bytes of the body; return the chunks that end in them, as `Whole` reads them."""

    def end(self) -> list[Any]:
        """Return the chunk that the body's end left unfinished."""


def as_it_is(data: bytes) -> bytes:
    """Return the data of an event: the `Whole` of a reader that wants no more than the standard."""
    return data


def data_of(line: bytes) -> bytes | None:
    """Return the data in a line without its ending; None for a comment or another field."""
    if line[:5] == b"data:":
        return line[6:] if line[5:6] == b" " else line[5:]
    return b"" if line == b"data" else None


class EventLines:
    """The events of a stream, from its complete lines.

    `whole` reads the data of an event. It is asked for the first data line of each event as soon as the line is there,
    if `early`: data that is whole by itself, as a JSON object is, needs no blank line behind it. What has several lines
    is read at the blank line, joined, or else line by line. Each line is read twice at most. Memory: `most` bytes.
    """

    __slots__ = ("_data", "_early", "_first", "_length", "_lost_event", "_most", "_whole", "lost", "name")

    def __init__(self, whole: Whole = as_it_is, *, early: bool = False, most: int = MAX_EVENT_BYTES) -> None:
        self.lost = 0
        self.name = ""
        """The name of the unfinished event, "" for one without."""
        self._whole = whole
        self._early = early
        self._most = most
        self._data: list[bytes] = []  # the data lines of the unfinished event
        self._length = 0  # of all of them
        self._lost_event = False
        self._first = True

    @property
    def between(self) -> bool:
        """Return whether the next line begins a new event."""
        return not (self._data or self._lost_event or self._first)

    @property
    def holds(self) -> bool:
        """Return whether a data line waits for the rest of its event."""
        return bool(self._data)

    def take(self, line: bytes, length: int) -> list[Any]:
        """Apply a line without its ending; return the events that are complete with it.

        `length`: that of the line; if it is more than `most`, the line's beginning is enough.
        """
        if self._first:
            self._first = False
            line = line.removeprefix(BOM)
        if not line:
            return self.end()
        if length > self._most:
            self._lost_event |= line.startswith(b"data")
        elif (value := data_of(line)) is not None:
            return self._append(value)
        elif line[:6] == b"event:":
            self.name = line[6:MAX_NAME].removeprefix(b" ").decode("utf-8", "replace")
        return []

    def end(self) -> list[Any]:
        """Return the events that a blank line, or the body's end, makes of the data so far."""
        events: list[Any] = []
        if self._lost_event:
            self.lost += 1
            self._lost_event = False
        elif len(self._data) == 1:
            if not self._early:
                events = [self._whole(self._data[0])]
        elif self._data:
            events = [self._whole(b"\n".join(self._data))]
            if self._early and events[0] is None:
                events = [self._whole(line) for line in self._data]
        self._data.clear()
        self._length = 0
        self.name = ""
        return [event for event in events if event is not None]

    def drop(self) -> None:
        """Drop the unfinished event, with the lines of it that are to come."""
        self._lost_event = True
        self._data.clear()

    def reset(self) -> None:
        """Expect a new body."""
        self._first = True

    def _append(self, value: bytes) -> list[Any]:
        if self._early and not self._data and not self._lost_event and (event := self._whole(value)) is not None:
            return [event]
        self._length += len(value) + 1  # without the line feed, empty lines would be free
        if self._length > self._most:
            self.drop()
        elif not self._lost_event:
            self._data.append(value)
        return []


class SseParser:
    """A parser of one body. Any way of cutting the body gives the same events; `EventLines` says when.

    Cost of a chunk: one `splitlines` and a check of each line. Memory: `most` and the current chunk, however long a
    line or an event is. `lost` counts the events that were dropped for their length.
    """

    __slots__ = ("_after_cr", "_line", "_line_length", "_most", "lines")

    def __init__(self, whole: Whole = as_it_is, *, early: bool = False, most: int = MAX_EVENT_BYTES) -> None:
        self.lines = EventLines(whole, early=early, most=most)
        self._most = most
        self._line = bytearray()  # the unfinished line; the beginning of one that is too long
        self._line_length = 0
        self._after_cr = False  # a line feed at the start of the next chunk belongs to the line that has ended

    @property
    def lost(self) -> int:
        """Return the number of events that were dropped for their length."""
        return self.lines.lost

    @property
    def between(self) -> bool:
        """Return whether nothing is held: the next byte begins a new event."""
        return not (self._line_length or self._after_cr) and self.lines.between

    def feed(self, data: bytes) -> list[Any]:
        """Apply the next bytes of the body; return the events that end in them."""
        if not data:
            return []
        after_cr, self._after_cr = self._after_cr, data[-1] == 13
        if after_cr and data[0] == 10:
            data = data[1:]
            if not data:
                return []
        lines = data.splitlines()  # of bytes: at CR, LF and CRLF, and nowhere else
        unfinished = lines.pop() if data[-1] not in b"\r\n" else None
        events: list[Any] = []
        for line in lines:
            length = len(line)
            if self._line_length:
                self._hold(line)
                length, line = self._line_length, bytes(self._line)  # noqa: PLW2901
                self._line.clear()
                self._line_length = 0
            events += self.lines.take(line, length)
        if unfinished is not None:
            self._hold(unfinished)
        return events

    def end(self) -> list[Any]:
        """Return the event that the body's end left without its blank line, and reset the parser.

        The standard drops it; clients that read a body line by line do not.
        """
        events = self.feed(b"\n") if self._line_length else []
        events += self.lines.end()
        self.lines.reset()
        self._after_cr = False
        return events

    def _hold(self, chunk: bytes) -> None:
        # Only the beginning of a line that is too long is used: it shows whether the line was data.
        self._line_length += len(chunk)
        if self._line_length <= self._most:
            self._line += chunk
        else:
            self._line += chunk[:TELLING_BYTES]
            del self._line[TELLING_BYTES:]
