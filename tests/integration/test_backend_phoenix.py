"""A real trace backend: what it shows of segments that come before the spans they hang from, and once these come."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import openai
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from support.commands import wait_until
from support.integration.phoenix import Phoenix, Shown, phoenix
from support.patience import WAIT_S
from support.sse_server import DONE, Gate, Reply, SseServer, chunk, words

import otel_llm
from otel_llm import semconv

OPEN_S = float(os.environ.get("BACKEND_OPEN_S", "1"))
"""How long the request stays open after its first segments were sent; docs/backends.md was checked with 180."""


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phoenix]:
    with phoenix(tmp_path_factory.mktemp("phoenix")) as running:
        yield running


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_segments_that_came_first_are_shown_under_their_request(backend: Phoenix, protocol: str) -> None:
    def exporter() -> SpanExporter:
        if protocol == "grpc":
            return GrpcExporter(endpoint=backend.grpc, insecure=True)
        return HttpExporter(endpoint=f"http://{backend.http}/v1/traces")

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter()))
    gate = Gate()
    trace_ids: list[str] = []
    held = [gate] * (1 + int(OPEN_S // 20))  # a gate holds for 30 s at most
    script = Reply([chunk({"role": "assistant"}), *words(3), *held, *words(2), chunk(finish="stop"), DONE])

    def application(url: str) -> None:
        with provider.get_tracer("app").start_as_current_span("handler") as handler:
            trace_ids.append(f"{handler.get_span_context().trace_id:032x}")
            with openai.OpenAI(api_key="none", base_url=url, max_retries=0) as client:
                for _ in client.chat.completions.create(model="m", messages=[], stream=True):
                    pass

    otel_llm.instrument(exporter=exporter(), tracer_provider=provider)
    try:
        with SseServer({"m": script}) as server:
            request = threading.Thread(target=application, args=(server.url,), daemon=True)
            request.start()
            early = shown(backend, trace_ids, lambda found: len(found.spans) >= 2)
            time.sleep(OPEN_S)
            gate.open()
            request.join(WAIT_S)
            assert otel_llm.flush(WAIT_S)
    finally:
        otel_llm.uninstrument()
        provider.shutdown()

    # While the request is open: the trace is there, its segments are, and nothing that they hang from. The backend
    # makes do with the first of them as the root.
    assert {name for name, _ in early.spans.values()} == {semconv.SEGMENT_SPAN}
    assert early.root == semconv.SEGMENT_SPAN
    [hangs_from] = {parent for _, parent in early.spans.values()}
    assert hangs_from is not None
    assert hangs_from not in early.spans

    # The trace lasts as long as its request, once the backend has added the last of it.
    late = shown(
        backend,
        trace_ids,
        lambda found: (
            found.root == "handler"
            and "chat m" in names_of(found)
            and found.latency_ms is not None
            and found.latency_ms >= OPEN_S * 1e3
        ),
    )
    segments = {span_id for span_id, (name, _) in late.spans.items() if name == semconv.SEGMENT_SPAN}
    assert set(early.spans) < segments, "what came first is still there, and the last segment came too"
    assert sorted(name for name, _ in late.spans.values() if name != semconv.SEGMENT_SPAN) == ["chat m", "handler"]
    assert late.root == "handler"
    assert late.spans[hangs_from][0] == "chat m"
    assert {late.spans[span_id][1] for span_id in segments} == {hangs_from}
    assert segments <= {span_id for _, span_id in late.under_root}


def names_of(found: Shown) -> list[str]:
    return [name for name, _ in found.spans.values()]


def shown(backend: Phoenix, trace_ids: list[str], enough: Callable[[Shown], bool]) -> Shown:
    """Return what the backend shows once it is enough."""
    seen: list[Shown] = []

    def holds() -> bool:
        found = backend.shown(trace_ids[0]) if trace_ids else None
        seen[:] = [found] if found is not None else []
        return found is not None and enough(found)

    wait_until("the backend shows what was sent", holds)
    return seen[0]
