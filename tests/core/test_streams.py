"""Segments move the rows of their streams as they would move each stream alone, in every mode."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chance import chances
from support.core.core_fleets import slo_class
from support.core.kernel_modes import MODES, shown_in
from support.examples import examples
from support.slo.judgement import Judgement
from support.slo.requests import slo_classes

from otel_llm.core import stream_columns as columns
from otel_llm.core import streams as core
from otel_llm.slo.classes import CONTENT, Deadline, Fluidity, SloClass
from otel_llm.slo.live.columns import ALLOWANCE_NS, DRY_NS, DUE_NS, LATE, MISSED, PASSED, RUNNING_WIDTH, STALLED, STALLS
from otel_llm.slo.live.running import Running
from otel_llm.slo.token_events import tokens_of

Ints = npt.NDArray[np.int64]
MS = 1_000_000
T0_NS = 10**18
BUFFER = 16
LATENESS_NS = 2_000 * MS
GAPS_NS = (0, 1, 10 * MS, 20 * MS, 50 * MS, 50 * MS + 1, 100 * MS, 201 * MS)


@dataclass
class Segment:
    slot: int
    seq: int
    first_token: int
    end_ns: int
    kind: int
    times_ns: list[int]
    receipt_ns: int
    last_byte_ns: int = 0
    counts: list[int] | None = None

    @property
    def tokens(self) -> int:
        return tokens_of(self.times_ns, self.counts)


@dataclass
class Alone:
    """One stream, moved by one segment after another in plain Python: what the kernel is to do."""

    slo: SloClass
    judgement: Judgement
    last_ns: int
    first_ns: int
    watermark_ns: int
    ready: bool = True
    buffers: int = columns.BUFFERS_TIMES
    offset_ns: int = -(10**15)
    receipt_ns: int = 0
    last_byte_ns: int = 0
    segments: int = 1
    times_ns: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    tokens: int = 0

    def take(self, segment: Segment) -> bool | None:
        """Apply a segment if it comes next; return whether it was in time, None if it was not applied."""
        times = segment.times_ns
        follows = self.ready and (segment.seq, segment.first_token) == (self.segments, self.tokens)
        if not follows or segment.end_ns < self.watermark_ns:
            return None
        if sorted([self.last_ns, *times]) != [self.last_ns, *times]:
            return None
        offset_ns = max(self.offset_ns, segment.end_ns - segment.receipt_ns)
        heard = segment.receipt_ns + offset_ns - segment.end_ns <= LATENESS_NS
        self.offset_ns, self.receipt_ns, self.watermark_ns = offset_ns, segment.receipt_ns, segment.end_ns
        self.segments += 1
        self.last_byte_ns = max(self.last_byte_ns, segment.last_byte_ns)
        if times:
            self.last_ns = times[-1]
            self.first_ns = self.first_ns if self.times_ns else times[0]
            self.times_ns += times
            self.counts += segment.counts or [1] * len(times)
            self.tokens += segment.tokens
            self.buffers = buffers_then(self.buffers, segment)
            if segment.kind in self.slo.reads:
                self.judgement.apply(times, segment.counts)
        return heard


def buffers_then(buffers: int, segment: Segment) -> int:
    """Return what of a stream is buffered when its arrays have the events of a segment, too."""
    if buffers == columns.BUFFERS_NOTHING or segment.kind != CONTENT:
        return columns.BUFFERS_NOTHING
    return columns.BUFFERS_COUNTS if segment.tokens > len(segment.times_ns) else buffers


class Streams:
    """Rows of streams, and what their arrays have of their tokens."""

    def __init__(self, alone: list[Alone]) -> None:
        self.rows = np.zeros((len(alone), columns.WIDTH), np.int64)
        self.buffer = np.zeros((len(alone), BUFFER), np.int64)
        self.times_ns: list[list[int]] = [[] for _ in alone]
        self.counts: list[list[int]] = [[] for _ in alone]
        for slot, stream in enumerate(alone):
            self.rows[slot, :RUNNING_WIDTH] = list(stream.judgement.now)
            for column, value in self.expected(stream).items():
                self.rows[slot, column] = value
            self.rows[slot, columns.MOVED_AT] = slot % 3  # what another message has left there

    @staticmethod
    def expected(stream: Alone) -> dict[int, int]:
        """Return the columns of a stream that the kernel moves, but for those of its judgement."""
        return {
            columns.OFFSET_NS: stream.offset_ns,
            columns.WATERMARK_NS: stream.watermark_ns,
            columns.RECEIPT_NS: stream.receipt_ns,
            columns.SEGMENTS: stream.segments,
            columns.TOKENS: stream.tokens,
            columns.FIRST_NS: stream.first_ns,
            columns.LAST_NS: stream.last_ns,
            columns.LAST_BYTE_NS: stream.last_byte_ns,
            columns.READY: stream.ready,
            columns.BUFFERS: stream.buffers,
        }

    def buffered(self, slot: int, events: int) -> tuple[list[int], list[int]]:
        """Return the times and the counts of so many buffered events of a stream."""
        times, counts = self.buffer[slot, :events].tolist(), [1] * events
        if self.rows[slot, columns.BUFFERS] == columns.BUFFERS_COUNTS:
            counts = self.buffer[slot, BUFFER // 2 : BUFFER // 2 + events].tolist()
        return times, counts

    def apply(self, segments: list[Segment]) -> tuple[list[bool], dict[int, bool], list[int]]:
        """Apply a message; return which were applied, the streams that moved and whether they were heard, counts."""
        number = len(segments)
        times = [time for one in segments for time in one.times_ns]
        done, heard = np.zeros(number, bool), np.ones(number, bool)
        moved, full, appended = (np.full(number, -7) for _ in range(3))
        counted, positions, in_order = np.zeros(core.COUNTS, np.int64), np.arange(number), False
        seq = np.array([one.seq for one in segments])
        while not core.apply(
            self.rows,
            self.buffer,
            positions,
            np.array([one.slot for one in segments]),
            seq,
            np.array([one.first_token for one in segments]),
            np.array([one.end_ns for one in segments]),
            np.array([one.last_byte_ns for one in segments]),
            np.array([one.kind for one in segments], np.uint8),
            np.cumsum([0, *(len(one.times_ns) for one in segments)]),
            np.array(times, np.int64),
            np.array([count for one in segments for count in one.counts or [1] * len(one.times_ns)], np.int64),
            np.array([one.tokens for one in segments]),
            segments[0].receipt_ns,
            LATENESS_NS,
            in_order,
            done,
            moved,
            heard,
            full,
            appended,
            counted,
        ):
            assert not in_order
            positions = positions[~done[positions]]
            positions, in_order = positions[np.argsort(seq[positions], kind="stable")], True
        for slot in full[: counted[core.FULL]].tolist():
            times, numbers = self.buffered(slot, ~self.rows[slot, columns.FRESH])
            self.times_ns[slot] += times
            self.counts[slot] += numbers
            self.rows[slot, columns.FRESH] = 0
        for index in appended[: counted[core.APPENDED]].tolist():
            one = segments[index]
            assert self.rows[one.slot, columns.FRESH] == 0
            self.times_ns[one.slot] += one.times_ns
            self.counts[one.slot] += one.counts or [1] * len(one.times_ns)
            self.rows[one.slot, columns.BUFFERS] = buffers_then(self.rows[one.slot, columns.BUFFERS], one)
        count = counted[core.MOVED]
        slots = moved[:count].tolist()
        assert len(set(slots)) == count
        return done.tolist(), dict(zip(slots, heard[:count].tolist(), strict=True)), counted[core.APPLIED :].tolist()


def check(streams: Streams, alone: list[Alone]) -> None:
    for slot, stream in enumerate(alone):
        row = streams.rows[slot]
        assert {column: row[column] for column in streams.expected(stream)} == streams.expected(stream)
        assert row[columns.FRESH] == 0 or stream.buffers != columns.BUFFERS_NOTHING
        times, counts = streams.buffered(slot, row[columns.FRESH])
        assert streams.times_ns[slot] + times == stream.times_ns
        assert streams.counts[slot] + counts == stream.counts
        assert Running(*row[:RUNNING_WIDTH].tolist()) == stream.judgement.now


def drawn_streams(random: Random, classes: list[SloClass]) -> list[Alone]:
    found = []
    for _ in range(random.randint(1, 8)):
        slo, commit_ns = random.choice(classes), T0_NS + random.randrange(1000) * MS
        judgement = Judgement(slo, commit_ns, random.choice((None, 10, 700)))
        found.append(Alone(slo, judgement, commit_ns, commit_ns, commit_ns, ready=random.random() < 0.95))
    return found


def message(random: Random, alone: list[Alone]) -> list[Segment]:
    """Draw a message: the next segments of some streams, in order or not; some are wrong."""
    found = []
    for slot, stream in enumerate(alone):
        seq, tokens, at_ns, end_ns = stream.segments, stream.tokens, stream.last_ns, stream.watermark_ns
        for _ in range(random.choice((0, 1, 1, 1, 2, 5))):
            times, pace_ns = [], random.choice(GAPS_NS)
            for _ in range(random.choice((0, 1, 2, 3, 7, 8, 8, BUFFER, BUFFER + 1))):
                at_ns += pace_ns if random.random() < 0.7 else random.choice(GAPS_NS)
                times.append(at_ns)
            end_ns = max(end_ns, at_ns) + random.choice((0, 0, 250 * MS))
            kind = random.choice((0, 0, 0, 0, 0, 0, 0, 1, 2))
            byte_ns = 0 if times else random.choice((0, end_ns, end_ns - 70 * MS))
            counts = [random.choice((1, 1, 2, 3, 700)) for _ in times] if random.random() < 0.2 else None
            segment = Segment(slot, seq, tokens, end_ns, kind, times, 0, byte_ns, counts)
            for _ in range(random.random() < 0.05):
                what = random.choice(("slot", "first_token", "end_ns", "seq", "shuffled", "early"))
                if what == "shuffled":
                    random.shuffle(times)
                elif what == "early":
                    times[:1] = [stream.last_ns - 1] * len(times[:1])
                else:
                    setattr(segment, what, -1 if what == "slot" else getattr(segment, what) + random.choice((-1, 1)))
            found.append(segment)
            if random.random() < 0.05:
                found.append(Segment(slot, seq, tokens, end_ns + 1, kind, [time + 1 for time in times], 0))
            seq, tokens = seq + 1, tokens + tokens_of(times, counts)
    if random.random() < 0.3:
        random.shuffle(found)
    # Each is late or not by its own end.
    after_ns = random.choice((0, 5 * MS, 5 * MS, LATENESS_NS + 5 * MS, LATENESS_NS + 6 * MS))
    receipt_ns = random.choice([one.end_ns for one in found] or [0]) + after_ns
    return [replace(one, receipt_ns=receipt_ns) for one in found]


def expected(alone: list[Alone], segments: list[Segment]) -> tuple[list[bool], dict[int, bool], list[int]]:
    """Move each stream by its own segments in order of number; return what `Streams.apply` does."""
    done, moved = [False] * len(segments), dict[int, bool]()
    tokens = late = 0
    for index, one in sorted(enumerate(segments), key=lambda pair: pair[1].seq):
        heard = alone[one.slot].take(one) if one.slot >= 0 else None
        if heard is not None:
            done[index] = True
            moved[one.slot] = heard or moved.get(one.slot, False)
            tokens, late = tokens + one.tokens, late + (not heard)
    return done, moved, [sum(done), tokens, late]


@settings(max_examples=examples(300))
@given(st.lists(slo_classes(10 * MS), min_size=1, max_size=3), chances())
def test_a_message_moves_every_stream_as_one_alone(classes: list[SloClass], random: Random) -> None:
    alone = drawn_streams(random, classes)
    streams = Streams(alone)
    check(streams, alone)
    for _ in range(random.randint(1, 6)):
        segments = message(random, alone)
        if segments:
            assert streams.apply(segments) == expected(alone, segments)
            check(streams, alone)


def digest_of_all(number: int) -> str:
    """Return a digest of the rows of so many fleets after some messages."""
    found = hashlib.sha256()
    for seed in range(number):
        random = Random(seed)
        alone = drawn_streams(random, [slo_class(random, f"c{at}") for at in range(3)])
        streams = Streams(alone)
        for _ in range(4):
            if segments := message(random, alone):
                shown = streams.apply(segments)
                expected(alone, segments)
                found.update(repr(shown).encode())
        found.update(streams.rows.tobytes() + streams.buffer.tobytes())
        found.update(repr((streams.times_ns, streams.counts)).encode())
    return found.hexdigest()


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_moves_them_alike(mode: dict[str, str]) -> None:
    number = examples(100)
    assert shown_in(mode, "core.test_streams", f"digest_of_all({number})") == digest_of_all(number)


# By hand: pace 50 ms, start 100 ms, tbt 50 ms, first token due after 300 ms; the commit is at 0.


def by_hand(*times_ms: int, cut: int, credit: str = "carry") -> tuple[Streams, list[int]]:
    """Apply a stream's tokens, as its segments 1 and 2 in one message."""
    slo = SloClass(
        pace_ns=50 * MS,
        start_ns=100 * MS,
        deadline=Deadline("ttft_tbt", 200 * MS, 60 * MS),
        fluidity=Fluidity(ttft=300 * MS, tbt_ns=50 * MS, slack_ns=0, ttft_credit=credit),  # type: ignore[arg-type]
    )
    stream = Alone(slo, Judgement(slo, T0_NS, 10), T0_NS, T0_NS, T0_NS, offset_ns=0)
    streams = Streams([stream])
    times = [T0_NS + time * MS for time in times_ms]
    parts = [times[:cut], times[cut:]]
    receipt_ns = max(parts[0]) + LATENESS_NS + 1  # of the two the first is late
    segments = [Segment(0, 1 + at, at * cut, max(part), 0, part, receipt_ns) for at, part in enumerate(parts)]
    done, moved, counts = streams.apply(segments)
    assert (done, moved) == ([True, True], {0: True})
    return streams, counts


