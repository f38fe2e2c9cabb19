"""Tokens as events with counts: every figure is that of the same tokens one by one."""

from __future__ import annotations

from array import array
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.chance import chances
from support.examples import examples
from support.slo.requests import slo_classes

from otel_llm.slo.classes import CONTENT, OUTCOMES, Deadline, SloClass
from otel_llm.slo.ledger import Ledger
from otel_llm.slo.stated_total import Stated, restated
from otel_llm.slo.stream import Stream, sort_gaps
from otel_llm.slo.token_events import TokenEvents, joined

COMMIT_NS = 1_790_000_000_123_456_789
COUNTS = (1, 1, 1, 2, 3, 7, 70, 700)


def drawn(random: Random) -> TokenEvents:
    """Draw some events in order of time: of one kind or of several, with counts or without."""
    at_ns, times = COMMIT_NS - random.choice((0, 0, 5)), []
    gaps, numbers = random.choice(((0, 1, 10, 10, 300), (40, 90), (10, 20, 20))), random.choice((COUNTS, (1, 2, 3)))
    for _ in range(random.choice((1, 2, 9, 90))):
        at_ns += random.choice(gaps)
        times.append(at_ns)
    kinds = bytes(random.choice((0, 0, 1, 2)) for _ in times) if random.random() < 0.4 else None
    return TokenEvents(times, kinds, [random.choice(numbers) for _ in times] if random.random() < 0.8 else None)


def parts_of(events: TokenEvents, random: Random) -> list[TokenEvents]:
    """Cut events into parts, now and then out of order."""
    cuts = sorted(random.randrange(len(events.times_ns) + 1) for _ in range(random.choice((0, 1, 3))))
    parts = [events.part(*cut) for cut in zip([0, *cuts], [*cuts, len(events.times_ns)], strict=True)]
    if random.random() < 0.3:
        random.shuffle(parts)
    return parts


def facts(stream: Stream, outcome: str, end_ns: int) -> list[object]:
    """Return all that a stream says of its tokens."""
    found: list[object] = [stream.tokens, stream.skewed, stream.finish(end_ns, outcome)]
    found += [stream.at(x) for x in (stream.last_ns, end_ns, end_ns + 1000)]
    return [*found, stream.lines(), sorted([*stream.gaps_ns, *[0] * stream.joint_tokens])]


@settings(max_examples=examples(400))
@given(slo_classes(10), st.sampled_from(OUTCOMES), st.none() | st.integers(1, 900), chances())
def test_a_stream_of_events_is_that_of_their_tokens(
    slo: SloClass, outcome: str, prompt: int | None, random: Random
) -> None:
    events = drawn(random)
    counted, alone = Stream(slo, COMMIT_NS, prompt), Stream(slo, COMMIT_NS, prompt)
    for part in parts_of(events, random):
        times, kinds = part.expanded()
        counted.extend(*part)
        alone.extend(times, kinds)
        assert sum(counted.read_counts or [1] * len(counted.read_ns)) == len(alone.read_ns) == counted.running.count
    end_ns = counted.last_ns + random.choice((0, 50))
    if random.random() < 0.5:
        sort_gaps([counted, alone])
    assert facts(counted, outcome, end_ns) == facts(alone, outcome, end_ns)
    counted.know_input_tokens(77)
    alone.know_input_tokens(77)
    assert facts(counted, outcome, end_ns) == facts(alone, outcome, end_ns)


