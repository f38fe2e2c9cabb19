"""An evaluator for tests of receivers: it decodes and stores exports, or refuses them."""

from __future__ import annotations

from threading import Lock

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_llm.collector.receive.senders import UNKNOWN, Sender
from otel_llm.formats.otlp.export_request import decode, parse


class FakeEvaluator:
    """Accepts exports and stores them."""

    def __init__(self) -> None:
        self.messages: list[ExportTraceServiceRequest] = []
        self.fail_with: Exception | None = None
        self._lock = Lock()

    def __call__(self, raw: bytes, _sender: Sender = UNKNOWN) -> bytes:
        message = parse(raw)
        if self.fail_with is not None:
            raise self.fail_with
        refused = decode(message).refused
        with self._lock:
            self.messages.append(message)
        partial = ExportTracePartialSuccess(rejected_spans=refused.total(), error_message=", ".join(refused))
        return ExportTraceServiceResponse(partial_success=partial if refused else None).SerializeToString()

    def forget(self) -> None:
        """Be as new."""
        self.messages.clear()
        self.fail_with = None

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for message in self.messages
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
