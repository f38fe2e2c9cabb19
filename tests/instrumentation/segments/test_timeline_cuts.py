"""One choice cut into segments: every token once, tiles, silence announced on schedule."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanContext

from otel_llm import semconv
from otel_llm.export.records import PLAIN_MARK, Origin, Segment, mark
from otel_llm.instrumentation.segments.timeline import FLUSH_INTERVAL_NS, MS, Timeline, silence_ns

COMMIT_NS = 1_790_000_000_000_000_000
ORIGIN = Origin(SpanContext(1, 2, is_remote=False), Resource({}))


def timeline(choice: int = 0) -> Timeline:
    ids = itertools.count(1)
    return Timeline(choice, COMMIT_NS, ORIGIN, lambda bits: next(ids))


@dataclass
class Arrival:
    """A chunk so many ms after the one before; kind and count as on the wire."""

    after_ms: int
    kind: int
    count: int


arrivals = st.lists(
    st.builds(
        Arrival,
        after_ms=st.sampled_from((0, 0, 1, 20, 249, 250, 251, 700, 3_000)),
        kind=st.sampled_from((0, 0, 0, 0, 1, 2)),
        count=st.sampled_from((1, 1, 1, 1, 1, 3, 4, 499, 500, 501, 1250)),
    ),
    max_size=60,
)


def drive(script: Sequence[Arrival], look_ms: Sequence[int], outcome: str = "completed") -> list[Segment]:
    """Run arrivals and looks on one clock; the looks repeat for as long as the stream lasts."""
    line = timeline()
    segments = [line.commit({})]
    arrived: list[tuple[int, int, int]] = []
    now = COMMIT_NS
    for arrival in script:
        now += arrival.after_ms * MS
        arrived.append((now, arrival.kind, arrival.count))
    end = now + 5 * MS
    looks = []
    at = COMMIT_NS
    for step in itertools.cycle(look_ms):
        at += step * MS
        if at >= end:
            break
        looks.append(at)
    pending = list(arrived)
    for look in looks:
        take(line, [item for item in pending if item[0] <= look])
        pending = [item for item in pending if item[0] > look]
        segments += line.cut(look)
    take(line, pending)
    segments += line.last(end, outcome, "chunk", {})
    assert line.tokens == sum(item.count for item in script)
    return segments


def take(line: Timeline, items: Sequence[tuple[int, int, int]]) -> None:
    for plain, group in itertools.groupby(items, key=lambda item: item[1:] == (0, 1)):
        if plain:
            line.take([time_ns for time_ns, _, _ in group])
        else:
            for time_ns, kind, count in group:
                line.take_marked(time_ns, kind, count)


def told(segments: Sequence[Segment]) -> list[tuple[int, int]]:
    """Return every token told as (time, kind), several in one event written out."""
    tokens = []
    for segment in segments:
        marks = segment.marks if segment.marks is not None else [PLAIN_MARK] * len(segment.times_ns)
        for time_ns, packed in zip(segment.times_ns, marks, strict=True):
            tokens += [(time_ns, packed & 3)] * (packed >> 2)
    return tokens


def tokens_in(segment: Segment) -> int:
    return len(told([segment]))


@given(script=arrivals, look_ms=st.lists(st.integers(min_value=1, max_value=900), min_size=1, max_size=6))
def test_segments_tile_and_tell_every_token_once(script: list[Arrival], look_ms: list[int]) -> None:
    segments = drive(script, look_ms)
    now = COMMIT_NS
    expected = []
    for arrival in script:
        now += arrival.after_ms * MS
        expected += [(now, arrival.kind)] * arrival.count
    assert told(segments) == expected
    assert [segment.attributes[semconv.SEGMENT_SEQ] for segment in segments] == list(range(len(segments)))
    first_token = 0
    for before, segment in itertools.pairwise(segments):
        assert segment.start_ns == before.end_ns
        assert segment.end_ns >= segment.start_ns
    for segment in segments:
        assert segment.attributes[semconv.SEGMENT_FIRST_TOKEN] == first_token
        assert tokens_in(segment) <= semconv.MAX_SEGMENT_TOKENS
        assert len(segment.times_ns) <= semconv.MAX_SEGMENT_EVENTS
        assert all(segment.start_ns <= time_ns <= segment.end_ns for time_ns in segment.times_ns)
        first_token += tokens_in(segment)
    assert segments[0].start_ns == segments[0].end_ns == COMMIT_NS
    assert len(segments) >= 2
    last = segments[-1].attributes
    assert last[semconv.SEGMENTS] == len(segments)
    assert last[semconv.TOKENS] == first_token
    assert not any(semconv.OUTCOME in segment.attributes for segment in segments[:-1])


@given(
    script=arrivals,
    first=st.lists(st.integers(min_value=1, max_value=900), min_size=1, max_size=6),
    second=st.lists(st.integers(min_value=1, max_value=900), min_size=1, max_size=6),
)
def test_how_often_one_looks_changes_no_token(script: list[Arrival], first: list[int], second: list[int]) -> None:
    assert told(drive(script, first)) == told(drive(script, second))


def test_a_silent_stream_says_so_after_250_and_500_ms_and_then_every_second() -> None:
    line = timeline()
    line.commit({})
    said = [ms for ms in range(1, 4_000) if line.cut(COMMIT_NS + ms * MS)]
    assert said == [250, 500, 1_500, 2_500, 3_500]
    assert [silence_ns(k) // MS for k in range(4)] == [250, 500, 1_500, 2_500]


def test_the_silence_is_counted_from_the_last_token() -> None:
    line = timeline()
    line.commit({})
    line.take([COMMIT_NS + 100 * MS])
    assert [segment.end_ns for segment in line.cut(COMMIT_NS + FLUSH_INTERVAL_NS)] == [COMMIT_NS + FLUSH_INTERVAL_NS]
    assert line.due_ns == COMMIT_NS + 350 * MS
    assert line.cut(COMMIT_NS + 349 * MS) == []
    assert not line.quiet
    [empty] = line.cut(COMMIT_NS + 350 * MS)
    assert (list(empty.times_ns), empty.attributes[semconv.SEGMENT_FIRST_TOKEN]) == ([], 1)
    assert line.quiet


def test_a_late_look_says_once_what_several_would_have_said() -> None:
    line = timeline()
    line.commit({})
    assert len(line.cut(COMMIT_NS + 1_600 * MS)) == 1
    assert line.due_ns == COMMIT_NS + 2_500 * MS


def test_a_token_that_a_cut_did_not_see_is_told_at_the_start_of_the_next_segment() -> None:
    line = timeline()
    line.commit({})
    line.take([COMMIT_NS + 10])
    line.cut(COMMIT_NS + 100)
    line.take([COMMIT_NS + 90, COMMIT_NS + 120])
    [segment] = line.cut(COMMIT_NS + 200)
    assert list(segment.times_ns) == [COMMIT_NS + 100, COMMIT_NS + 120]


def test_a_stream_does_not_end_before_what_was_already_said_of_it() -> None:
    line = timeline()
    line.commit({})
    line.cut(COMMIT_NS + 500 * MS)
    [last] = line.last(COMMIT_NS + 100 * MS, "abandoned", "chunk", {})
    assert (last.start_ns, last.end_ns) == (COMMIT_NS + 500 * MS, COMMIT_NS + 500 * MS)


def test_a_chunk_of_more_tokens_than_a_segment_holds_is_told_by_several_events_at_its_time() -> None:
    line = timeline()
    line.commit({})
    line.take_marked(COMMIT_NS + 5, 1, 1_250)
    segments = line.last(COMMIT_NS + 9, "completed", "exact", {})
    assert [list(segment.marks or ()) for segment in segments] == [[mark(1, 500)], [mark(1, 500)], [mark(1, 250)]]
    assert [segment.end_ns - COMMIT_NS for segment in segments] == [5, 5, 9]


def test_a_segment_has_no_more_events_than_a_span_holds() -> None:
    line = timeline()
    line.commit({})
    for at in range(250):
        line.take_marked(COMMIT_NS + at, 0, 2)
    segments = line.last(COMMIT_NS + 300, "completed", "exact", {})
    assert [len(segment.times_ns) for segment in segments] == [100, 100, 50]
    assert [segment.attributes[semconv.SEGMENT_FIRST_TOKEN] for segment in segments] == [0, 200, 400]


def test_only_a_later_choice_is_named() -> None:
    assert semconv.CHOICE not in timeline().commit({}).attributes
    assert timeline(2).commit({}).attributes[semconv.CHOICE] == 2