@settings(max_examples=examples(200))
@given(slo_classes(10), chances())
def test_events_that_are_appended_are_those_that_are_applied(slo: SloClass, random: Random) -> None:
    kept, applied = Stream(slo, COMMIT_NS), Stream(slo, COMMIT_NS)
    at_ns = COMMIT_NS
    for _ in range(random.randint(1, 9)):
        kind, number = random.choice((0, 0, 1, 2)), random.randint(1, 4)
        times = [at_ns := at_ns + random.choice((0, 10)) for _ in range(number)]
        counts = [random.choice(COUNTS) for _ in times] if random.random() < 0.5 else None
        arrays = kept.open_arrays
        fits = kind == CONTENT and arrays is not None and (counts is None or arrays.counts is not None)
        if arrays is not None and fits and random.random() < 0.5:
            arrays.times_ns.extend(times)
            if arrays.counts is not None:
                arrays.counts.extend(counts or [1] * number)
        else:
            kept.append(array("q", times), kind, None if counts is None else array("q", counts))
        applied.extend(times, bytes((kind,)) * number, counts)
    assert kept.tokens == applied.tokens
    assert kept.joint_tokens == applied.joint_tokens
    assert kept.events.expanded() == applied.events.expanded()
    for stream in (kept, applied):
        assert sum(stream.read_counts or [1] * len(stream.read_ns)) == applied.running.count
    assert list(kept.read_ns) == list(applied.read_ns)


@settings(max_examples=examples(300))
@given(slo_classes(10), chances())
def test_windows_are_charged_for_events_as_for_tokens(slo: SloClass, random: Random) -> None:
    events = drawn(random)
    counted, alone = Stream(slo, COMMIT_NS), Stream(slo, COMMIT_NS)
    ledgers = Ledger(slo, COMMIT_NS), Ledger(slo, COMMIT_NS)
    x_ns = COMMIT_NS
    for part in parts_of(events, random):
        counted.extend(*part)
        alone.extend(*part.expanded())
        x_ns += random.choice((5, 100, 1000, 10_000))
        known_ns, unbroken = x_ns - random.choice((0, 20, 9000)), counted.running.unbroken
        assert ledgers[0].advance(counted.read_ns, x_ns, known_ns, counted.read_counts, unbroken=unbroken) == ledgers[
            1
        ].advance(alone.read_ns, x_ns, known_ns, unbroken=unbroken)
    verdict = counted.finish(x_ns, "completed")
    assert ledgers[0].close(verdict) == ledgers[1].close(verdict)


@settings(max_examples=examples(200))
@given(st.integers(1, 4000), st.none() | st.integers(0, 200), chances())
def test_a_stated_total_is_dealt_to_events_as_to_tokens(total: int, thought: int | None, random: Random) -> None:
    events, stated = drawn(random), Stated("completed", 1.0, "chunk", total, thought)
    found = restated(*events, COMMIT_NS, stated)
    alone = restated(*events.expanded(), None, COMMIT_NS, stated)
    assert (found is None) is (alone is None)
    if found is not None and alone is not None:
        times, kinds = found.expanded()
        assert alone.expanded()[0].tolist() == times.tolist()
        assert alone.expanded()[1] == kinds
        assert found.events().expanded() == (times.tolist(), kinds)


@given(chances(), st.integers(0, 5000))
def test_the_first_tokens_of_events(random: Random, number: int) -> None:
    events = drawn(random)
    times, kinds = events.expanded()
    first = events.first(number).expanded()
    assert first == (times[:number], None if kinds is None else kinds[:number])
    assert joined(parts_of(events, Random(0))).tokens == events.tokens == len(times)
    ordered = joined(parts_of(events, random)).in_time_order()
    assert sorted(times) == ordered.expanded()[0]


def test_an_event_moves_the_deadline_of_the_next_by_each_of_its_tokens() -> None:
    slo = SloClass(deadline=Deadline("dslo", 100, 10))
    for at_ns, met in ((150, True), (151, False)):
        stream = Stream(slo, 0)
        stream.extend([50, at_ns], None, [5, 1])  # the sixth token is due at 150
        assert stream.finish(at_ns, "completed").met is met


def test_text_that_many_late_events_leave_unread() -> None:
    slo, times = SloClass(pace_ns=10), [1000 * number for number in range(1, 100)]
    counts = [2] * 98 + [50]
    ledgers = Ledger(slo, 0), Ledger(slo, 0)
    charges = [
        ledgers[0].advance(times, times[-1] + 1, times[-1] + 1, counts),
        ledgers[1].advance(TokenEvents(times, None, counts).expanded()[0], times[-1] + 1, times[-1] + 1),
    ]
    assert charges[0] == charges[1]
    assert charges[0].tokens_read == sum(counts)
