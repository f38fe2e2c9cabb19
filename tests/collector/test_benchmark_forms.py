"""The forms of the collector's benchmark: every encoding and shape says what the fleet did, at any later time."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.requirements import require

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from collector_load.encodings import sparse
from collector_load.fleet import read_exports
from collector_load.forms import SHAPES, Form, form_of
from collector_load.recording import T0_NS, Recording, time_positions
from collector_load.speed import Speed, table
from collector_load.spread import Spread

from otel_llm import semconv

SECONDS = 4.0
STREAMS = 30


def form(shape: str, encoding: str = "sdk", profile: str = "healthy") -> Form:
    return form_of(profile, 64, encoding, shape, streams=STREAMS, together=None)


def recorded(shape: str, encoding: str = "sdk") -> Recording:
    return form(shape, encoding).record(SECONDS)[0]


def spans_of(raw: bytes) -> Iterator[Span]:
    for resource_spans in ExportTraceServiceRequest.FromString(raw).resource_spans:
        for scope_spans in resource_spans.scope_spans:
            yield from scope_spans.spans


def times_of(span: Span) -> list[int]:
    return [span.start_time_unix_nano, span.end_time_unix_nano, *(event.time_unix_nano for event in span.events)]


def reported(messages: list[bytes]) -> dict[tuple[bytes, bytes], list[int]]:
    """Return by trace and span what times each span has."""
    return {(span.trace_id, span.span_id): times_of(span) for raw in messages for span in spans_of(raw)}


def without_times(raw: bytes) -> ExportTraceServiceRequest:
    message = ExportTraceServiceRequest.FromString(raw)
    for resource_spans in message.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                span.start_time_unix_nano = span.end_time_unix_nano = 0
                for event in span.events:
                    event.time_unix_nano = 0
    return message


def streams_in(raw: bytes) -> int:
    return len({span.trace_id for span in spans_of(raw)})


@pytest.mark.parametrize("shape", SHAPES)
def test_a_recording_that_is_sent_later_differs_in_its_times_alone(tmp_path: Path, shape: str) -> None:
    recording, later_ns = recorded(shape), 123_456_789_012_345
    recording.write(tmp_path / "now", T0_NS)
    recording.write(tmp_path / "later", T0_NS + later_ns)
    before, after = [*read_exports(tmp_path / "now")], [*read_exports(tmp_path / "later")]
    assert [raw for _, _, raw in before] == recording.messages()
    assert len(before) == len(after) == recording.exports
    for (due_ns, application, raw), (due_later_ns, same_application, moved) in zip(before, after, strict=True):
        assert (due_later_ns, same_application) == (due_ns + later_ns, application)
        own, others = ([time for span in spans_of(one) for time in times_of(span)] for one in (raw, moved))
        assert [time + later_ns for time in own] == others
        assert without_times(raw) == without_times(moved)


def test_times_are_found_whatever_else_a_message_says() -> None:
    span = Span(
        trace_id=b"\x39" * 16,  # bytes that look like tags
        name="x" * 300,
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=5,
        end_time_unix_nano=6,
        flags=0x4141,
        dropped_events_count=300,
    )
    event = span.events.add(name="token", time_unix_nano=7)
    event.attributes.add(key="k").value.double_value = 1.5
    span.events.add(name="no time")
    span.links.add(trace_id=b"\x5a" * 16)
    span.status.message = "broken"
    request = ExportTraceServiceRequest()
    scope_spans = request.resource_spans.add(schema_url="s").scope_spans.add(schema_url="t")
    request.resource_spans[0].resource.attributes.add(key="r").value.int_value = -1
    scope_spans.scope.name = "scope"
    scope_spans.spans.append(span)
    raw = request.SerializeToString()
    assert [int.from_bytes(raw[at : at + 8], "little") for at in time_positions(raw)] == [5, 6, 7]
    late = b"\x5a\x10\x12\x05token\x09" + (8).to_bytes(8, "little")  # the event's name stands before its time
    positions = time_positions(b"\x0a\x16\x12\x14\x12\x12" + late)
    assert positions == [6 + 10]


def test_an_encoder_without_defaults_says_the_same() -> None:
    dense, thin = recorded("segments"), recorded("segments", "sparse")
    assert reported(dense.messages()) == reported(thin.messages())
    for raw in dense.messages():
        assert all(span.flags and span.HasField("status") for span in spans_of(raw))
    for raw in thin.messages():
        assert not any(span.flags or span.HasField("status") for span in spans_of(raw))


def test_an_encoder_without_defaults_keeps_a_status_that_says_something() -> None:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(flags=0x100)
    span.status.code = span.status.STATUS_CODE_ERROR
    [kept] = spans_of(sparse(request.SerializeToString()))
    assert kept.status.code == span.status.STATUS_CODE_ERROR
    assert not kept.flags


def test_a_message_of_whole_streams_has_all_of_each() -> None:
    streams = 0
    for raw in recorded("whole").messages():
        by_trace: dict[bytes, list[Span]] = defaultdict(list)
        for span in spans_of(raw):
            by_trace[span.trace_id].append(span)
        for spans in by_trace.values():
            *segments, request = spans
            assert request.kind == Span.SPAN_KIND_CLIENT
            seqs = [next(a.value.int_value for a in one.attributes if a.key == semconv.SEGMENT_SEQ) for one in segments]
            assert seqs == [*range(len(segments))]
            assert sum(len(one.events) for one in segments) == 512
            assert all(one.end_time_unix_nano == after.start_time_unix_nano for one, after in pairwise(segments))
        streams += len(by_trace)
    assert streams > STREAMS  # each of them at least once, in 4 s of replies of 2.3 s


@pytest.mark.parametrize(("shape", "most"), [("segments", STREAMS), ("small", 10), ("single", 1)])
def test_a_message_has_as_many_streams_as_its_shape_says(shape: str, most: int) -> None:
    assert max(streams_in(raw) for raw in recorded(shape).messages()) == most


def test_one_reader_in_ten_starves() -> None:
    recording, _ = form("segments", profile="one-in-ten").record(SECONDS)
    classes: dict[bytes, str] = {}
    for raw in recording.messages():
        for span in spans_of(raw):
            for attribute in span.attributes:
                if attribute.key == semconv.SLO_CLASS:
                    classes[span.trace_id] = attribute.value.string_value
    first = [*classes.values()][:STREAMS]
    assert first.count("starving") == STREAMS // 10


def measured(tree: str, ratio: float, profile: str = "healthy", shape: str = "small", read: float = 1.0) -> Speed:
    return Speed(
        tree=tree,
        form=form(shape, profile=profile),
        rules="five",
        paced=True,
        tokens=640,
        segments=10,
        requests=2,
        exports=4,
        floor_cpu_s=2.0,
        cpu_s=2.0 * ratio,
        idle_cores=0.01,
        sending_s=1.0,
        acknowledged=Spread.of([1.0]),
        refused=0,
        unsent=0,
        read_share=read,
        decisions=0,
    )


def test_the_last_table_has_medians_and_what_the_source_takes_of_the_other() -> None:
    found = [
        *(measured("source", ratio) for ratio in (1.0, 3.0, 2.0)),
        *(measured("against", ratio) for ratio in (4.0, 9.0, 8.0)),
        measured("source", 5.0, "one-in-ten"),
        measured("source", 7.0, shape="single", read=0.9),
    ]
    _, head, small, single, note = table(found).splitlines()
    assert head.split() == ["reply", "segment", "encoding", "shape", "rules", "a", "message", "healthy", "one-in-ten"]
    assert " ".join(small.split()) == "512 64 sdk small five 2.5 2.00 (1.00-3.00) / 8.00 (4.00-9.00) = 0.25 5.00"
    assert " ".join(single.split()) == "512 64 sdk single five 2.5 7.00 ! -"
    assert note.startswith("!: it did not evaluate all")


def test_what_comes_through_rotel_says_the_same() -> None:
    require("rotel")
    direct, forwarded = recorded("small"), recorded("small", "rotel")
    back_ns = T0_NS - forwarded.start_ns
    received = reported(forwarded.messages())
    assert {key: [time + back_ns for time in times] for key, times in received.items()} == reported(direct.messages())
