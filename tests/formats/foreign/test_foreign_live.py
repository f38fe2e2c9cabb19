"""The live evaluator's rows and windows of others' spans: those of the audit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.formats.foreign_rows import S, captured, doubles, rows, with_array
from support.live import Live
from support.otlp import T0_NS, Value, export, request_span

import otel_llm.audit
from otel_llm import semconv
from otel_llm.formats.io.journal_format import frame
from otel_llm.formats.rows import Row

EMITTERS = ("traceloop", "openinference", "genai_openai", "langfuse", "vllm", "sglang")


def by_span(found: list[Row]) -> list[Row]:
    return sorted(found, key=lambda row: (str(row["start_unix_nano"]), str(row["span_id"])))


@pytest.mark.parametrize("emitter", EMITTERS)
@pytest.mark.parametrize("delay_ns", [0, S, 3600 * S])
def test_live_rows_and_windows_are_the_audit_s(emitter: str, delay_ns: int, tmp_path: Path) -> None:
    message = captured(emitter)
    ends = [span.end_time_unix_nano for scope in message.resource_spans[0].scope_spans for span in scope.spans]
    receipt_ns = max(ends) + delay_ns
    live = Live().run([(receipt_ns, message)])
    path = tmp_path / "one.otlp"
    path.write_bytes(frame(message.SerializeToString(), receipt_ns))
    audit = otel_llm.audit.load(path, window="10s")
    assert by_span(live.rows) == by_span(audit.rows)
    assert live.windows == audit.window_rows


def reply(number: int, times_ns: list[int], array: bool, dropped: int, error: bool) -> Span:
    attributes: dict[str, Value] = {
        semconv.GEN_AI_OPERATION_NAME: "chat",
        semconv.GEN_AI_REQUEST_MODEL: f"m{number % 2}",
    }
    end_ns = max(times_ns) + S
    if array:
        span = request_span(request=number, end_ns=end_ns, attributes=attributes, error=error)
        offsets = [(at - T0_NS) / S for at in sorted(times_ns)]
        return with_array(span, semconv.PER_TOKEN_GENERATION_TIME, doubles(offsets))
    events = [(semconv.CHUNK_EVENT, at) for at in times_ns]
    return request_span(
        request=number, end_ns=end_ns, attributes=attributes, events=events, dropped_events=dropped, error=error
    )


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(T0_NS, T0_NS + 40 * S), min_size=1, max_size=20),
            st.booleans(),
            st.sampled_from([0, 0, 5]),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_of_them_live_and_in_the_audit(replies: list[tuple[list[int], bool, int, bool]]) -> None:
    spans = [reply(number, *one) for number, one in enumerate(replies, 1)]
    live = Live().run([(span.end_time_unix_nano + S, export(span)) for span in spans])
    assert by_span(live.rows) == by_span(rows(export(*spans)))
