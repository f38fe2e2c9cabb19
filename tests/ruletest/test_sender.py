"""What a script sends is what the instrumentation's own recorder would: the same segments, at the same instants."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.examples import examples
from support.instrumentation.fake_environment import MS, FakeEnvironment

from otel_llm import semconv
from otel_llm.backtest.cases.case_parser import Script, parse_arrivals
from otel_llm.backtest.cases.case_schema import StreamShape
from otel_llm.backtest.cases.sender import T0_NS, Export, exports

Sent = list[tuple[int, int, list[int], str | None]]
"""Segments: start, end, token times, outcome; ms since the commit."""


def script(number: int = 1, **keys: Any) -> Script:
    shape = StreamShape.model_validate({"id": f"r{number}", "arrivals": "", **keys})
    return Script(number, shape.id, shape.start, shape, parse_arrivals(shape.arrivals))


def reported(received: list[Export]) -> tuple[Sent, list[int]]:
    """Return the segments and when each was received, ms since the start."""
    found: Sent = []
    receipts = []
    for one in received:
        message = ExportTraceServiceRequest.FromString(one.raw)
        for span in message.resource_spans[0].scope_spans[0].spans:
            if span.name != semconv.SEGMENT_SPAN:
                continue
            attributes = {pair.key: pair.value.string_value for pair in span.attributes}
            times = [(event.time_unix_nano - T0_NS) // MS for event in span.events]
            start, end = (span.start_time_unix_nano - T0_NS) // MS, (span.end_time_unix_nano - T0_NS) // MS
            found.append((start, end, times, attributes.get(semconv.OUTCOME)))
            receipts.append((one.receipt_ns - T0_NS) // MS)
    return found, receipts


def recorded(times_ms: list[int], end_ms: int | None, until_ms: int) -> Sent:
    """What the real recorder and its flusher tell of tokens at these times, on the fake host's clock."""
    host = FakeEnvironment()
    recording = host.record()
    due = host.step()
    left = list(times_ms)
    while due is not None:
        now = min([due, *left[:1], *([] if end_ms is None else [end_ms])])
        if now > until_ms:
            break
        host.at(now)
        while left and left[0] == now:
            recording.append(host.now_ns)
            left.pop(0)
        if now == end_ms:
            recording.ended("completed")
            break
        if now == due or host.urged:
            due = host.step()
    return host.told()


@settings(max_examples=examples(300))
@given(
    gaps=st.lists(st.sampled_from([1, 10, 49, 50, 125, 249, 250, 251, 400, 1300, 2600]), max_size=60),
    tail=st.sampled_from([None, 0, 3, 250, 700, 3000]),
)
def test_the_segments_are_those_of_the_recorder(gaps: list[int], tail: int | None) -> None:
    times, at = [], 0
    for gap in gaps:
        at += gap
        times.append(at)
    until = at + 6000
    end = None if tail is None else at + tail
    items = [f"{gap}ms" for gap in gaps] + ([] if tail is None else [f"wait {tail}ms", "end"])
    found, receipts = reported(exports([script(arrivals=", ".join(items))], until * MS))
    assert found == recorded(times, end, until)
    assert receipts == [one[1] for one in found], "each is received when it is cut"


def test_many_tokens_are_sent_a_hundred_at_a_time() -> None:
    found, _ = reported(exports([script(arrivals="250x1ms, end")], 10**10))
    assert [len(times) for _, _, times, _ in found] == [0, 100, 100, 50]
    assert found[-1][3] == "completed"


def test_telemetry_is_lost_or_late_by_when_it_is_sent() -> None:
    keys: dict[str, Any] = {
        "arrivals": "10x100ms",
        "delay": "10ms",
        "telemetry": [{"from": "250ms", "to": "500ms", "lost": True}, {"from": "500ms", "to": "750ms", "delay": "2s"}],
    }
    found, receipts = reported(exports([script(**keys)], 1_500 * MS))
    ends = [end for _, end, _, _ in found]
    # Cut at 250 and 450 ms and lost; at 500 ms and late; then as usual.
    assert list(zip(receipts, ends, strict=True)) == [(10, 0), (760, 750), (960, 950), (1010, 1000), (1260, 1250)]
    found, receipts = reported(exports([script(**keys)], 3_000 * MS))
    assert (2500, 500) in list(zip(receipts, (end for _, end, _, _ in found), strict=True))


def test_streams_that_are_sent_at_one_instant_travel_together() -> None:
    both = exports([script(1, arrivals="100ms, 400ms"), script(2, arrivals="100ms", start="300ms")], 500 * MS)
    assert [(one.receipt_ns - T0_NS) // MS for one in both] == [0, 250, 300, 350, 500]
    assert len(reported([both[4]])[0]) == 2


def test_a_sender_that_vanishes_says_nothing_more() -> None:
    found, _ = reported(exports([script(arrivals="4x200ms, vanish")], 10**10))
    # Evaluated 250 ms after the last reported token, and at 250 ms: the token at 800 ms never arrives.
    assert found == [(0, 0, [], None), (0, 250, [200], None), (250, 450, [400], None), (450, 650, [600], None)]
