"""How a batch of records is delivered: encoded and sent by ourselves, or handed to an application's `SpanExporter`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from otel_llm.export.attempt import retry_wait_s
from otel_llm.export.wire import export_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace.export import SpanExporter

    from otel_llm.export.attempt import Attempt
    from otel_llm.export.records import Record
    from otel_llm.export.settings import OtlpSettings

_log: Final = logging.getLogger("otel_llm")
RETRY_FOR_S: Final = 120.0
"""How long a batch is tried before it is dropped: an evaluator gives a silent stream up as lost after as long."""

Pause = Callable[[float], bool]
"""Waits that many seconds; False: the process is closing, do not try again."""


class Delivery(Protocol):
    """What the outbox hands its batches to, from its own thread."""

    def deliver(self, batch: Sequence[Record], pause: Pause) -> tuple[int, str]:
        """Deliver a batch; return how many of its records were dropped, and why."""

    def close(self) -> None:
        """Let go of what is held open."""

    def forget(self) -> None:
        """Let go, in a forked child, of what belongs to the parent."""


class Sender(Protocol):
    """One transport of OTLP bytes."""

    def send(self, payload: bytes) -> Attempt:
        """Make one attempt."""

    def close(self) -> None:
        """Let go of what is held open."""

    def forget(self) -> None:
        """Let go, in a forked child, of what belongs to the parent."""


class OtlpDelivery:
    """Encodes a batch straight to wire bytes and sends it, again and again while the answer is a passing failure.

    An endpoint that begins to fail is warned of once, until it takes something again: whoever looks at late telemetry
    wants to know why, and `where` it was to go.
    """

    def __init__(self, sender: Sender, where: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._sender = sender
        self._where = where
        self._clock_s = clock_s
        self._failing = False

    def deliver(self, batch: Sequence[Record], pause: Pause) -> tuple[int, str]:
        """Deliver a batch; return how many of its records were dropped, and why."""
        payload = export_request(batch)
        give_up_s = self._clock_s() + RETRY_FOR_S
        attempts = 0
        while True:
            attempt = self._sender.send(payload)
            if attempt.verdict == "accepted":
                self._failing = False
                return min(attempt.rejected, len(batch)), attempt.reason
            if attempt.verdict == "refused":
                return len(batch), attempt.reason
            wait_s = retry_wait_s(attempt, attempts)
            if self._clock_s() + wait_s > give_up_s:
                return len(batch), attempt.reason
            if not self._failing:
                self._failing = True
                _log.warning(
                    "telemetry is late (%s): trying again for up to %.0f s to send it to %s",
                    *(attempt.reason, RETRY_FOR_S, self._where),
                )
            if not pause(wait_s):
                return len(batch), attempt.reason
            attempts += 1

    def close(self) -> None:
        """Let go of what is held open."""
        self._sender.close()

    def forget(self) -> None:
        """Let go, in a forked child, of what belongs to the parent."""
        self._sender.forget()


class SpanExporterDelivery:
    """Hands batches to an exporter of the application as read-only spans; what to retry is the exporter's business."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def deliver(self, batch: Sequence[Record], pause: Pause) -> tuple[int, str]:  # noqa: ARG002
        """Deliver a batch; return how many of its records were dropped, and why."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        from otel_llm.export.spans import readable

        result = self._exporter.export([readable(record) for record in batch])
        if result is SpanExportResult.SUCCESS:
            return 0, ""
        return len(batch), f"{type(self._exporter).__name__} reported a failure"

    def close(self) -> None:
        """Flush the exporter; shutting it down is up to whoever made it."""
        self._exporter.force_flush()

    def forget(self) -> None:
        """Keep the exporter: how it takes a fork is its own affair."""


def otlp_delivery(settings: OtlpSettings) -> OtlpDelivery:
    """Return the delivery for one OTLP endpoint; nothing is opened or imported for its transport yet."""
    if settings.protocol == "grpc":
        from otel_llm.export.grpc import GrpcSender

        return OtlpDelivery(GrpcSender(settings), settings.description)
    from otel_llm.export.http import HttpSender

    return OtlpDelivery(HttpSender(settings), settings.description)
