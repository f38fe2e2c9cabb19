"""One choice's stream, cut into numbered segments that cover its time. No clock, no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm import semconv
from otel_llm.export.records import PLAIN_MARK, Segment, mark

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_llm.export.records import AttributeValue, Origin

MS: Final = 1_000_000
FLUSH_INTERVAL_NS: Final = int(semconv.FLUSH_INTERVAL_S * 1000) * MS
FIRST_SILENCES_NS: Final = (250 * MS, 500 * MS)
LATER_SILENCE_NS: Final = 1000 * MS
"""The intervals of empty segments of a silent stream, then once a second: a stalled model is no dead sender."""


def silence_ns(sent: int) -> int:
    """Return how long (ns) a stream with `sent` empty segments so far must be silent to send the next."""
    if sent < len(FIRST_SILENCES_NS):
        return FIRST_SILENCES_NS[sent]
    return FIRST_SILENCES_NS[-1] + (sent - len(FIRST_SILENCES_NS) + 1) * LATER_SILENCE_NS


class Timeline:
    """The segments of one choice: every token in exactly one of them, ends that never go back, `seq` without a gap.

    All times are unix ns. `tokens` counts the applied tokens, several in one chunk included; `full`: there were more
    than a stream may have, and they are left out; `ended_ns` is when the server declared this choice complete, None
    until then; `closed` once the last segment was cut.
    """

    __slots__ = (
        "_first_token",
        "_getrandbits",
        "_marks",
        "_origin",
        "_quiet_since_ns",
        "_sent",
        "_state",
        "_state_sent",
        "_times",
        "choice",
        "closed",
        "end_ns",
        "ended_ns",
        "full",
        "seq",
        "tokens",
    )

    def __init__(self, choice: int, commit_ns: int, origin: Origin, getrandbits: Callable[[int], int]) -> None:
        self.choice = choice
        self.end_ns = commit_ns
        self.ended_ns: int | None = None
        self.seq = 0
        self.tokens = 0
        self.full = False
        self.closed = False
        self._origin = origin
        self._getrandbits = getrandbits
        self._first_token = 0
        self._times: list[int] = []
        self._marks: list[int] | None = None
        self._quiet_since_ns = commit_ns
        self._sent = 0
        self._state = self._state_sent = ("", False)

    @property
    def quiet(self) -> bool:
        """Return whether the newest segment is an empty one, after which the next token is flushed at once."""
        return self._sent > 0 and self.due_ns is not None

    @property
    def due_ns(self) -> int | None:
        """Return when a silent stream must send its next empty segment, None when it is closed."""
        if self.closed or self.ended_ns is not None:
            return None
        return self._quiet_since_ns + silence_ns(self._sent)

    def commit(self, identity: Mapping[str, AttributeValue]) -> Segment:
        """Return segment 0, which has no length: a user waits from now on."""
        return self._segment(self.end_ns, [], None, identity)

    def state(self, basis: str, learned: bool) -> None:
        """Note the basis of the token counts so far, and whether an estimate uses what was learned of the model."""
        self._state = (basis, learned)

    def take(self, times_ns: list[int]) -> None:
        """Apply chunks of one token of content each, in order of arrival; the list is kept."""
        if len(times_ns) > (room := semconv.MAX_STREAM_TOKENS - self.tokens):
            self.full, times_ns = True, times_ns[:room]
        self.tokens += len(times_ns)
        if self._marks is not None:
            self._marks.extend([PLAIN_MARK] * len(times_ns))
        if self._times:
            self._times.extend(times_ns)
        else:
            self._times = times_ns

    def take_marked(self, time_ns: int, kind: int, count: int) -> None:
        """Apply a chunk of `count` tokens (1 or more) of a kind."""
        if count > (room := semconv.MAX_STREAM_TOKENS - self.tokens):
            self.full, count = True, room
            if not room:
                return
        packed = mark(kind, count)
        if self._marks is None and packed != PLAIN_MARK:
            self._marks = [PLAIN_MARK] * len(self._times)
        if self._marks is not None:
            self._marks.append(packed)
        self._times.append(time_ns)
        self.tokens += count

    def cut(self, now_ns: int, last_byte_ns: int = 0) -> list[Segment]:
        """Return the segments due at `now_ns`: with the tokens since the last cut, or an empty one after a silence.

        `last_byte_ns`: when the newest byte of the reply was received; 0: that is not known.
        """
        if self._times:
            return self._cut(now_ns, {})
        silent_ns = now_ns - self._quiet_since_ns
        if self.due_ns is None or silent_ns < silence_ns(self._sent):
            return []
        while silence_ns(self._sent) <= silent_ns:  # one segment after a late check stands for several
            self._sent += 1
        return self._cut(now_ns, {semconv.SEGMENT_LAST_BYTE: min(last_byte_ns, now_ns)} if last_byte_ns else {})

    def last(self, end_ns: int, outcome: str, basis: str, more: Mapping[str, AttributeValue]) -> list[Segment]:
        """Return the remaining segments; the last of them ends the stream with the outcome."""
        self.closed = True
        return self._cut(
            end_ns, {semconv.OUTCOME: outcome, semconv.TOKENS: self.tokens, semconv.TOKEN_BASIS: basis, **more}
        )

    def _cut(self, now_ns: int, more: dict[str, AttributeValue]) -> list[Segment]:
        parts = self._parts()
        self._times, self._marks = [], None
        segments = []
        for times, marks in parts[:-1]:
            segments.append(self._segment(times[-1], times, marks, {}))
        times, marks = parts[-1]
        if self.closed:
            more[semconv.SEGMENTS] = self.seq + 1
        segments.append(self._segment(max(now_ns, self.end_ns, *times[-1:]), times, marks, more))
        return segments

    def _parts(self) -> list[tuple[list[int], list[int] | None]]:
        times, marks = self._times, self._marks
        if times:
            # A thread interrupted between its clock reading and its append is later than a cut that did not see it: the
            # token is in the next segment, at its start, since the watermark cannot go back.
            if times[0] < self.end_ns:
                times = [max(time_ns, self.end_ns) for time_ns in times]
            self._quiet_since_ns = times[-1]
            self._sent = 0
        if marks is None:
            starts = range(0, max(len(times), 1), semconv.MAX_SEGMENT_EVENTS)
            return [(times[i : i + semconv.MAX_SEGMENT_EVENTS], None) for i in starts]
        return _marked_pieces(times, marks)

    def _segment(
        self, end_ns: int, times: list[int], marks: list[int] | None, more: Mapping[str, AttributeValue]
    ) -> Segment:
        attributes: dict[str, AttributeValue] = {
            semconv.SEGMENT_SEQ: self.seq,
            semconv.SEGMENT_FIRST_TOKEN: self._first_token,
        }
        if self.choice:
            attributes[semconv.CHOICE] = self.choice
        if times and self._state != self._state_sent:
            attributes[semconv.TOKEN_BASIS], attributes[semconv.TOKEN_RATIO_LEARNED] = self._state_sent = self._state
        attributes.update(more)
        segment = Segment(self._origin, self._getrandbits(64) or 1, self.end_ns, end_ns, times, marks, attributes)
        self.seq += 1
        self._first_token += len(times) if marks is None else sum(packed >> 2 for packed in marks)
        self.end_ns = end_ns
        return segment


def _marked_pieces(times: list[int], marks: list[int]) -> list[tuple[list[int], list[int] | None]]:
    # A chunk of more tokens than a segment holds becomes two events at its one time.
    parts: list[tuple[list[int], list[int]]] = [([], [])]
    room = semconv.MAX_SEGMENT_TOKENS
    for time_ns, packed in zip(times, marks, strict=True):
        kind, left = packed & 3, packed >> 2
        while left:
            if not room or len(parts[-1][0]) == semconv.MAX_SEGMENT_EVENTS:
                parts.append(([], []))
                room = semconv.MAX_SEGMENT_TOKENS
            taken = min(left, room)
            parts[-1][0].append(time_ns)
            parts[-1][1].append(mark(kind, taken))
            left -= taken
            room -= taken
    return [(part_times, part_marks) for part_times, part_marks in parts]
