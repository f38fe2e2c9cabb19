"""One backend's response within a reply: bytes in, lines out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from otel_llm.instrumentation.parse.sse import BOM, TELLING_BYTES, Event, EventLines, data_of
from otel_llm.instrumentation.segments.statements import UNKNOWN
from otel_llm.relay.splice import chunk as chunks
from otel_llm.relay.splice.chunk import Chunk
from otel_llm.relay.splice.dialect import dialect_of
from otel_llm.relay.splice.large_body import LARGE_BYTES
from otel_llm.relay.splice.line import Line, ending_of

if TYPE_CHECKING:
    from otel_llm.relay.splice.chunk import Choice, Kind
    from otel_llm.relay.splice.request import OwnedRequest

_BLANK: Final = (b"\n", b"\r\n", b"\r")
ID_BYTES: Final = 12
"""The most bytes of an id in JSON, with what separates it from the next."""
MAX_PROMPT: Final = 2**21
"""More tokens of a prompt than this no length that a backend states makes room for."""
NOT_JSON: Final = "a line that is not a JSON object"
TOO_LONG: Final = "a line over the limit"
DIFFERS: Final = "ids that are drawn again differ from those that the client has"
IGNORED: Final = "the backend does not continue from ids"
CUT: Final = "cut off in the midst of a line"
MAX_LINE: Final = 1 << 20
"""Bytes of a line (1 MiB), its ending included; a longer one is passed on in parts."""

RawLine = tuple[bytes, bool]
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

    def feed(self, data: bytes) -> list[RawLine]:
        """Return the lines that end in `data`."""
        if b"\n" not in data and b"\r" not in data:
            return self._hold(data)
        if self._begun:
            data = bytes(self._begun) + data
            self._begun.clear()
        cut = data.splitlines(keepends=True)  # of bytes: at LF, CR and CRLF only
        rest = b"" if cut[-1].endswith((b"\n", b"\r")) else cut.pop()
        raw_lines: list[RawLine] = []
        for raw in cut:
            if self._over or len(raw) > self.limit:
                raw_lines.append((raw, False))
                self._over = False
            else:
                raw_lines.append((raw, True))
        return raw_lines + self._hold(rest) if rest else raw_lines

    def end(self) -> list[RawLine]:
        """Return the rest of the body, a line without an ending."""
        rest, over = bytes(self._begun), self._over
        self._begun.clear()
        self._over = False
        return [(rest, not over)] if rest else []

    def _hold(self, data: bytes) -> list[RawLine]:
        self._begun += data
        if not self._begun or (not self._over and len(self._begun) <= self.limit):
            return []
        part = bytes(self._begun)
        self._begun.clear()
        self._over = True
        return [(part, False)]


def _read_data(data: bytes) -> Event | None:
    """Return what the data of an event is; None for what may be the beginning of JSON on several lines."""
    bare = data.strip()
    if bare == chunks.DONE or not bare:
        return Event(data, bare)
    chunk = chunks.parse(bare)
    if chunk is not None:
        return Event(data, chunk)
    return None if bare.startswith(b"{") else Event(data, NOT_JSON)


class ReplySoFar(Protocol):
    """The parts of a reply that a upstream response reads; see `reply.Reply`."""

    @property
    def request(self) -> OwnedRequest:
        """The client's request."""

    def ids_from(self, index: int) -> list[int]:
        """Return the output ids from `index` on."""

    def counted(self, choice: int) -> int:
        """Return how many ids of a choice were counted."""


