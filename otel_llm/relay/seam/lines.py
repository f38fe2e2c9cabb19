"""Split the body of an SSE reply into lines, from chunks cut anywhere."""

from __future__ import annotations

from typing import Final

MAX_LINE: Final = 1 << 20
"""Bytes of a line (1 MiB), its ending included; a longer one is passed on in parts."""

Line = tuple[bytes, bool]
"""Bytes, and whether they are a complete line with its ending; False: a part of a line over the limit."""


class LineReader:
    """A splitter of a body into lines that end in LF, CR or CRLF; joined, they are the body.

    An LF whose CR was in the chunk before is a line of its own: the reader never waits for a byte that may not come. It
    holds at most `limit` bytes, which may be changed.
    """

    __slots__ = ("_begun", "_over", "limit")

    def __init__(self, limit: int = MAX_LINE) -> None:
        self.limit = limit
        self._begun = bytearray()  # of the line that has not ended yet
        self._over = False  # in the midst of a line that is over the limit

    @property
    def begun(self) -> int:
        """Return the number of bytes that are held."""
        return len(self._begun)

    def feed(self, data: bytes) -> list[Line]:
        """Return the lines that end in `data`."""
        if b"\n" not in data and b"\r" not in data:
            return self._hold(data)
        if self._begun:
            data = bytes(self._begun) + data
            self._begun.clear()
        cut = data.splitlines(keepends=True)  # of bytes: at LF, CR and CRLF only
        rest = b"" if cut[-1].endswith((b"\n", b"\r")) else cut.pop()
        lines: list[Line] = []
        for line in cut:
            if self._over or len(line) > self.limit:
                lines.append((line, False))
                self._over = False
            else:
                lines.append((line, True))
        return lines + self._hold(rest) if rest else lines

    def end(self) -> list[Line]:
        """Return the rest of the body, a line without an ending."""
        rest, over = bytes(self._begun), self._over
        self._begun.clear()
        self._over = False
        return [(rest, not over)] if rest else []

    def _hold(self, data: bytes) -> list[Line]:
        self._begun += data
        if not self._begun or (not self._over and len(self._begun) <= self.limit):
            return []
        part = bytes(self._begun)
        self._begun.clear()
        self._over = True
        return [(part, False)]
