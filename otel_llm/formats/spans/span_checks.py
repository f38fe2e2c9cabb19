"""Check the ids and times of a span: a span with wrong ones is refused with a reason word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.core.limits import MAX_TIME_NS

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

NO_TRACE_ID: Final = bytes(16)
NO_SPAN_ID: Final = bytes(8)


class RefusedSpan(Exception):  # noqa: N818 - a reason, carried over two calls
    """The reason word of a span that cannot be used."""


def check_id(value: bytes, unset: bytes, reason: str) -> bytes:
    """Return an id of the length of `unset` that is not `unset`.

    Raises:
        RefusedSpan: it is none; with this reason.
    """
    if len(value) != len(unset) or value == unset:
        raise RefusedSpan(reason)
    return value


def time_fault(earliest_ns: int, latest_ns: int) -> str | None:
    """Return the fault of times between these (unix ns), as a reason word; None if they are valid."""
    if earliest_ns == 0:
        return "missing_time"
    return "time_out_of_range" if latest_ns > MAX_TIME_NS else None


def check_times(span: Span) -> tuple[int, int]:
    """Return start and end (unix ns) of a span that has both, in order.

    Raises:
        RefusedSpan: one is missing or out of range, or the end is before the start.
    """
    start_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano
    reason = time_fault(min(start_ns, end_ns), max(start_ns, end_ns))
    if reason is not None:
        raise RefusedSpan(reason)
    if end_ns < start_ns:
        raise RefusedSpan("end_before_start")
    return start_ns, end_ns
