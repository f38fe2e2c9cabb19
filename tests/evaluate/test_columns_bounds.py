"""What is kept is bounded, whatever is sent: names, times that wait, streams over and in flight, numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.core.core_cases import at, commit, ends, request, seen, segment, take
from support.core.core_spans import as_sent, sent_segment
from support.otlp import IDENTITY, T0_NS, export, request_span, segment_span

from otel_llm import semconv
from otel_llm.actions.sinks.console import Console
from otel_llm.actions.sinks.sinks import Sinks
from otel_llm.collector.export.egress import Egress
from otel_llm.collector.pipeline import Pipeline
from otel_llm.collector.receive.errors import BusyError
from otel_llm.collector.receive.senders import Sender
from otel_llm.collector.service import build_pipeline
from otel_llm.collector.settings import Limits, Settings
from otel_llm.evaluate.intake import take_in
from otel_llm.evaluate.registry import RegistryLimits
from otel_llm.evaluate.timers import Timeouts
from otel_llm.formats.otlp.export_request import read
from otel_llm.formats.spans.attributes import IntakeLimits
from otel_llm.journal.journal import Journal
from otel_llm.live.user_metrics import UserMetrics
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.semconv import MAX_CHOICES
from otel_llm.shared.clock import FakeClock

# Names.


def test_names_that_no_stream_bears_any_more_are_forgotten() -> None:
    one = seen(limits=RegistryLimits(groups=16))
    table = one.evaluator.table
    for number in range(1, 3000):
        stated = {**IDENTITY, semconv.GEN_AI_REQUEST_MODEL: f"model {number}"}
        take(one, number, commit(number, request=number, stated=stated))
        if number % 500 == 0:
            one.metered += one.evaluator.meter.charge_in_flight()
        if number > 40:  # forty are in flight
            over = number - 40
            take(
                one,
                number,
                segment(1, 0, [over], number, request=over, stated=ends(1, 2)),
                request(number, number=over),
            )
        assert len(table.groups) <= 16 + table.size
        flying = list(one.evaluator.live.values())
        assert [table.groups[table.group[stream.slot]] for stream in flying] == [stream.group for stream in flying]
    assert len({stream.model for stream in flying}) == 40
    one.metered += one.evaluator.meter.charge_in_flight()
    assert {charge.group[1] for charge in one.metered} <= {f"model {number}" for number in range(1, 3000)}
    assert sum(charge.tokens_read for charge in one.metered) == 2959


# Others' spans.


def test_times_that_wait_are_so_many_at_most_and_the_oldest_are_judged_first() -> None:
    one = seen(limits=RegistryLimits(waiting_times=100))
    waited = []
    for number in range(1, 11):
        times = [T0_NS + i * 10**6 for i in range(1, 31)]
        span = request_span(request=number, end_ns=at(100), events=times)
        take(one, 100 + number, span)
        waited.append(one.evaluator.registry.waiting_times)
        assert len(one.rows) == max(0, number - 3)
    assert max(waited) <= 100
    take(one, 200, *[request_span(request=number, end_ns=at(100), events=[T0_NS] * 101) for number in (20, 21)])
    assert one.evaluator.registry.waiting_times <= 101
    one.evaluator.advance(at(60_000))
    assert one.evaluator.registry.waiting_times == 0
    assert not one.evaluator.registry.orphans
    assert len(one.rows) == 12
    assert sorted(int(str(row["trace_id"]), 16) for row in one.rows) == [*range(1, 11), 20, 21]


def test_of_the_tenant_with_most_times_that_wait_the_oldest_are_judged_first() -> None:
    one = seen(limits=RegistryLimits(waiting_times=100))

    def send(number: int, tenant: str) -> None:
        batch = read(export(request_span(request=number, end_ns=at(100), events=[at(1)] * 30)).SerializeToString())
        take_in(batch, at(100 + number), IntakeLimits(), tenant)
        one.evaluator.apply(batch, at(100 + number))

    send(1, "shop")
    for number in range(2, 8):
        send(number, "flood")
    assert [(row["tenant"], int(str(row["trace_id"]), 16)) for row in one.rows] == [
        ("flood", 2), ("flood", 3), ("flood", 4), ("flood", 5)
    ]  # fmt: skip
    assert one.evaluator.registry.waiting_times == 90
    one.evaluator.advance(at(60_000))
    assert one.evaluator.registry.waiting_times == 0


def test_times_of_a_request_span_whose_segments_came_wait_no_longer() -> None:
    one = seen()
    span = request_span(end_ns=at(100), events=[T0_NS + 5])
    take(one, 100, span)
    assert one.evaluator.registry.waiting_times == 1
    take(one, 110, commit())
    assert one.evaluator.registry.waiting_times == 0


# Streams that are over.


def test_so_many_that_are_over_are_remembered() -> None:
    one = seen(limits=RegistryLimits(tombstones=10))
    for number in range(1, 31):
        last = segment(1, 0, [], number, request=number, stated=ends(0, 2))
        take(one, number, commit(request=number), last, request(number, number=number))
    assert 10 <= len(one.evaluator.registry.tombstones) <= 20
    take(one, 40, commit(request=30))
    assert (one.evaluator.counts["late_or_duplicate_segments"], len(one.evaluator.live)) == (1, 0)
    take(one, 41, commit(request=1))  # forgotten: it looks like a new one
    assert len(one.evaluator.live) == 1


# Numbers, and streams in flight, through the service.


@contextmanager
def pipeline(folder: Path, limits: Limits) -> Iterator[Pipeline]:
    clock = FakeClock()
    sinks = Sinks(clock, Console(lambda line: None), UserMetrics(), None)
    with Journal(folder, fsync="never", compress=False) as journal:
        flow = build_pipeline(
            clock=clock,
            journal=journal,
            classes=load_slo(),
            rules=RuleEngine(RuleSet(())),
            sinks=sinks,
            limits=limits,
            window_ns=10**10,
            timeouts=Timeouts(),
            egress=Egress(Settings(limits=limits), clock),
        )
        flow.start()
        try:
            yield flow
        finally:
            flow.stop()


def accept(flow: Pipeline, *spans: Span) -> tuple[int, str]:
    """Return how many spans were refused, and why."""
    answer = ExportTraceServiceResponse.FromString(flow.accept(export(*spans).SerializeToString()))
    return answer.partial_success.rejected_spans, answer.partial_success.error_message


@pytest.mark.parametrize("sent", [True, False])
def test_segments_numbered_beyond_the_limit_are_refused_and_said(tmp_path: Path, sent: bool) -> None:
    with pipeline(tmp_path, Limits(segments_per_request=5)) as flow:
        spans = [segment_span(0, 0, attributes=IDENTITY), *[segment_span(seq, 0) for seq in range(1, 9)]]
        if sent:
            spans = [as_sent(span) for span in spans]
        assert accept(flow, *spans) == (4, "spans refused: 4 too_many_segments")
        assert accept(flow, *spans[:5]) == (0, "")
        counts = flow.call(lambda: dict(flow.evaluator.counts))
        assert (counts["segments"], counts["refused.too_many_segments"]) == (5, 4)


def test_choices_beyond_the_limit_are_refused_and_said(tmp_path: Path) -> None:
    with pipeline(tmp_path, Limits(segments_per_request=5)) as flow:
        spans = [segment_span(0, 0, choice=choice, attributes=IDENTITY) for choice in range(MAX_CHOICES + 3)]
        beyond = segment_span(7, 0, choice=MAX_CHOICES + 1)
        assert accept(flow, *spans, beyond) == (4, "spans refused: 3 too_many_choices, 1 too_many_segments")
        assert flow.call(lambda: len(flow.evaluator.live)) == MAX_CHOICES


@pytest.mark.parametrize("stated", [IDENTITY, {}])
def test_streams_in_flight_are_so_many_also_where_they_say_nothing(tmp_path: Path, stated: dict[str, str]) -> None:
    with pipeline(tmp_path, Limits(streams_in_flight=8)) as flow:
        first = [sent_segment(0, 0, request=number, attributes=stated) for number in range(1, 9)]
        assert accept(flow, *first) == (0, "")
        assert flow.call(lambda: len(flow.evaluator.live)) == 8
        with pytest.raises(BusyError):
            accept(flow, *[sent_segment(0, 0, request=number, attributes=stated) for number in range(20, 30)])
        assert accept(flow, *[sent_segment(1, 0, request=number) for number in range(1, 9)]) == (0, "")
        assert flow.call(lambda: len(flow.evaluator.live)) == 8


def test_a_tenants_streams_in_flight_leave_room_for_anothers(tmp_path: Path) -> None:
    def begin(flow: Pipeline, tenant: str | None, *numbers: int) -> None:
        spans = [sent_segment(0, 0, request=number, attributes=IDENTITY) for number in numbers]
        flow.accept(export(*spans).SerializeToString(), Sender(1, tenant))

    with pipeline(tmp_path, Limits(streams_in_flight=16)) as flow:
        begin(flow, "flood", *range(1, 15))
        with pytest.raises(BusyError):
            begin(flow, "flood", 20)
        begin(flow, "shop", 20)
        begin(flow, "shop", 21)
        with pytest.raises(BusyError):
            begin(flow, "lab", 22)


def test_a_bound_tells_segments_read_as_columns_from_the_rest() -> None:
    spans = [sent_segment(seq, seq, [T0_NS]) for seq in range(8)]
    batch = read(export(*spans, sent_segment(9, 0, choice=200)).SerializeToString())
    batch.bound(segments=4, choices=128)
    assert batch.refused == {"too_many_segments": 5}
    assert batch.spans == 9
    assert batch.tokens == 4