class UpstreamResponse:
    """A response to the client's own request (`carried` None), or to one that resumes it after `carried` ids.

    `echo`: the number of prompt ids that the response states if it continues a chat by the chat's own endpoint; such a
    response is `native`: its chunks have the client's form.
    `most_prompt_tokens`: the line with the ids of the prompt may be longer than others, by that of so many ids. `feed`
    and `end` change nothing of the reply: the lines of a upstream response that loses a race are dropped.
    """

    __slots__ = (
        "_after_cr",
        "_echo",
        "_events",
        "_expected",
        "_finish",
        "_finished",
        "_held",
        "_held_bytes",
        "_json",
        "_kinds",
        "_max_event",
        "_max_line",
        "_over",
        "_positions",
        "_reader",
        "_reply",
        "_seen",
        "carried",
        "dialect",
        "native",
        "strips",
    )

    def __init__(
        self,
        reply: ReplySoFar,
        kind: str,
        carried: int | None = None,
        max_line: int = MAX_LINE,
        most_prompt_tokens: int = 0,
        echo: int | None = None,
    ) -> None:
        self.carried = carried
        self.native = echo is not None
        self._echo = echo
        self.dialect = dialect_of(kind)
        self._reply = reply
        brings_ids = reply.request.endpoint in self.dialect.ids_of or carried is not None
        self._max_event = max_line + ID_BYTES * min(most_prompt_tokens, MAX_PROMPT) * brings_ids
        self._reader = LineReader(self._max_event)
        self._events = EventLines(_read_data, early=True, most=self._max_event)
        self._max_line = max_line  # of the lines behind that with the ids of the prompt
        self._held: list[tuple[bytes, bytes | None]] = []  # the lines of an unfinished event, and the data of each
        self._held_bytes = 0
        self._after_cr = False  # the last line ended in CR: an LF that follows is the rest of its ending
        self._over = False  # in the midst of a line over the limit
        self._json: bool | None = None  # the body is a JSON text: its lines are read as one event's
        self._positions = {0: carried or 0}  # of each choice, the index of its next id
        self._kinds: dict[int, Kind] = {}  # of each choice, the kind of its newest text
        self._seen: set[int] = set()
        self._finished: set[int] = set()
        self._finish: str | None = None  # the newest
        # Ids that the client has and that are received again.
        self._expected = reply.ids_from(carried) if carried is not None and reply.request.asked_ids else []
        self.strips = reply.request.endpoint in self.dialect.ids_of and not reply.request.asked_ids

    def is_long(self, data: bytes) -> bool:
        """Return whether `feed` of these bytes, of none `end`, may parse a large text: call it in a thread then."""
        held = self._reader.begun + self._held_bytes
        return held + len(data) > LARGE_BYTES and (not data or b"\n" in data or b"\r" in data)

    def feed(self, data: bytes) -> list[Line]:
        """Return the lines of the lines that end in `data`, except those of an event whose data is not whole yet."""
        lines: list[Line] = []
        for raw, whole in self._reader.feed(data):
            self._take(raw, whole, lines)
        return lines

    def end(self) -> list[Line]:
        """Return the lines of an unfinished last line or event: those of a whole one, or lines with `trouble`."""
        lines: list[Line] = []
        for raw, whole in self._reader.end():
            self._take(raw, whole, lines)
        if self._held:
            self._release(self._events.end(), lines)
        for line in lines:
            if line.chunk is None and not line.done:
                line.trouble = CUT
        return lines

    def _take(self, raw: bytes, whole: bool, lines: list[Line]) -> None:
        """Apply a line of the body, or with `whole` False a part of one over the limit; add what need not wait."""
        half, self._after_cr = self._after_cr and raw == b"\n", raw.endswith(b"\r")
        # Half is the rest of the ending of the line before: it ends no event. Between events a blank line ends none.
        if half or (whole and raw in _BLANK and self._events.between):
            self._pass(raw, b"", lines)
            return
        bare = raw.rstrip(b"\r\n")
        if not whole:
            self._drop(lines)
            if not self._over:
                self._events.take(bare[:TELLING_BYTES], self._max_event + 1)
            self._over = bare == raw
            lines.append(Line(raw, TOO_LONG))
            return
        self._over = False
        if self._json is None and bare.strip():
            self._json = bare.removeprefix(BOM).lstrip().startswith(b"{")
        if self._json:
            bare = b"data:" + bare.removeprefix(BOM)
        found: list[Event] = self._events.take(bare, len(bare))
        if self._held and not bare:
            self._release(found, lines)
            self._pass(raw, bare, lines)
        elif found:
            line = Line(raw)
            lines.append(line)
            self._fill(line, found[0].value)
        elif self._events.holds:
            self._hold(raw, bare, lines)
        else:
            self._pass(raw, bare, lines)

    def _pass(self, raw: bytes, bare: bytes, lines: list[Line]) -> None:
        """Add a line without data; if an event waits, it waits behind it."""
        if self._held:
            self._hold(raw, bare, lines)
        elif lines and raw in _BLANK:
            lines[-1].gap += raw
        else:
            lines.append(Line(raw))

    def _hold(self, raw: bytes, bare: bytes, lines: list[Line]) -> None:
        self._held.append((raw, data_of(bare.removeprefix(BOM))))
        self._held_bytes += len(raw)
        if self._held_bytes > self._reader.limit:
            self._drop(lines)

    def _drop(self, lines: list[Line]) -> None:
        """Pass on what waits of an event that is too long."""
        if self._held:
            self._events.drop()
            lines += [Line(raw, TOO_LONG) for raw, _ in self._held]
            self._let_go()

    def _release(self, found: list[Event], lines: list[Line]) -> None:
        """Add the lines of the event that has waited: one if its data is JSON, else one for each line."""
        if len(found) == 1 and b"\n" in found[0].data:
            line = Line(b"".join(raw for raw, _ in self._held))
            line.before = b"".join(raw for raw, data in self._held if data is None and raw not in _BLANK)
            # A line feed within JSON is a blank.
            line.flat = (b"" if self._json else b"data: ") + found[0].data.replace(b"\n", b" ") + ending_of(line.raw)
            lines.append(line)
            self._fill(line, found[0].value)
        else:
            for raw, data in self._held:
                line = Line(raw)
                lines.append(line)
                if data is not None:
                    event = _read_data(data)
                    self._fill(line, NOT_JSON if event is None else event.value)
        self._let_go()

    def _let_go(self) -> None:
        self._held = []
        self._held_bytes = 0

    def _fill(self, line: Line, value: object) -> None:
        """Add what was read of the line's data: a chunk, `[DONE]`, nothing, or why it is none of these."""
        if isinstance(value, Chunk):
            self._fill_chunk(line, value)
        elif value == chunks.DONE:
            line.done = True
            whole = bool(self._finished) and not self._seen - self._finished
            line.done_without_finish = not (whole or self.dialect.done_is_whole)
            if not line.done_without_finish:  # also of a backend that sends fewer choices than were asked for
                line.ends = self._finish or UNKNOWN
        elif value == NOT_JSON:
            line.trouble = NOT_JSON

    def _fill_chunk(self, line: Line, chunk: Chunk) -> None:
        line.chunk = chunk
        if chunk.rest is not None and self.strips:  # the client gets no ids: the long text of them is let go
            line.flat = (b"" if self._json else b"data: ") + chunk.rest + ending_of(line.raw)
            line.raw = line.before + line.flat
        if chunk.prompt_ids is not None:
            self._reader.limit = self._max_line
        if self._echo is not None and (chunk.prompt_ids is not None or any(choice.ids for choice in chunk.choices)):
            if chunk.prompt_ids is None or len(chunk.prompt_ids) != self._echo:
                line.trouble = IGNORED
            self._echo = None
        if self._json and chunk.error is not None:  # an answer, as one with another content type is
            chunk.error = chunk.error._replace(clients=True)
        line.error = chunk.error
        line.at = self._positions[0]
        for choice in chunk.choices:
            self._read(line, choice)
        if line.finish is not None:
            self._finish = line.finish
            if len(self._finished) >= self._reply.request.choices and not self._seen - self._finished:
                line.ends = line.finish

    def _read(self, line: Line, choice: Choice) -> None:
        index = choice.index
        self._seen.add(index)
        kind = choice.kind
        if kind is not None:
            self._kinds[index] = kind
            if index in self._finished:
                self._finished.remove(index)
                line.goes_on = True
            line.text += choice.text or " "
        ids = choice.ids
        if ids:
            count = len(ids)
            at = self._positions.get(index, 0)
            end = self._positions[index] = at + count
            line.ids += ids
            if self._expected and index == 0:
                self._compare(line, at, ids)
            new = min(count, end - self._reply.counted(index))
            if new > 0:
                line.tokens.append((index, new, kind or self._kinds.get(index, "content"), choice))
        elif kind is not None and ids is None:
            self._positions[index] = self._positions.get(index, 0) + 1
            line.texts.append(choice)
        if choice.finish is not None:
            self._finished.add(index)
            if line.finish is None:
                line.finish = choice.finish
        elif line.aborted is None:
            line.aborted = choice.aborted

    def _compare(self, line: Line, at: int, ids: list[int]) -> None:
        again = self._expected[at - (self.carried or 0) :]
        shorter = min(len(again), len(ids))
        if again[:shorter] != ids[:shorter]:
            line.trouble = DIFFERS
