"""Server-sent events, parsed where they pass: bytes in, the data of events out. Holds at most one unfinished event.

The format is that of the WHATWG HTML Standard, section 9.2.6 (Interpreting an event stream). Event names, ids and retry
times are not given out: in every reply that is read here the data says by itself what it is.
"""

from __future__ import annotations

from typing import Final, Protocol

MAX_EVENT_BYTES: Final = 1 << 20
"""A longer event is dropped and counted; a chunk of a reply has a few hundred bytes."""

_BOM: Final = b"\xef\xbb\xbf"
_TELLING_BYTES: Final = len(_BOM + b"data")


class Parser(Protocol):
    """What parses a body: bytes in, the chunks that end in them out."""

    @property
    def between(self) -> bool:
        """Return whether nothing is held."""

    def feed(self, data: bytes, /) -> list[bytes]:
        """Take the next bytes of the body; return the chunks that end in them."""

    def pending(self) -> bytes | None:
        """Return a chunk that is whole as far as one can tell, and may still go on."""

    def forget(self) -> None:
        """Drop the pending chunk."""

    def end(self) -> list[bytes]:
        """Return the chunk that the body's end left unfinished."""


class SseParser:
    """Parses one body. Any way of cutting the body gives the same events, each once its blank line is complete.

    Costs for a piece: one `splitlines` and a look at each line. Memory: `max_event_bytes` and the piece at hand,
    however long a line or an event goes on. `lost` counts the events that were dropped for their length.
    """

    __slots__ = ("_after_cr", "_data", "_first", "_length", "_line", "_line_length", "_lost_event", "_max", "lost")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.lost = 0
        self._max = max_event_bytes
        self._line = bytearray()  # the line that has not ended yet; the beginning of one that is too long
        self._line_length = 0
        self._data: list[bytes] = []  # the data lines of the event that has not ended yet
        self._length = 0  # of all of them
        self._lost_event = False
        self._after_cr = False  # a line feed that comes next belongs to the line that has ended
        self._first = True

    @property
    def between(self) -> bool:
        """Return whether nothing is held: the next byte begins a new event."""
        return not (self._line_length or self._data or self._lost_event or self._after_cr or self._first)

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes of the body; return the data of the events that end in them."""
        if not data:
            return []
        after_cr, self._after_cr = self._after_cr, data[-1] == 13
        if after_cr and data[0] == 10:
            data = data[1:]
            if not data:
                return []
        lines = data.splitlines()  # of bytes: at CR, LF and CRLF, and nowhere else
        unfinished = lines.pop() if data[-1] not in b"\r\n" else None
        events: list[bytes] = []
        for line in lines:
            if self._line_length:
                self._hold(line)
                length, line = self._line_length, bytes(self._line)  # noqa: PLW2901
                self._line.clear()
                self._line_length = 0
            else:
                length = len(line)
            if self._first:
                self._first = False
                line = line.removeprefix(_BOM)  # noqa: PLW2901
            if length > self._max:
                self._lost_event |= line.startswith(b"data")
            elif line[:5] == b"data:":
                self._append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line:
                self._dispatch(events)
            elif line == b"data":
                self._append(b"")
        if unfinished is not None:
            self._hold(unfinished)
        return events

    def pending(self) -> bytes | None:
        """Return the data of an event of one line whose line is complete and whose blank line has not come yet.

        It may turn out to have more lines; who knows better takes it now, and says so by `forget`.
        """
        return self._data[0] if len(self._data) == 1 and not self._line_length and not self._lost_event else None

    def forget(self) -> None:
        """Drop the data of the event that has not ended yet: it was taken already."""
        self._data.clear()
        self._length = 0

    def end(self) -> list[bytes]:
        """Return the data of an event that the body's end left without its blank line, and start anew.

        The standard drops it; those who read a body line by line do not.
        """
        events: list[bytes] = []
        if self._line_length:
            events += self.feed(b"\n")
        self._dispatch(events)
        self._first, self._after_cr = True, False
        return events

    def _hold(self, piece: bytes) -> None:
        # Of a line that is too long only its beginning is of use: it says whether the line was data.
        self._line_length += len(piece)
        if self._line_length <= self._max:
            self._line += piece
        else:
            self._line += piece[:_TELLING_BYTES]
            del self._line[_TELLING_BYTES:]

    def _append(self, value: bytes) -> None:
        self._length += len(value) + 1  # without the line feed, empty lines would be free
        if self._length > self._max:
            self._lost_event = True
            self._data.clear()
        elif not self._lost_event:
            self._data.append(value)

    def _dispatch(self, events: list[bytes]) -> None:
        if self._lost_event:
            self.lost += 1
            self._lost_event = False
        elif self._data:
            events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
        else:
            return
        self._data.clear()
        self._length = 0
