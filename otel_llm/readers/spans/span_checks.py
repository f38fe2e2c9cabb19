"""What every span that we use must have right: its ids and its times; else it is refused with a reason word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.core.limits import MAX_TIME_NS

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

NO_TRACE_ID: Final = bytes(16)
NO_SPAN_ID: Final = bytes(8)


class RefusedSpan(Exception):  # noqa: N818 - a reason, carried over two calls
    """Carry the reason word of a span that cannot be used."""


def check_id(value: bytes, nobody: bytes, reason: str) -> bytes:
    """Return an id that is one: of the length of `nobody`, and not it."""
    if len(value) != len(nobody) or value == nobody:
        raise RefusedSpan(reason)
    return value


def check_times(span: Span) -> tuple[int, int]:
    """Return start and end (unix ns) of a span that has both, in order."""
    start_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano
    if start_ns == 0 or end_ns == 0:
        raise RefusedSpan("missing_time")
    if start_ns > MAX_TIME_NS or end_ns > MAX_TIME_NS:
        raise RefusedSpan("time_out_of_range")
    if end_ns < start_ns:
        raise RefusedSpan("end_before_start")
    return start_ns, end_ns
