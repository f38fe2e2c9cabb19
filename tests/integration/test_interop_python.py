"""The official Python exporters deliver: what the SDK makes of the worked rows is audited as the rows say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace.export import SpanExporter
from support.commands import Collector, collector
from support.integration import interop_rows
from support.integration.interop_sdk import deliver

EXPORTERS: dict[str, Callable[[Collector], SpanExporter]] = {
    "grpc": lambda to: GrpcExporter(endpoint=to.grpc, insecure=True),
    "grpc-gzip": lambda to: GrpcExporter(endpoint=to.grpc, insecure=True, compression=grpc.Compression.Gzip),
    "http": lambda to: HttpExporter(endpoint=f"http://{to.http}/v1/traces"),
    "http-gzip": lambda to: HttpExporter(endpoint=f"http://{to.http}/v1/traces", compression=Compression.Gzip),
}


@pytest.mark.essential
@pytest.mark.parametrize("name", EXPORTERS)
def test_the_official_exporter_delivers(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(variable, raising=False)
    with collector(tmp_path, "--verdicts", "none") as running:
        deliver(EXPORTERS[name](running))
        status, said = running.stop()

    assert status == 0, said
    assert interop_rows.differences(tmp_path / "journal") == []
