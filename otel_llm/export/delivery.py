"""The delivery of batches of records: encoded and sent by ourselves, or passed to an application's `SpanExporter`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from otel_llm.export.clock import monotonic_s
from otel_llm.export.transport.attempt import retry_wait_s
from otel_llm.export.wire import export_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace.export import SpanExporter

    from otel_llm.export.records import Record
    from otel_llm.export.settings import OtlpSettings
    from otel_llm.export.transport.attempt import Attempt

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

        from otel_llm.export.spans import readable

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
