"""The delivery of batches of records: encoded and sent by ourselves, or passed to an application's `SpanExporter`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, overload

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from otel_llm import semconv
from otel_llm.export.clock import monotonic_s
from otel_llm.export.records import Segment, mark_attributes, version
from otel_llm.export.transport.attempt import retry_wait_s
from otel_llm.export.wire import export_request

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from otel_llm.export.records import Record, RequestRecord
    from otel_llm.export.settings import OtlpSettings
    from otel_llm.export.transport.attempt import Attempt


class TokenEvents(Sequence[Event]):
    """The token events of a segment, each built when it is read and not kept."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def __len__(self) -> int:
        return len(self._segment.times_ns)

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...

    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        segment = self._segment
        attributes = None if segment.marks is None else mark_attributes(segment.marks[index])
        return Event(semconv.TOKEN_EVENT, attributes, segment.times_ns[index])


def readable(record: Record) -> ReadableSpan:
    """Return a record as the read-only span that exporters take."""
    return _segment(record) if isinstance(record, Segment) else _request(record)


def _segment(segment: Segment) -> ReadableSpan:
    parent = segment.origin.parent
    return ReadableSpan(
        name=semconv.SEGMENT_SPAN,
        # A segment that is sent is sampled, whether or not the request span is.
        context=SpanContext(
            parent.trace_id,
            segment.span_id,
            False,
            TraceFlags(TraceFlags.SAMPLED),
            parent.trace_state,
        ),
        parent=parent,
        resource=segment.origin.resource,
        attributes=dict(segment.attributes),
        events=TokenEvents(segment),
        kind=SpanKind.INTERNAL,
        start_time=segment.start_ns,
        end_time=segment.end_ns,
        instrumentation_scope=_scope(),
    )


def _request(record: RequestRecord) -> ReadableSpan:
    return ReadableSpan(
        name=record.name,
        context=record.context,
        parent=record.parent,
        resource=record.resource,
        attributes=dict(record.attributes),
        events=[Event(event.name, dict(event.attributes), event.time_ns) for event in record.events],
        kind=record.kind,
        status=Status(StatusCode.UNSET) if record.failure is None else Status(StatusCode.ERROR, record.failure),
        start_time=record.start_ns,
        end_time=record.end_ns,
        instrumentation_scope=_scope(),
    )


def _scope() -> InstrumentationScope:
    return InstrumentationScope(semconv.SCOPE_NAME, version())


RETRY_FOR_S: Final = 120.0
"""How long a batch is tried before it is dropped: an evaluator declares a silent stream lost after as long."""

Pause = Callable[[float, str], bool]
"""Waits that many seconds after an attempt that failed for this reason; False: the process is closing, give up."""


class Delivery(Protocol):
    """The destination of the outbox's batches; called in its thread."""

    def deliver(self, batch: Sequence[Record], pause: Pause) -> tuple[int, str]:
        """Deliver a batch; return the number of dropped records, and the reason."""

    def close(self) -> None:
        """Release connections."""

    def forget(self) -> None:
        """Release, in a forked child, the parent's connections."""


class Sender(Protocol):
    """One transport of OTLP bytes."""

    def send(self, payload: bytes) -> Attempt:
        """Make one attempt."""

    def close(self) -> None:
        """Release connections."""

    def forget(self) -> None:
        """Release, in a forked child, the parent's connections."""


class OtlpDelivery:
    """The delivery that encodes a batch to wire bytes and sends it, again while the failure is a passing one."""

    def __init__(self, sender: Sender, clock_s: Callable[[], float] = monotonic_s) -> None:
        self._sender = sender
        self._clock_s = clock_s

    def deliver(self, batch: Sequence[Record], pause: Pause) -> tuple[int, str]:
        """Deliver a batch; return the number of dropped records, and the reason."""
        payload = export_request(batch)
        give_up_s = self._clock_s() + RETRY_FOR_S
        attempts = 0
        while True:
            attempt = self._sender.send(payload)
            if attempt.verdict == "accepted":
                return min(attempt.rejected, len(batch)), attempt.reason
            if attempt.verdict == "refused":
                return len(batch), attempt.reason
            wait_s = retry_wait_s(attempt, attempts)
            if self._clock_s() + wait_s > give_up_s:
                return len(batch), attempt.reason
            if not pause(wait_s, attempt.reason):
                return len(batch), attempt.reason
            attempts += 1

    def close(self) -> None:
        """Release connections."""
        self._sender.close()

    def forget(self) -> None:
        """Release, in a forked child, the parent's connections."""
        self._sender.forget()


class SpanExporterDelivery:
    """The delivery that passes batches to an application's exporter as read-only spans; retries are the exporter's."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def deliver(self, batch: Sequence[Record], pause: Pause) -> tuple[int, str]:  # noqa: ARG002
        """Deliver a batch; return the number of dropped records, and the reason."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        from otel_llm.export.delivery import readable

        result = self._exporter.export([readable(record) for record in batch])
        if result is SpanExportResult.SUCCESS:
            return 0, ""
        return len(batch), f"{type(self._exporter).__name__} reported a failure"

    def close(self) -> None:
        """Flush the exporter; its owner shuts it down."""
        self._exporter.force_flush()

    def forget(self) -> None:
        """Keep the exporter: handling a fork is its own task."""


def otlp_delivery(settings: OtlpSettings) -> OtlpDelivery:
    """Return the delivery for one OTLP endpoint; nothing is opened or imported for its transport yet."""
    if settings.protocol == "grpc":
        from otel_llm.export.transport.grpc import GrpcSender

        return OtlpDelivery(GrpcSender(settings))
    from otel_llm.export.transport.http import HttpSender

    return OtlpDelivery(HttpSender(settings))
