"""A reply of 2,000 tokens arrives whole: through the standard exporters and through ours, decoded alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.otlp_receiver import GrpcReceiver, HttpReceiver
from support.patience import WAIT_S
from support.sse_server import SseServer, whole

import otel_llm
from otel_llm import semconv
from otel_llm.export.delivery import SpanExporterDelivery, otlp_delivery
from otel_llm.export.settings import from_environment
from otel_llm.instrumentation.process import runtime

TOKENS = 2_000


@pytest.fixture
def url() -> Iterator[str]:
    with SseServer({"m": whole(TOKENS)}) as server:
        yield server.url


def read_reply(url: str) -> None:
    with openai.OpenAI(api_key="none", base_url=url) as client:
        assert sum(1 for _ in client.chat.completions.create(model="m", messages=[], stream=True)) == TOKENS + 2


class Tee(SpanExporter):
    """Hands every span to several exporters, so that all have the same to tell."""

    def __init__(self, *exporters: Any) -> None:
        self.exporters = exporters

    def export(self, spans: Any) -> SpanExportResult:
        for exporter in self.exporters:
            assert exporter.export(spans) is SpanExportResult.SUCCESS
        return SpanExportResult.SUCCESS


def segments(spans: list[Span]) -> list[Span]:
    return sorted((span for span in spans if span.name == semconv.SEGMENT_SPAN), key=seq)


def seq(span: Span) -> int:
    return next(pair.value.int_value for pair in span.attributes if pair.key == semconv.SEGMENT_SEQ)


def check_whole(spans: list[Span]) -> None:
    reported = segments(spans)
    assert [seq(span) for span in reported] == list(range(len(reported)))
    assert sum(len(span.events) for span in reported) == TOKENS
    assert all(len(span.events) <= semconv.MAX_SEGMENT_EVENTS for span in reported)
    times = [event.time_unix_nano for span in reported for event in span.events]
    assert times == sorted(times)
    last = {pair.key: pair.value for pair in reported[-1].attributes}
    assert last[semconv.OUTCOME].string_value == "completed"
    assert last[semconv.SEGMENTS].int_value == len(reported)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_through_ours(protocol: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver: GrpcReceiver | HttpReceiver = GrpcReceiver() if protocol == "grpc" else HttpReceiver()
    with receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        otel_llm.instrument()
        try:
            read_reply(url)
            assert otel_llm.flush(WAIT_S)
        finally:
            otel_llm.uninstrument()
        check_whole(receiver.spans())
        assert [span.name for span in receiver.spans() if span.name != semconv.SEGMENT_SPAN] == ["chat m"]
        [scope] = {scope.scope.name for m in receiver.messages for r in m.resource_spans for scope in r.scope_spans}
        assert scope == "otel_llm"


def test_through_the_standard_exporters_and_ours_alike(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch goes to the standard gRPC and HTTP exporters as spans, and to ours as what it is."""
    with (
        GrpcReceiver() as standard_grpc,
        HttpReceiver() as standard_http,
        GrpcReceiver() as ours_grpc,
        HttpReceiver() as ours,
    ):
        memory = InMemorySpanExporter()
        tee = Tee(
            GrpcExporter(endpoint=standard_grpc.endpoint, insecure=True),
            HttpExporter(endpoint=f"{standard_http.endpoint}/v1/traces"),
            memory,
        )
        deliveries = [
            otlp_delivery(from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": ours_grpc.endpoint})),
            otlp_delivery(
                from_environment(
                    {"OTEL_EXPORTER_OTLP_ENDPOINT": ours.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
                )
            ),
        ]

        class Both(SpanExporterDelivery):
            def deliver(self, batch: Any, pause: Any) -> tuple[int, str]:
                for delivery in deliveries:
                    assert delivery.deliver(batch, pause) == (0, "")
                return super().deliver(batch, pause)

            def close(self) -> None:
                for delivery in deliveries:
                    delivery.close()

        monkeypatch.setattr(runtime, "SpanExporterDelivery", Both)
        otel_llm.instrument(exporter=tee)
        running = runtime.running()
        assert running is not None
        try:
            read_reply(url)
            assert otel_llm.flush(WAIT_S)
            assert running.dropped == 0
        finally:
            otel_llm.uninstrument()
            for exporter in tee.exporters:
                exporter.shutdown()
        for receiver in (standard_grpc, standard_http, ours_grpc, ours):
            check_whole(receiver.spans())
            assert receiver.distinct() == standard_grpc.distinct()  # message by message, every field
        everything = ExportTraceServiceRequest()
        for message in ours_grpc.distinct():
            everything.MergeFrom(message)
        assert sum(len(group.scope_spans[0].spans) for group in everything.resource_spans) == len(
            encode_spans(memory.get_finished_spans()).resource_spans[0].scope_spans[0].spans
        )
