"""A recorder whose segments stay in memory, and a server to stream from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.recorded import Recorded
from support.sse_server import SseServer

import otel_llm


@pytest.fixture
def server() -> Iterator[SseServer]:
    with SseServer() as running:
        yield running


@pytest.fixture
def recorder() -> Iterator[Recorded]:
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter)
    yield Recorded(exporter)
    otel_llm.uninstrument()
