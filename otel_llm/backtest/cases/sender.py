"""Turn a script into the exports that a collector receives: the segments of an application's own recorder.

The segments are cut by the instrumentation's `Timeline` and encoded by its exporter, at the recorder's instants: every
250 ms of the test's clock, when a silent stream must send one, and at once when a token follows an empty segment.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from otel_llm import semconv
from otel_llm.export.records import CONTENT, Origin, RequestRecord
from otel_llm.export.wire import export_request
from otel_llm.formats.records import DEFAULT_TENANT
from otel_llm.instrumentation.process.flusher import next_look
from otel_llm.instrumentation.segments.timeline import FLUSH_INTERVAL_NS, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_llm.backtest.cases.case_parser import Script
    from otel_llm.export.records import AttributeValue, Record
    from otel_llm.formats.records import StreamKey

T0_NS: Final = 1_767_225_600_000_000_000
"""The reading of all clocks at the start of a test: the first instant of 2026, UTC."""
_SENDER: Final = Resource({semconv.SERVICE_INSTANCE_ID: "rules-test"})


@dataclass(frozen=True, slots=True)
class Export:
    """The bytes that are received at one instant (unix ns)."""

    receipt_ns: int
    raw: bytes


def stream_key(script: Script) -> StreamKey:
    """Return the collector's key of a script's stream."""
    return script.number.to_bytes(16, "big"), script.number.to_bytes(8, "big"), DEFAULT_TENANT, 0


def exports(scripts: Iterable[Script], until_ns: int) -> list[Export]:
    """Return the exports of all streams in order of receipt; `until_ns`: the end of the test, since the start."""
    received: dict[int, list[Record]] = {}
    for script in scripts:
        for cut_ns, record in _records(script, until_ns):
            delay_ns = _delay_ns(script, cut_ns - T0_NS)
            if delay_ns is not None:
                received.setdefault(cut_ns + delay_ns, []).append(record)
    return [Export(at_ns, export_request(received[at_ns])) for at_ns in sorted(received) if at_ns <= T0_NS + until_ns]


def _delay_ns(script: Script, cut_ns: int) -> int | None:
    """Return the delay of a segment that is sent at an instant, None if it is lost."""
    for one in script.shape.telemetry:
        if one.from_ <= cut_ns and (one.to is None or cut_ns < one.to):
            return None if one.lost else one.delay
    return script.shape.delay


def _records(script: Script, until_ns: int) -> Iterator[tuple[int, Record]]:
    """Yield the recorder's records, each with the instant at which it is sent."""
    commit_ns = T0_NS + script.start_ns
    horizon_ns = T0_NS + until_ns
    if commit_ns > horizon_ns:
        return
    trace_id, span_id, _, _ = stream_key(script)
    context = SpanContext(
        int.from_bytes(trace_id, "big"), int.from_bytes(span_id, "big"), is_remote=False, trace_flags=TraceFlags(1)
    )
    timeline = Timeline(0, commit_ns, Origin(context, _SENDER), Random(script.number).getrandbits)  # noqa: S311
    timeline.state(script.shape.token_basis, script.shape.token_ratio_learned)
    identity = _identity(script)
    yield commit_ns, timeline.commit(identity)
    arrivals = script.arrivals
    times_ns = [commit_ns + one for one in arrivals.times_ns]
    end_ns = None if arrivals.end_ns is None else commit_ns + arrivals.end_ns
    now_ns, sent = commit_ns, 0
    while (now_ns := _next_cut_ns(timeline, now_ns, times_ns, sent, end_ns)) <= horizon_ns:
        upto = bisect_right(times_ns, now_ns, sent)
        for at in range(sent, upto):
            if arrivals.kinds[at] == CONTENT:
                timeline.take([times_ns[at]])
            else:
                timeline.take_marked(times_ns[at], arrivals.kinds[at], 1)
        sent = upto
        if now_ns == end_ns:
            if arrivals.outcome is not None:
                yield from _last(script, timeline, identity, context, now_ns)
            return
        for segment in timeline.cut(now_ns, _last_byte_ns(script, commit_ns, now_ns)):
            yield now_ns, segment


def _last_byte_ns(script: Script, commit_ns: int, now_ns: int) -> int:
    """Return when the newest keep-alive was received (unix ns), 0 if the server sends none."""
    every_ns = script.shape.keep_alive
    return 0 if every_ns is None else now_ns - (now_ns - commit_ns) % every_ns


def _next_cut_ns(timeline: Timeline, now_ns: int, times_ns: list[int], sent: int, end_ns: int | None) -> int:
    flush_ns = now_ns + FLUSH_INTERVAL_NS - (now_ns - T0_NS) % FLUSH_INTERVAL_NS
    instants = [next_look(now_ns, flush_ns, timeline.due_ns)]
    if timeline.quiet and sent < len(times_ns):
        instants.append(max(times_ns[sent], now_ns + 1))
    if end_ns is not None:
        instants.append(max(end_ns, now_ns))
    return min(instants)


def _last(
    script: Script, timeline: Timeline, identity: dict[str, AttributeValue], context: SpanContext, end_ns: int
) -> Iterator[tuple[int, Record]]:
    outcome = script.arrivals.outcome
    assert outcome is not None  # noqa: S101
    stated: dict[str, AttributeValue] = {}
    if script.shape.input_tokens is not None:
        stated[semconv.GEN_AI_USAGE_INPUT_TOKENS] = script.shape.input_tokens
    for segment in timeline.last(end_ns, outcome, script.shape.token_basis, stated):
        yield end_ns, segment
    ours: dict[str, AttributeValue] = {
        semconv.OUTCOME: outcome,
        semconv.TOKENS: timeline.tokens,
        semconv.TOKEN_BASIS: script.shape.token_basis,
        semconv.SEGMENTS: timeline.seq,
    }
    kind = SpanKind.SERVER if script.shape.measured_at == "server" else SpanKind.CLIENT
    start_ns = T0_NS + script.start_ns
    attributes = {**identity, **stated, **ours}
    failure = "error" if outcome == "error" else None
    yield end_ns, RequestRecord(context, None, _SENDER, "chat", start_ns, end_ns, attributes, failure, kind)


def _identity(script: Script) -> dict[str, AttributeValue]:
    shape = script.shape
    stated: dict[str, AttributeValue | None] = {
        semconv.GEN_AI_OPERATION_NAME: shape.operation,
        semconv.GEN_AI_REQUEST_MODEL: shape.model,
        semconv.SLO_CLASS: shape.class_,
        semconv.INSTANCE: shape.instance,
        semconv.MEASURED_AT: shape.measured_at,
        semconv.EXACT_RESUME: True if shape.exact_resume else None,
        semconv.GEN_AI_USAGE_INPUT_TOKENS: shape.input_tokens,
    }
    return {name: value for name, value in stated.items() if value is not None}
