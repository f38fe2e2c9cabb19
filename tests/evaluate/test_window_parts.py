"""Windows are charged a part of the streams at a time, and are the audit's all the same; their clock never stands.

`pytest --hypothesis-profile=long tests/evaluate/test_window_parts.py` draws 25 times as many fleets.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.audit.audit_oracle import audited
from support.chance import chances
from support.core.core_cases import SECOND, at, commit, ends, seen, segment, take
from support.core.core_fleets import Delivery, Fleet, Seen
from support.core.core_spans import sent_segment
from support.examples import examples
from support.otlp import IDENTITY, T0_NS, Value, request_span

from otel_llm import semconv
from otel_llm.evaluate.streams.stream_table import PARTS
from otel_llm.evaluate.timers import Timeouts
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.slo.classes import SloClass, SloClasses

UNITS = (1, 1, 50_000_000, 333_333_333)
"""What a step of time is, in ns: windows and lateness are a few of them."""


def stream(random: Random, number: int, unit: int) -> tuple[list[Span], int]:
    """Draw a stream of at most 70 units, a segment every few of them; return its spans and its end."""
    begin = T0_NS + random.randrange(60) * unit
    times = sorted(begin + random.randrange(1, 60) * unit for _ in range(random.choice((0, 1, 5, 20))))
    end = max([begin, *times]) + random.choice((0, 1, 7)) * unit
    cuts = [*range(begin + (step := random.choice((3, 8)) * unit), end, step), end]
    spans = [sent_segment(0, 0, request=number, start_ns=begin, attributes=IDENTITY)]
    done, start = 0, begin
    for cut in cuts:
        inside = [time for time in times[done:] if time <= cut]
        stated: dict[str, Value] = {}
        if cut == end:
            outcome = random.choice(("completed", "cancelled", "error"))
            stated = {semconv.OUTCOME: outcome, semconv.TOKENS: len(times), semconv.SEGMENTS: len(cuts) + 1}
        spans.append(
            sent_segment(len(spans), done, inside, request=number, start_ns=start, end_ns=cut, attributes=stated)
        )
        done, start = done + len(inside), cut
    if random.random() < 0.6:
        spans.append(request_span(request=number, start_ns=begin, end_ns=end))
    return spans, end


def drawn(random: Random) -> Fleet:
    """Draw streams with nothing late, in any proportion of window and lateness."""
    unit = random.choice(UNITS)
    received: dict[int, list[Span]] = {}
    for number in range(1, random.choice((1, 5, PARTS - 1, PARTS, PARTS + 1, 3 * PARTS)) + 1):
        for span in stream(random, number, unit)[0]:
            receipt_ns = span.end_time_unix_nano + random.choice((0, 1, 3, 9)) * unit
            received.setdefault(receipt_ns, []).append(span)
    return Fleet(
        classes=SloClasses((SloClass("chat", pace_ns=random.choice((1, 2, 5)) * unit),), "chat"),
        rules=RuleSet(()),
        timeouts=Timeouts(random.choice((20, 21, 64, 100)) * unit, 10_000 * unit),
        window_ns=random.choice((1, 2, 7, 16, 50, 100)) * unit,
        deliveries=tuple(Delivery(ns, tuple(spans)) for ns, spans in sorted(received.items())),
    )


def timers(one: Seen, until_ns: int) -> int:
    """Do one timer after the other, checking that each moves time on; return how many there were."""
    count = 0
    while (due_ns := one.evaluator.next_timer()) is not None and due_ns <= until_ns:
        one.evaluator.advance(due_ns)
        after_ns = one.evaluator.next_timer()
        assert after_ns is None or after_ns > due_ns
        count += 1
    return count


@settings(max_examples=examples(50))
@given(chances())
def test_windows_charged_in_parts_are_the_audits_to_the_bit(random: Random) -> None:
    fleet = drawn(random)
    live = Seen(fleet).run()
    _, windows = audited(fleet.exports(), fleet.classes, fleet.window_ns, fleet.timeouts.lateness_ns)
    assert [dict(one) for one in live.windows] == windows
    assert live.windowing.late == 0


@settings(max_examples=examples(25))
@given(chances())
def test_timer_by_timer_it_is_the_same(random: Random) -> None:
    fleet = drawn(random)
    live = Seen(fleet)
    for delivery in fleet.deliveries:
        timers(live, delivery.receipt_ns - 1)
        live.take(delivery)
    last_ns = fleet.deliveries[-1].receipt_ns
    timers(live, last_ns + 2 * fleet.timeouts.lateness_ns + 3 * fleet.window_ns)
    assert live.windows == Seen(fleet).run().windows


@pytest.mark.parametrize("lateness_ns", [0, 1, 63, 64, 5 * SECOND])
@pytest.mark.parametrize("window_ns", [1, 1000, SECOND])
def test_an_idle_collector_has_a_next_timer_that_moves_on(window_ns: int, lateness_ns: int) -> None:
    one = seen(timeouts=Timeouts(lateness_ns, 10 * SECOND), window_ns=window_ns)
    take(one, 0)
    one.evaluator.advance(T0_NS)  # an export leaves open what falls due at its own instant
    last_ns = T0_NS
    for _ in range(100):
        due_ns = one.evaluator.next_timer()
        assert due_ns is not None
        assert due_ns > last_ns
        one.evaluator.advance(due_ns)
        last_ns = due_ns
    one.evaluator.advance(T0_NS + 10**18)  # no window of thirty years of silence is looked at
    due_ns = one.evaluator.next_timer()
    assert due_ns is not None
    assert T0_NS + 10**18 < due_ns <= T0_NS + 10**18 + window_ns + lateness_ns
    assert one.windows == []


@pytest.mark.parametrize("silence_s", [1, 100, 100_000])
def test_the_first_stream_after_a_silence_lands_in_its_window(silence_s: int) -> None:
    one = seen(window_ns=SECOND)
    take(one, 0)
    begin = silence_s * 1000
    one.evaluator.advance(at(begin - 1))
    take(one, begin, commit(begin))
    take(one, begin + 300, segment(1, 0, [begin + 200], begin + 300, stated=ends(1, 2)))
    one.evaluator.advance(at(begin + 60_000))
    assert [(row["window_start_unix_nano"], row["tokens_read"]) for row in one.windows] == [(at(begin), 1)]
    assert one.windowing.late == 0


def test_a_stream_with_a_hole_and_one_that_waits_for_its_rest_are_charged_when_the_window_closes() -> None:
    one = seen(window_ns=SECOND)
    take(one, 0, commit(), commit(request=2))
    take(one, 500, segment(1, 0, [100], 500), segment(1, 0, [100], 500, request=2))
    take(one, 900, segment(3, 2, [800], 900), segment(2, 1, [], 600, request=2, stated=ends(5, 3)))
    one.evaluator.advance(at(6_000))
    assert [(row["tokens_read"], row["requests_started"], row["requests_ended"]) for row in one.windows] == [(1, 2, 1)]
    one.evaluator.advance(at(300_000))
    assert sum(row["tokens_read"] for row in one.windows) == 0  # of neither can anything be said
    assert sum(row["incomplete"] for row in one.windows) == 2


def test_every_stream_is_charged_once_whatever_part_it_is_in() -> None:
    one = seen(window_ns=SECOND, timeouts=Timeouts(5 * SECOND, 10_000 * SECOND))
    streams = range(1, 4 * PARTS + 2)
    take(one, 0, *[commit(request=number) for number in streams])
    for seq in range(1, 40):
        end = seq * 250
        take(one, end, *[segment(seq, seq - 1, [end - 100], end, request=number) for number in streams])
    timers(one, at(9_000))
    assert [row["tokens_read"] for row in one.windows] == [4 * len(streams)] * 4
    for number in (1, PARTS, PARTS + 1):  # in a slot that was free for a while another stream is charged from its start
        take(one, 10_000, segment(40, 39, [], 10_000, request=number, stated=ends(39, 41)))
    one.evaluator.advance(at(15_100))
    take(one, 15_100, commit(15_050, request=999))
    take(one, 15_400, segment(1, 0, [15_300], 15_400, request=999, stated=ends(1, 2)))
    one.evaluator.advance(at(40_000))
    assert sum(row["tokens_read"] for row in one.windows) == 39 * len(streams) + 1
    assert next(row for row in one.windows if row["window_start_unix_nano"] == at(15_000))["tokens_read"] == 1


def test_who_has_sent_everything_is_charged_before_the_window_closes() -> None:
    one = seen(window_ns=SECOND, timeouts=Timeouts(5 * SECOND, 10_000 * SECOND))
    streams = range(1, 4 * PARTS + 2)
    take(one, 0, *[commit(request=number) for number in streams])
    table = one.evaluator.table
    for seq in range(1, 40):
        end = seq * 250
        one.evaluator.advance(at(end - 1))
        take(one, end, *[segment(seq, seq - 1, [end - 100], end, request=number) for number in streams])
        if end % 1000 == 750 and end > 5000:  # in 250 ms a window closes
            until_ns = at(end - 5000 + 250)
            one.evaluator.advance(until_ns + 5 * SECOND - 1)
            assert one.windowing.closed_until_ns == until_ns - SECOND
            assert (table.charged_ns[table.slots_in_flight()] == until_ns).all()
        if end % 1000 == 500 and end > 5000:  # half of the lateness before that, none was
            assert (table.charged_ns[table.slots_in_flight()] <= (one.windowing.closed_until_ns or 0)).any()