def test_a_reader_who_waits_and_deadlines_that_are_missed() -> None:
    streams, counts = by_hand(150, 160, 400, 460, cut=3)
    row = streams.rows[0]
    assert counts == [2, 4, 1]
    # The reading line: 150, 200 | 250 at token 3 > dry 250: it waits, and stalls after d_3 = 250; then dry 450 < 460.
    assert (row[DRY_NS] - T0_NS) // MS == 510
    assert (row[STALLS], row[STALLED]) == (1, 1)  # a stall that has not ended
    assert (row[ALLOWANCE_NS] - T0_NS) // MS == 350
    # Etalon: due 300, 350, 400 (in time), 450 (460 is late), then 510.
    assert (row[LATE], row[MISSED], (row[DUE_NS] - T0_NS) // MS) == (1, 1, 510)
    assert row[PASSED] == 1  # 240 ms after the token before


def test_the_first_tokens_credit_is_dropped() -> None:
    streams, _ = by_hand(150, 160, 400, 460, cut=1, credit="drop")
    row = streams.rows[0]
    # Due 300, then from 150: 200, 250 (400: 1 + 150 // 50 = 4 missed), 450 (460: one), then 510.
    assert (row[LATE], row[MISSED], (row[DUE_NS] - T0_NS) // MS) == (2, 5, 510)


def test_what_fills_the_room_is_kept_and_what_comes_then_is_appended_behind_it() -> None:
    slo = slo_class(Random(1), "c0")
    stream = Alone(slo, Judgement(slo, T0_NS, 10), T0_NS, T0_NS, T0_NS)
    streams = Streams([stream])
    times = [T0_NS + index for index in range(BUFFER + 3)]
    parts = (times[:2], times[2:BUFFER], times[BUFFER : BUFFER + 1], times[BUFFER + 1 :])
    segments, tokens = [], 0
    for at, part in enumerate(parts):
        segments.append(Segment(0, 1 + at, tokens, part[-1], 0, part, T0_NS))
        tokens += len(part)
    streams.apply(segments[:2])
    assert (streams.rows[0, columns.FRESH], streams.times_ns[0]) == (BUFFER, [])
    streams.apply(segments[2:])
    assert (streams.rows[0, columns.FRESH], streams.times_ns[0]) == (0, times)


def test_events_with_counts_are_buffered_once_the_arrays_have_counts() -> None:
    slo = slo_class(Random(1), "c0")
    stream = Alone(slo, Judgement(slo, T0_NS, 10), T0_NS, T0_NS, T0_NS)
    streams = Streams([stream])
    room = BUFFER // 2
    sizes = [(2, [1, 1]), (1, [700]), (2, [1, 3]), (room - 2, None), (1, None), (1, [2])]
    held, kept, at_ns, tokens = [2, 0, 2, room, 0, 1], [0, 3, 3, 3, room + 4, room + 4], T0_NS, 0
    for at, (number, counts) in enumerate(sizes):
        times = [at_ns := at_ns + 1 for _ in range(number)]
        one = Segment(0, 1 + at, tokens, at_ns, 0, times, T0_NS, counts=counts)
        tokens += one.tokens
        assert streams.apply([one]) == expected([stream], [one])
        assert (streams.rows[0, columns.FRESH], len(streams.times_ns[0])) == (held[at], kept[at])
        check(streams, [stream])


def test_a_message_in_reverse_order_is_applied_in_order_of_number() -> None:
    random = Random(1)
    slo = slo_class(random, "c0")
    stream = Alone(slo, Judgement(slo, T0_NS, 10), T0_NS, T0_NS, T0_NS)
    streams = Streams([stream])
    segments = [Segment(0, 1 + at, at, T0_NS + at * MS, 0, [T0_NS + at * MS], T0_NS) for at in reversed(range(500))]
    assert streams.apply(segments)[0] == [True] * 500
    assert expected([stream], segments)[0] == [True] * 500
    check(streams, [stream])
