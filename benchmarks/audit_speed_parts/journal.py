"""Recorded streams of as many tokens as wanted, written quickly: spans of one shape are patched many at a time.

Each span is made once by protobuf, with numbers that occur nowhere else where ids and times go; numpy then writes a
wave of requests' ids and times over copies of those bytes. The bytes are those that an OTLP encoder writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_llm import semconv
from otel_llm.formats.io.journal_format import frame

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

T0_NS: Final = 1_790_000_000_000_000_000
WAVE: Final = 200
"""Requests that are in flight together: each export request holds a segment of each."""
_MARK: Final = 0x7A5C_0000_0000_0000
"""Where a time goes; the low bits say which."""
_TRACE, _SPAN, _PARENT = b"\xa1" * 16, b"\xa2" * 8, b"\xa3" * 8


@dataclass(frozen=True)
class Shape:
    """Replies of `tokens` tokens in segments of `segment` tokens.

    `sparse`: as an encoder that leaves defaults out, without status and flags; otherwise as OpenTelemetry's SDK does.
    `sealed`: records of a journal; otherwise those of a Collector's file exporter (`format: proto`).
    """

    tokens: int = 500
    segment: int = 64
    sparse: bool = False
    sealed: bool = True


def write_journal(path: Path, requests: int, shape: Shape, seed: int = 1) -> int:
    """Write about so many requests, whole waves of them; return how many tokens there are."""
    random = np.random.default_rng(seed)
    waves = max(1, round(requests / WAVE))
    cuts = [*range(0, shape.tokens, shape.segment), shape.tokens]
    with path.open("wb") as file:
        for wave in range(waves):
            begin_ns = T0_NS + wave * 2_000_000_000
            commit = begin_ns + random.integers(0, 2_000_000_000, WAVE)
            gaps = (random.exponential(18e6, (WAVE, shape.tokens)) + 2e6).astype(np.int64)
            gaps[random.random(gaps.shape) < 0.002] += 3_000_000_000
            gaps[:, 0] += 300_000_000
            times = commit[:, None] + np.cumsum(gaps, axis=1)
            ids = np.frombuffer(random.bytes(WAVE * 24), np.uint8).reshape(WAVE, 24)
            file.write(_record(_first(), ids, [commit, commit], shape, random))
            start = commit
            for number, (low, high) in enumerate(pairwise(cuts), 1):
                own = times[:, low:high]
                end = own[:, -1]
                span = _segment(number, low, high - low)
                file.write(_record(span, ids, [start, end, *own.T], shape, random))
                start = end
            file.write(_record(_last(len(cuts), shape.tokens), ids, [start, start], shape, random))
            file.write(_record(_request(shape.tokens, len(cuts) + 1), ids, [commit, start], shape, random))
    return waves * WAVE * shape.tokens


def _record(
    span: Span, ids: npt.NDArray[np.uint8], times: list[Ints], shape: Shape, random: np.random.Generator
) -> bytes:
    """Return the record of one export request that holds such a span of each request.

    `times`: start, end and events of each; a journal says that it was received 5 ms after the last end.
    """
    if shape.sparse:
        span.ClearField("flags")
        span.ClearField("status")
    body = span.SerializeToString()
    spans = np.tile(np.frombuffer(_tagged(0x12, body), np.uint8), (len(ids), 1))
    raw = spans[0].tobytes()
    is_request = span.name != semconv.SEGMENT_SPAN
    _put(spans, raw, _TRACE, ids[:, :16])
    if is_request:
        _put(spans, raw, _SPAN, ids[:, 16:])
    else:
        _put(spans, raw, _SPAN, np.frombuffer(random.bytes(8 * len(ids)), np.uint8).reshape(-1, 8))
        _put(spans, raw, _PARENT, ids[:, 16:])
    for number, one in enumerate(times):
        _put(spans, raw, (_MARK + number).to_bytes(8, "little"), one.astype("<i8").view(np.uint8).reshape(-1, 8))
    scope = _tagged(0x12, _tagged(0x0A, b"\x0a\x08otel_llm") + spans.tobytes())
    resource = _tagged(0x0A, _attribute(semconv.SERVICE_INSTANCE_ID, "bench"))
    message = _tagged(0x0A, resource + scope)
    if not shape.sealed:
        return len(message).to_bytes(4, "big") + message
    return frame(message, int(times[1].max()) + 5_000_000)


def _put(spans: npt.NDArray[np.uint8], raw: bytes, mark: bytes, values: npt.NDArray[np.uint8]) -> None:
    at = raw.index(mark)
    spans[:, at : at + len(mark)] = values


def _segment(seq: int, first_token: int, tokens: int) -> Span:
    span = _span(semconv.SEGMENT_SPAN, {semconv.SEGMENT_SEQ: seq, semconv.SEGMENT_FIRST_TOKEN: first_token})
    for number in range(tokens):
        span.events.add(name=semconv.TOKEN_EVENT, time_unix_nano=_MARK + 2 + number)
    return span


def _first() -> Span:
    identity: dict[str, str | int] = {
        semconv.SEGMENT_SEQ: 0,
        semconv.SEGMENT_FIRST_TOKEN: 0,
        semconv.GEN_AI_OPERATION_NAME: "chat",
        semconv.GEN_AI_REQUEST_MODEL: "llama-3.1-8b",
        semconv.INSTANCE: "gpu-0",
        semconv.SLO_CLASS: "chat",
    }
    return _span(semconv.SEGMENT_SPAN, identity)


def _last(seq: int, tokens: int) -> Span:
    end: dict[str, str | int] = {semconv.SEGMENT_SEQ: seq, semconv.SEGMENT_FIRST_TOKEN: tokens}
    return _span(semconv.SEGMENT_SPAN, end | _outcome(tokens, seq + 1))


def _request(tokens: int, segments: int) -> Span:
    reported: dict[str, str | int] = {
        semconv.GEN_AI_OPERATION_NAME: "chat",
        semconv.GEN_AI_REQUEST_MODEL: "llama-3.1-8b",
    }
    span = _span("chat llama-3.1-8b", reported | _outcome(tokens, segments))
    span.kind = Span.SPAN_KIND_CLIENT
    span.ClearField("parent_span_id")
    return span


def _outcome(tokens: int, segments: int) -> dict[str, str | int]:
    return {
        semconv.OUTCOME: "completed",
        semconv.TOKENS: tokens,
        semconv.TOKEN_BASIS: "exact",
        semconv.SEGMENTS: segments,
    }


def _span(name: str, attributes: dict[str, str | int]) -> Span:
    span = Span(
        trace_id=_TRACE,
        span_id=_SPAN,
        parent_span_id=_PARENT,
        name=name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=_MARK,
        end_time_unix_nano=_MARK + 1,
        flags=0x101,
    )
    for key, value in attributes.items():
        cell = AnyValue(int_value=value) if isinstance(value, int) else AnyValue(string_value=value)
        span.attributes.append(KeyValue(key=key, value=cell))
    span.status.SetInParent()
    return span


def _attribute(key: str, value: str) -> bytes:
    return _tagged(0x0A, KeyValue(key=key, value=AnyValue(string_value=value)).SerializeToString())


def _tagged(tag: int, body: bytes) -> bytes:
    size, length = bytearray((tag,)), len(body)
    while length > 127:
        size.append(length & 127 | 128)
        length >>= 7
    size.append(length)
    return bytes(size) + body


def check(raw: bytes) -> ExportTraceServiceRequest:
    """Return the message that the bytes of a record are, to see that they are one."""
    return ExportTraceServiceRequest.FromString(raw)
