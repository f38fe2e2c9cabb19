"""Parse server-sent events incrementally: bytes in, the data of events out. Holds at most one unfinished event.

The format is that of the WHATWG HTML Standard, section 9.2.6 (Interpreting an event stream). Event names, ids and retry
times are ignored: in every supported reply the data identifies itself.
"""

from __future__ import annotations

from typing import Final, Protocol

MAX_EVENT_BYTES: Final = 1 << 20
"""A longer event is dropped and counted; a chunk of a reply has a few hundred bytes."""

_BOM: Final = b"\xef\xbb\xbf"
_TELLING_BYTES: Final = len(_BOM + b"data")


class Parser(Protocol):
    """A parser of a body: bytes in, the chunks that end in them out."""

    @property
    def between(self) -> bool:
        """Return whether nothing is held."""

    def feed(self, data: bytes, /) -> list[bytes]:
        """Apply the next bytes of the body; return the chunks that end in them."""

    def pending(self) -> bytes | None:
        """Return a chunk that seems complete, but may still go on."""

    def forget(self) -> None:
        """Drop the pending chunk."""

    def end(self) -> list[bytes]:
        """Return the chunk that the body's end left unfinished."""


class SseParser:
    """A parser of one body. Any way of cutting the body gives the same events, each once its blank line is complete.

    Cost of a piece: one `splitlines` and a check of each line. Memory: `max_event_bytes` and the current piece, however
    long a line or an event is. `lost` counts the events that were dropped for their length.
    """

    __slots__ = ("_after_cr", "_data", "_first", "_length", "_line", "_line_length", "_lost_event", "_max", "lost")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.lost = 0
        self._max = max_event_bytes
        self._line = bytearray()  # the unfinished line; the beginning of one that is too long
        self._line_length = 0
        self._data: list[bytes] = []  # the data lines of the unfinished event
        self._length = 0  # of all of them
        self._lost_event = False
        self._after_cr = False  # a line feed at the start of the next piece belongs to the line that has ended
        self._first = True

    @property
    def between(self) -> bool:
        """Return whether nothing is held: the next byte begins a new event."""
        return not (self._line_length or self._data or self._lost_event or self._after_cr or self._first)

    def feed(self, data: bytes) -> list[bytes]:
        """Apply the next bytes of the body; return the data of the events that end in them."""
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
        """Return the data of an event of one complete line, before its blank line.

        It may turn out to have more lines; a caller that can tell takes it now, and calls `forget`.
        """
        return self._data[0] if len(self._data) == 1 and not self._line_length and not self._lost_event else None

    def forget(self) -> None:
        """Drop the data of the unfinished event: it was taken already."""
        self._data.clear()
        self._length = 0

    def end(self) -> list[bytes]:
        """Return the data of an event that the body's end left without its blank line, and reset the parser.

        The standard drops it; clients that read a body line by line do not.
        """
        events: list[bytes] = []
        if self._line_length:
            events += self.feed(b"\n")
        self._dispatch(events)
        self._first, self._after_cr = True, False
        return events

    def _hold(self, piece: bytes) -> None:
        # Only the beginning of a line that is too long is used: it shows whether the line was data.
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
