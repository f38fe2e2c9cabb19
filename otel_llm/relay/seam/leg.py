"""One backend's response within a reply: bytes in, pieces out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from otel_llm.relay.seam import chunk as chunks
from otel_llm.relay.seam.dialect import dialect_of
from otel_llm.relay.seam.lines import MAX_LINE, LineReader
from otel_llm.relay.seam.piece import Piece

if TYPE_CHECKING:
    from otel_llm.relay.seam.chunk import Choice, Kind
    from otel_llm.relay.seam.request import OwnedRequest

_BLANK: Final = (b"\n", b"\r\n", b"\r")
NOT_JSON: Final = "a line that is not a JSON object"
TOO_LONG: Final = "a line over the limit"
DIFFERS: Final = "ids that are drawn again differ from those that the client has"
CUT: Final = "cut off in the midst of a line"


class ReplySoFar(Protocol):
    """The parts of a reply that a leg reads; see `reply.Reply`."""

    @property
    def request(self) -> OwnedRequest:
        """The client's request."""

    def ids_from(self, index: int) -> list[int]:
        """Return the output ids from `index` on."""

    def counted(self, choice: int) -> int:
        """Return how many ids of a choice were counted."""


class Leg:
    """A response to the client's own request (`carried` None), or to one that resumes it after `carried` ids.

    `feed` and `end` change nothing of the reply: the pieces of a leg that loses a race are dropped.
    """

    __slots__ = (
        "_expected",
        "_finish",
        "_finished",
        "_kinds",
        "_positions",
        "_reader",
        "_reply",
        "_seen",
        "carried",
        "dialect",
        "strips",
    )

    def __init__(self, reply: ReplySoFar, kind: str, carried: int | None = None, max_line: int = MAX_LINE) -> None:
        self.carried = carried
        self._reply = reply
        self._reader = LineReader(max_line)
        self._positions = {0: carried or 0}  # of each choice, the index of its next id
        self._kinds: dict[int, Kind] = {}  # of each choice, the kind of its newest text
        self._seen: set[int] = set()
        self._finished: set[int] = set()
        self._finish: str | None = None  # the newest
        # Ids that the client has and that are received again.
        self._expected = reply.ids_from(carried) if carried is not None and reply.request.asked_ids else []
        self.dialect = dialect_of(kind)
        self.strips = reply.request.endpoint in self.dialect.ids_of and not reply.request.asked_ids

    def feed(self, data: bytes) -> list[Piece]:
        """Return the pieces of the lines that end in `data`."""
        return self._pieces(self._reader.feed(data))

    def end(self) -> list[Piece]:
        """Return the piece of an unfinished last line: that of a complete line, or a piece with `trouble`."""
        pieces = self._pieces(self._reader.end())
        for piece in pieces:
            if piece.chunk is None and not piece.done:
                piece.trouble = CUT
        return pieces

    def _pieces(self, lines: list[tuple[bytes, bool]]) -> list[Piece]:
        pieces: list[Piece] = []
        for line, whole in lines:
            if line in _BLANK and whole and pieces:
                pieces[-1].gap += line
                continue
            piece = Piece(line)
            pieces.append(piece)
            if not whole:
                piece.trouble = TOO_LONG
                continue
            data = chunks.payload(line)
            if data is None:
                continue
            if data == chunks.DONE:
                piece.done = True
                piece.done_without_finish = not self._finished or bool(self._seen - self._finished)
                if not piece.done_without_finish:  # also of a backend that sends fewer choices than were asked for
                    piece.ends = self._finish
                continue
            if not data:
                continue
            chunk = chunks.parse(data)
            if chunk is None:
                piece.trouble = NOT_JSON
                continue
            piece.chunk = chunk
            piece.error = chunk.error
            piece.at = self._positions[0]
            for choice in chunk.choices:
                self._read(piece, choice)
            if piece.finish is not None:
                self._finish = piece.finish
                if len(self._finished) >= self._reply.request.choices and not self._seen - self._finished:
                    piece.ends = piece.finish
        return pieces

    def _read(self, piece: Piece, choice: Choice) -> None:
        index = choice.index
        self._seen.add(index)
        kind = choice.kind
        if kind is not None:
            self._kinds[index] = kind
            piece.text += choice.text or " "
        ids = choice.ids
        if ids:
            count = len(ids)
            at = self._positions.get(index, 0)
            end = self._positions[index] = at + count
            piece.ids += ids
            if self._expected and index == 0:
                self._compare(piece, at, ids)
            new = min(count, end - self._reply.counted(index))
            if new > 0:
                piece.tokens.append((index, new, kind or self._kinds.get(index, "content"), choice))
        elif kind is not None and ids is None:
            self._positions[index] = self._positions.get(index, 0) + 1
            piece.texts.append(choice)
        if choice.finish is not None:
            self._finished.add(index)
            if piece.finish is None:
                piece.finish = choice.finish
            if choice.finish == chunks.ABORT:
                piece.aborted = True

    def _compare(self, piece: Piece, at: int, ids: list[int]) -> None:
        again = self._expected[at - (self.carried or 0) :]
        shorter = min(len(again), len(ids))
        if again[:shorter] != ids[:shorter]:
            piece.trouble = DIFFERS
