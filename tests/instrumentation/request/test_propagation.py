"""What travels with a request: one trace for the client's and the server's view of it, and the SLO class."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import httpx2
import openai
import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, TraceState, set_span_in_context
from support.instrumentation.recorded import Recorded, ids
from support.logs import ours
from support.sse_server import Reply, SseServer, whole

import otel_llm
from otel_llm import semconv
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.core.suppressing import suppressing
from otel_llm.instrumentation.parse.callback_reader import CallbackReader
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.request import request_builder
from otel_llm.instrumentation.request.propagation import attach, detach, extract, inject

PARENT = SpanContext(77, 88, is_remote=True, trace_flags=TraceFlags(1), trace_state=TraceState([("vendor", "x")]))


@pytest.fixture
def client(server: SseServer) -> Iterator[Any]:
    server.replies["m"] = whole(3)
    server.replies["bad"] = Reply(status=500)
    with openai.OpenAI(api_key="none", base_url=server.url, max_retries=1) as client:
        yield client


def consume(client: Any, model: str = "m", **more: Any) -> None:
    for _ in client.chat.completions.create(model=model, messages=[], stream=True, **more):
        pass


def sent(server: SseServer, name: str, request: int = 0) -> list[str]:
    return [value for key, value in server.headers[request] if key == name]


def traceparent(context: SpanContext | None) -> str:
    trace_id, span_id = ids(context)
    return f"00-{trace_id:032x}-{span_id:016x}-01"


def served(headers: Mapping[str, str] | list[tuple[str, str]], **more: Any) -> Recording:
    """Record a request as a server does that got these headers; it ends at once."""
    running = runtime.running()
    assert running is not None
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    context = extract((name.encode(), value.encode()) for name, value in pairs)
    request = request_builder.request(
        running, context, operation="chat", model="m", gen_ai={}, ours={}, server=True, **more
    )
    recording = Recording(running, request, CallbackReader(None, None, "exact"))
    recording.announce(context)
    recording.ended("completed")
    return recording


def class_of(recorder: Recorded) -> object:
    return (recorder.streams()[-1].segments[0].attributes or {}).get(semconv.SLO_CLASS)


def by_kind(recorder: Recorded, kind: SpanKind) -> ReadableSpan:
    [span] = [span for span in recorder.requests() if span.kind is kind]
    return span


def test_the_views_of_client_and_server_share_a_trace(client: Any, server: SseServer, recorder: Recorded) -> None:
    token = otel_context.attach(baggage.set_baggage(semconv.SLO_CLASS, "chat"))
    try:
        consume(client)
    finally:
        otel_context.detach(token)
    asking = by_kind(recorder, SpanKind.CLIENT)
    assert sent(server, "traceparent") == [traceparent(asking.context)]
    assert sent(server, "x-slo-class") == ["chat"]
    assert sent(server, "baggage") == []  # what else is in there is not ours to send
    served(server.headers[0])
    serving = by_kind(recorder, SpanKind.SERVER)
    assert serving.parent is not None
    assert serving.parent.is_remote
    assert ids(serving.parent) == ids(asking.context)
    assert (serving.attributes or {})[semconv.MEASURED_AT] == "server"
    assert class_of(recorder) == "chat"
    assert len(recorder.streams()) == 2


def test_a_request_that_is_tried_again_keeps_its_one_trace(client: Any, server: SseServer, recorder: Recorded) -> None:
    with pytest.raises(openai.InternalServerError):
        consume(client, "bad")
    asking = by_kind(recorder, SpanKind.CLIENT)
    assert [sent(server, "traceparent", request) for request in range(2)] == [[traceparent(asking.context)]] * 2


@pytest.mark.parametrize("name", ["traceparent", "Traceparent", "TRACEPARENT"])
@pytest.mark.parametrize("by", ["call", "client"])
def test_a_trace_context_that_is_there_stays(name: str, by: str, server: SseServer, recorder: Recorded) -> None:
    theirs = {name: "00-000000000000000000000000000000aa-00000000000000bb-01", "X-SLO-Class": "theirs"}
    server.replies["m"] = whole(1)
    defaults = theirs if by == "client" else None
    with openai.OpenAI(api_key="none", base_url=server.url, default_headers=defaults) as client:
        consume(client, extra_headers=theirs if by == "call" else None)
    assert sent(server, "traceparent") == [theirs[name]]
    assert sent(server, "x-slo-class") == ["theirs"]


@pytest.mark.parametrize("there", [{"Traceparent": "theirs"}, {"X-SLO-Class": "theirs"}, {}], ids=str)
def test_only_what_is_not_there_is_put_in(there: dict[str, str], recorder: Recorded) -> None:
    running = runtime.running()
    assert running is not None
    request = request_builder.request(
        running, otel_context.get_current(), operation="chat", model="m", gen_ai={}, ours={}, slo_class="chat"
    )
    recording = Recording(running, request, CallbackReader(None, None, "exact"))
    recording.announce(otel_context.get_current())
    headers = dict(there)
    inject(recording, headers)
    inject(recording, headers)  # never twice
    ours = {"traceparent": traceparent(recording.context), "x-slo-class": "chat"}
    names = {name.lower() for name in there}
    assert headers == {**{name: value for name, value in ours.items() if name not in names}, **there}
    recording.closed()


def test_the_callers_headers_are_left_as_they_are(client: Any, server: SseServer, recorder: Recorded) -> None:
    mine = {"x-mine": "1"}
    consume(client, extra_headers=mine)
    assert mine == {"x-mine": "1"}
    assert sent(server, "x-mine") == ["1"]


class Beneath:
    """Sees what an instrumentation of the HTTP client would see: the current span when a request leaves."""

    def __init__(self) -> None:
        self.spans: list[SpanContext] = []

    def __call__(self, request: Any) -> None:
        self.spans.append(trace.get_current_span().get_span_context())

    async def later(self, request: Any) -> None:
        self(request)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("model", ["m", "bad"])
def test_the_request_span_is_current_for_the_call_alone(
    mode: str, model: str, client: Any, server: SseServer, recorder: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    beneath = Beneath()
    before = otel_context.get_current()

    async def read() -> None:
        async with (
            httpx2.AsyncClient(event_hooks={"request": [beneath.later]}) as http,
            openai.AsyncOpenAI(api_key="none", base_url=server.url, http_client=http, max_retries=0) as aclient,
        ):
            outside = otel_context.get_current()
            try:
                stream = await aclient.chat.completions.create(model=model, messages=[], stream=True)
            finally:
                assert otel_context.get_current() is outside
            async for _ in stream:
                assert otel_context.get_current() is outside

    with contextlib.suppress(openai.InternalServerError):
        if mode == "async":
            asyncio.run(read())
        else:
            with httpx2.Client(event_hooks={"request": [beneath]}) as http:
                for _ in client.with_options(http_client=http, max_retries=0).chat.completions.create(
                    model=model, messages=[], stream=True
                ):
                    assert otel_context.get_current() == before
    assert otel_context.get_current() == before
    asking = by_kind(recorder, SpanKind.CLIENT)
    assert [ids(span) for span in beneath.spans] == [ids(asking.context)]
    assert "detach" not in caplog.text


def test_a_call_thrown_away_unfinished_detaches_nothing(recorder: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    running = runtime.running()
    assert running is not None
    request = request_builder.request(
        running, otel_context.get_current(), operation="chat", model="m", gen_ai={}, ours={}
    )
    recording = Recording(running, request, CallbackReader(None, None, "exact"))
    recording.announce(otel_context.get_current())
    attached = contextvars.copy_context().run(attach, recording)
    assert attached is not None
    detach(attached)  # here, where it was never attached
    recording.closed()
    assert ours(caplog) == []


def test_injecting_can_be_switched_off(client: Any, server: SseServer) -> None:
    otel_llm.instrument(exporter=InMemorySpanExporter(), slo_class="chat", propagate=False)
    try:
        consume(client)
    finally:
        otel_llm.uninstrument()
    consume(client)  # and nothing is left of us
    assert [sent(server, name, i) for name in ("traceparent", "x-slo-class") for i in range(2)] == [[]] * 4


def test_what_is_covered_is_recorded_once_by_its_cover(client: Any, server: SseServer, recorder: Recorded) -> None:
    with suppressing():
        consume(client)
    assert recorder.spans() == ()
    assert sent(server, "traceparent") == []
    consume(client)
    assert recorder.stream().outcome == "completed"


def test_the_trace_state_travels(recorder: Recorded) -> None:
    headers: dict[str, str] = {"traceparent": traceparent(PARENT), "tracestate": "vendor=x"}
    recording = served(headers)
    assert recording.context is not None
    assert recording.context.trace_id == 77
    onward: dict[str, str] = {}
    running = runtime.running()
    assert running is not None
    context = set_span_in_context(NonRecordingSpan(recording.context))
    request = request_builder.request(running, context, operation="chat", model="m", gen_ai={}, ours={})
    relaying = Recording(running, request, CallbackReader(None, None, "exact"))
    relaying.announce(context)
    inject(relaying, onward)
    assert onward == {"traceparent": traceparent(relaying.context), "tracestate": "vendor=x"}
    relaying.closed()


@pytest.mark.parametrize("malformed", ["", "00-0-0-01", "hello", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "\xff"])
def test_a_malformed_trace_context_begins_a_new_trace(malformed: str, recorder: Recorded) -> None:
    recording = served({"traceparent": malformed})
    assert recording.context is not None
    assert recording.context.is_valid
    assert by_kind(recorder, SpanKind.SERVER).parent is None


def test_two_trace_contexts_are_none(recorder: Recorded) -> None:
    served([("traceparent", traceparent(PARENT)), ("Traceparent", traceparent(PARENT))])
    assert by_kind(recorder, SpanKind.SERVER).parent is None


def test_under_an_open_server_span_the_request_is_internal(recorder: Recorded) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("web")
    with tracer.start_as_current_span("POST", set_span_in_context(NonRecordingSpan(PARENT)), SpanKind.SERVER) as post:
        served({"traceparent": traceparent(PARENT)})
    assert by_kind(recorder, SpanKind.INTERNAL).parent == post.get_span_context()


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"x-slo-class": "chat"}, "chat"),
        ({"X-SLO-Class": " chat "}, "chat"),
        ({"baggage": "otel_llm.slo.class=agent"}, "agent"),
        ({"x-slo-class": "chat", "baggage": "otel_llm.slo.class=agent"}, "chat"),
        ({"x-slo-class": "unheard", "baggage": "otel_llm.slo.class=agent"}, "agent"),
        ({"x-slo-class": "unheard"}, "default"),
        ({"x-slo-class": ""}, "default"),
        ({"baggage": "otel_llm.slo.class=unheard"}, "default"),
        ({}, "default"),
    ],
)
def test_a_class_that_came_with_a_request_must_be_known(headers: dict[str, str], expected: str) -> None:
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter, slo_class="default", slo_classes=("default", "chat", "agent"))
    try:
        served(headers)
        assert class_of(Recorded(exporter)) == expected
    finally:
        otel_llm.uninstrument()


@pytest.mark.parametrize("stated", ["a b", "<script>", "x" * 65, 'a"b', "a\nb", "\u0430", "chat,chat"])
def test_what_is_no_name_is_no_class(stated: str, recorder: Recorded) -> None:
    served({"x-slo-class": stated})
    served({"baggage": f"otel_llm.slo.class={stated}"})
    classes = [(stream.segments[0].attributes or {}).get(semconv.SLO_CLASS) for stream in recorder.streams()]
    assert set(classes) <= {None, "chat"}  # of baggage with a comma, the second entry is no pair
    assert classes[0] is None


def test_unknown_classes_are_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    otel_llm.instrument(exporter=InMemorySpanExporter(), slo_classes={"chat"})
    try:
        for _ in range(3):
            served({"x-slo-class": "secret-word"})
        running = runtime.running()
        assert running is not None
        assert running.refused_classes == 3
    finally:
        otel_llm.uninstrument()
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "secret-word" not in caplog.text


def test_what_an_application_states_itself_is_believed() -> None:
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter, slo_classes={"chat"})
    try:
        list(otel_llm.track(iter("ab"), slo_class="mine"))
        assert class_of(Recorded(exporter)) == "mine"
    finally:
        otel_llm.uninstrument()


@pytest.mark.parametrize("settings", [{"slo_classes": "chat"}, {"slo_class": "x", "slo_classes": ["chat"]}])
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="slo_class"):
        otel_llm.instrument(**settings)
    assert runtime.running() is None


@pytest.mark.parametrize(("flags", "streams"), [(1, 1), (0, 0)])
def test_sampling_by_parent_asks_the_remote_parent(flags: int, streams: int) -> None:
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter, sampling="parent")
    try:
        served({"traceparent": f"00-{77:032x}-{88:016x}-{flags:02x}"})
        assert len(Recorded(exporter).streams()) == streams
    finally:
        otel_llm.uninstrument()


@pytest.mark.parametrize(("flags", "streams"), [(1, 1), (0, 0)])
def test_sampling_by_parent_with_a_provider_asks_it(flags: int, streams: int) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)  # its sampler does as the parent did
    otel_llm.instrument(exporter=exporter, tracer_provider=provider, sampling="parent")
    try:
        recording = served({"traceparent": f"00-{77:032x}-{88:016x}-{flags:02x}"})
        assert recording.context is not None
        assert recording.context.trace_id == 77
        assert len(Recorded(exporter).streams()) == streams
    finally:
        otel_llm.uninstrument()


def test_facts_go_on_the_request_span(recorder: Recorded) -> None:
    running = runtime.running()
    assert running is not None
    request = request_builder.request(
        running, otel_context.get_current(), operation="chat", model="m", gen_ai={}, ours={}, server=True
    )
    recording = Recording(running, request, CallbackReader(None, None, "exact"))
    recording.attributes({semconv.GEN_AI_LATENCY_QUEUE: 0.5, semconv.OUTCOME: "ours is not theirs to say"})
    recording.announce(otel_context.get_current())
    recording.attributes({semconv.GEN_AI_LATENCY_QUEUE: 0.25})
    recording.ended("error", "EngineDead")
    attributes = dict(by_kind(recorder, SpanKind.SERVER).attributes or {})
    assert attributes[semconv.GEN_AI_LATENCY_QUEUE] == 0.25
    assert (attributes[semconv.OUTCOME], attributes[semconv.ERROR_TYPE]) == ("error", "EngineDead")


def test_headers_that_cannot_be_written_hurt_nobody(recorder: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    class Sealed(dict[str, str]):
        def __setitem__(self, name: str, value: str) -> None:
            raise RuntimeError("sealed")

    running = runtime.running()
    assert running is not None
    request = request_builder.request(
        running, otel_context.get_current(), operation="chat", model="m", gen_ai={}, ours={}
    )
    recording = Recording(running, request, CallbackReader(None, None, "exact"))
    inject(recording, Sealed())  # not announced: nothing to say
    recording.announce(otel_context.get_current())
    inject(recording, Sealed())
    recording.closed()
    assert recorder.stream().outcome == "cancelled"
    assert len(ours(caplog)) == 1
    assert not trace.get_current_span().get_span_context().is_valid
