"""Where segments hang: the application's provider, another instrumentation's span, or ids of our own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context
from support.instrumentation.recorded import Recorded, ids
from support.sse_server import Reply, SseServer, whole

import otel_llm
from otel_llm import semconv


@pytest.fixture
def client(server: SseServer) -> Iterator[Any]:
    server.replies["m"] = whole(3)
    server.replies["bad"] = Reply(status=500)
    with openai.OpenAI(api_key="none", base_url=server.url, max_retries=0) as client:
        yield client


def consume(client: Any, model: str = "m") -> None:
    for _ in client.chat.completions.create(model=model, messages=[], stream=True):
        pass


class Application:
    """An application with a provider of its own, and our recorder beside it."""

    def __init__(self, **settings: Any) -> None:
        self.spans = InMemorySpanExporter()
        sampling = settings.pop("sampler", None)
        self.provider = TracerProvider(sampling, resource=Resource({"service.name": "shop"}), shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.tracer = self.provider.get_tracer("app")
        self.segments = InMemorySpanExporter()
        otel_llm.instrument(exporter=self.segments, tracer_provider=self.provider, **settings)

    @property
    def recorded(self) -> Recorded:
        return Recorded(self.segments)


@pytest.fixture
def application() -> Iterator[Application]:
    yield Application()
    otel_llm.uninstrument()


def test_the_request_span_goes_through_the_applications_provider(client: Any, application: Application) -> None:
    with application.tracer.start_as_current_span("handler") as handler:
        consume(client)
        assert trace.get_current_span() is handler
    [request] = [
        span for span in application.spans.get_finished_spans() if span.name == "chat m"
    ]  # ended with the reply
    stream = application.recorded.stream()
    assert request.kind is SpanKind.CLIENT
    assert request.parent == handler.get_span_context()
    assert request.context is not None
    attributes = dict(request.attributes or {})
    assert {
        key: attributes[key] for key in (semconv.OUTCOME, semconv.TOKENS, semconv.TOKEN_BASIS, semconv.SEGMENTS)
    } == {
        semconv.OUTCOME: "completed",
        semconv.TOKENS: 3,
        semconv.TOKEN_BASIS: "chunk",
        semconv.SEGMENTS: len(stream.segments),
    }
    assert attributes[semconv.GEN_AI_REQUEST_MODEL] == "m"
    assert request.start_time == stream.segments[0].start_time
    assert stream.parents == [ids(request.context)]
    assert all(segment.resource.attributes["service.name"] == "shop" for segment in stream.segments)
    assert all(segment.resource.attributes["service.instance.id"] for segment in stream.segments)
    assert application.recorded.requests() == []


def test_a_failure_is_the_request_spans_status(client: Any, application: Application) -> None:
    with pytest.raises(openai.InternalServerError):
        consume(client, "bad")
    [request] = application.spans.get_finished_spans()
    assert not request.status.is_ok
    assert (request.attributes or {})[semconv.ERROR_TYPE] == "openai.InternalServerError"


@pytest.mark.parametrize(
    "marked",
    [{semconv.GEN_AI_OPERATION_NAME: "chat"}, {"openinference.span.kind": "LLM"}],
    ids=["gen_ai", "openinference"],
)
def test_segments_hang_from_the_inference_span_that_is_there(
    marked: dict[str, str], client: Any, application: Application
) -> None:
    with application.tracer.start_as_current_span("chat by somebody else", attributes=marked) as theirs:
        consume(client)
        assert theirs.is_recording()
    [only] = application.spans.get_finished_spans()
    stream = application.recorded.stream()
    assert stream.parents == [ids(theirs.get_span_context())]
    attributes = dict(only.attributes or {})
    assert (attributes[semconv.OUTCOME], attributes[semconv.TOKENS]) == ("completed", 3)
    assert semconv.GEN_AI_REQUEST_MODEL not in attributes


def test_their_span_may_end_before_the_stream(client: Any, application: Application) -> None:
    marked = {semconv.GEN_AI_OPERATION_NAME: "chat"}
    with application.tracer.start_as_current_span("chat by somebody else", attributes=marked):
        stream = client.chat.completions.create(model="m", messages=[], stream=True)
    for _ in stream:
        pass
    assert application.recorded.stream().outcome == "completed"
    [theirs] = application.spans.get_finished_spans()
    assert semconv.OUTCOME not in (theirs.attributes or {})


def test_a_span_around_two_requests_is_the_first_ones(client: Any, application: Application) -> None:
    marked = {semconv.GEN_AI_OPERATION_NAME: "chat"}
    with application.tracer.start_as_current_span("chat by somebody else", attributes=marked) as theirs:
        consume(client)
        consume(client)
    first, second = application.recorded.streams()
    [ours] = [span for span in application.spans.get_finished_spans() if span.name == "chat m"]
    assert first.parents == [ids(theirs.get_span_context())]
    assert second.parents == [ids(ours.context)]
    assert ours.parent == theirs.get_span_context()


def test_a_span_that_is_no_inference_is_only_the_parent(client: Any, application: Application) -> None:
    with application.tracer.start_as_current_span("embed", attributes={semconv.GEN_AI_OPERATION_NAME: "embeddings"}):
        consume(client)
    assert [span.name for span in application.spans.get_finished_spans()] == ["chat m", "embed"]


@pytest.mark.parametrize("ours_first", [True, False])
def test_the_order_of_instrumenting_does_not_matter(ours_first: bool, client: Any) -> None:
    from openai.resources.chat.completions import Completions

    original = Completions.create

    def instrument_theirs(application: Application) -> None:
        inner = Completions.create

        def create(self: Any, *args: Any, **kwargs: Any) -> Any:
            marked = {semconv.GEN_AI_OPERATION_NAME: "chat"}
            with application.tracer.start_as_current_span("theirs", attributes=marked):
                return inner(self, *args, **kwargs)

        Completions.create = create  # type: ignore[method-assign]

    application: Application
    if ours_first:
        application = Application()
        instrument_theirs(application)
    else:
        provider = TracerProvider(shutdown_on_exit=False)
        holder = type("Holder", (), {"tracer": provider.get_tracer("theirs")})()
        instrument_theirs(holder)
        application = Application()
        holder.tracer = application.tracer
    try:
        consume(client)
        spans = application.spans.get_finished_spans()
        stream = application.recorded.stream()
    finally:
        otel_llm.uninstrument()
        Completions.create = original  # type: ignore[method-assign]
    assert [span.name for span in spans] == ["theirs"]
    assert stream.parents == [ids(spans[0].context)]


def test_without_a_provider_the_ids_are_ours(client: Any, recorder: Recorded) -> None:
    remote = SpanContext(77, 88, is_remote=True, trace_flags=TraceFlags(1))
    with trace.use_span(NonRecordingSpan(remote)):
        consume(client)
    [request] = recorder.requests()
    assert request.context is not None
    assert request.context.trace_id == 77
    assert request.context.span_id != 88
    assert request.parent == remote
    assert recorder.stream().parents == [ids(request.context)]


def test_an_unsampled_request_is_sent_all_the_same(client: Any) -> None:
    application = Application(sampler=ALWAYS_OFF)
    try:
        consume(client)
        assert application.recorded.stream().outcome == "completed"
        assert application.spans.get_finished_spans() == ()
    finally:
        otel_llm.uninstrument()


@pytest.mark.parametrize(("sampled", "outcomes"), [(TraceFlags(0), []), (TraceFlags(1), ["completed"])])
def test_sampling_by_parent_is_opt_in(sampled: TraceFlags, outcomes: list[str], client: Any) -> None:
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter, sampling="parent")
    try:
        context = set_span_in_context(NonRecordingSpan(SpanContext(77, 88, is_remote=True, trace_flags=sampled)))
        with trace.use_span(trace.get_current_span(context)):
            consume(client)
        streams = Recorded(exporter).streams()
    finally:
        otel_llm.uninstrument()
    assert [stream.outcome for stream in streams] == outcomes
