"""A gateway's request and the model calls that its handler makes: one trace, one class, one end, in every framework."""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import django
import flask
import openai
import pytest
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.urls import path
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from support.instrumentation.asgi_server import AsgiServer, Served, until
from support.instrumentation.gateways import BODIES, QUESTION, SETTINGS, by_async_sdk, by_sync_sdk, event, gateway
from support.instrumentation.recorded import Recorded, Stream, ids
from support.logs import ours
from support.pairwise import pairwise
from support.patience import WAIT_S
from support.sse_server import DONE, Gate, Reply, SseServer, Wait, chunk, whole, words

import otel_llm
from otel_llm import semconv
from otel_llm.instrumentation.request import propagation
from otel_llm.instrumentation.server import wsgi
from otel_llm.instrumentation.server.asgi import StreamMiddleware

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CAME = {"traceparent": f"00-{TRACE}-{SPAN}-01", "x_slo_class": "voice", "content_type": "application/json"}
STREAMED = {**QUESTION, "stream": True}


# At import: a look at all objects of the process, as some tests take, fails on settings that are not configured.
settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="of no use",
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
    LOGGING_CONFIG=None,
)
django.setup()

MODEL: list[str] = []
"""The URL of the model that Django's views call: the newest."""


def flask_gateway(url: str) -> flask.Flask:
    """Return a Flask application that streams at `/chat` and at the API's path."""
    app = flask.Flask("gateway")

    @app.post("/v1/chat/completions")
    @app.post("/chat")
    def chat() -> flask.Response:
        flask.request.get_json(force=True)
        return flask.Response(flask.stream_with_context(by_sync_sdk(url)), mimetype="text/event-stream")

    @app.post("/whole")
    def whole() -> dict[str, Any]:
        return {"answer": "all of it"}

    return app


def chat(_request: HttpRequest) -> HttpResponseBase:
    return StreamingHttpResponse(by_sync_sdk(MODEL[-1]), content_type="text/event-stream")


async def async_chat(_request: HttpRequest) -> HttpResponseBase:
    async def body() -> AsyncIterator[str]:
        async for data in by_async_sdk(MODEL[-1]):
            yield data

    return StreamingHttpResponse(body(), content_type="text/event-stream")


def text(_request: HttpRequest) -> HttpResponseBase:
    def body() -> Iterator[str]:
        yield from ("one ", "two ", "three")

    return StreamingHttpResponse(body())


def whole_answer(_request: HttpRequest) -> HttpResponseBase:
    return JsonResponse({"answer": "all of it"})


urlpatterns = [
    path("chat", chat),
    path("v1/chat/completions", chat),
    path("async/chat", async_chat),
    path("async/chat/completions", async_chat),
    path("text", text),
    path("whole", whole_answer),
]


def django_wsgi(url: str) -> WSGIHandler:
    """Return Django's application for WSGI."""
    MODEL.append(url)
    return get_wsgi_application()


def django_asgi(url: str) -> ASGIHandler:
    """Return Django's application for ASGI."""
    MODEL.append(url)
    return get_asgi_application()


class QuietServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""


class QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def get_stderr(self) -> Any:
        return Nowhere()


class Nowhere:
    def write(self, text: str) -> None:
        pass

    def flush(self) -> None:
        pass


class WsgiServer(Served):
    """Runs a WSGI application on a free port, in a thread of its own."""

    def __init__(self, app: Any) -> None:
        self._server = QuietServer(("127.0.0.1", 0), QuietHandler)
        self._server.set_app(app)
        self.port = self._server.server_address[1]
        self.base_url = f"http://127.0.0.1:{self.port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(WAIT_S)


@dataclass(frozen=True)
class Framework:
    """An application of one framework in our middleware, and its two paths: an own one, and one that is known."""

    app: Callable[[str], Any]
    own: str = "/chat"
    known: str = "/v1/chat/completions"
    wsgi: bool = False
    """Whether it is served by WSGI, whose server sees that a client left when it writes to it."""


def in_flask(url: str) -> Any:
    app: Any = flask_gateway(url)
    app.wsgi_app = wsgi.StreamMiddleware(app.wsgi_app, paths=["/chat", "/whole"])
    return app


def in_fastapi(body: str) -> Framework:
    return Framework(lambda url: StreamMiddleware(gateway(url, BODIES[body]), paths=["/chat"]))


GATEWAYS = {
    **{f"FastAPI, {body}": in_fastapi(body) for body in BODIES},
    "Flask": Framework(in_flask, wsgi=True),
    "Django, WSGI": Framework(
        lambda url: wsgi.StreamMiddleware(django_wsgi(url), paths=["/chat", "/text", "/whole"]), wsgi=True
    ),
    "Django, ASGI": Framework(
        lambda url: StreamMiddleware(django_asgi(url), paths=["/async/chat"]), "/async/chat", "/async/chat/completions"
    ),
}


def served(name: str, url: str) -> Any:
    app = GATEWAYS[name].app(url)
    if GATEWAYS[name].wsgi:
        return WsgiServer(app)
    return AsgiServer(app, lifespan="off") if name.startswith("Django") else AsgiServer(app)


@pytest.fixture
def model(server: SseServer) -> SseServer:
    server.replies["m"] = whole(3)
    return server


def rows(recorder: Recorded) -> dict[str, tuple[ReadableSpan, Stream]]:
    """Return the request span and the stream of the client's side and of the server's."""
    until(lambda: len([stream for stream in recorder.streams() if stream.outcome]) == 2)
    streams = {stream.parents[0]: stream for stream in recorder.streams()}
    spans = [span for span in recorder.requests() if ids(span.context) in streams]
    return {str((span.attributes or {})[semconv.MEASURED_AT]): (span, streams[ids(span.context)]) for span in spans}


def classes(sides: dict[str, tuple[ReadableSpan, Stream]]) -> set[object]:
    return {(stream.segments[0].attributes or {}).get(semconv.SLO_CLASS) for _, stream in sides.values()}


CLIENTS_HEADERS = {"from a traced client": CAME, "from a browser": {"content_type": "application/json"}}


@pytest.mark.parametrize(*pairwise({"name": GATEWAYS, "own": (True, False), "client": CLIENTS_HEADERS}))
def test_both_rows_share_trace_and_class(
    name: str, own: bool, client: str, model: SseServer, recorder: Recorded
) -> None:
    came = CLIENTS_HEADERS[client]
    with served(name, model.url) as server:
        assert b"[DONE]" in server.post(STREAMED, GATEWAYS[name].own if own else GATEWAYS[name].known, **came)
    sides = rows(recorder)
    (calling, called), (serving, replied) = sides["client"], sides["server"]
    assert ids(calling.parent) == ids(serving.context)
    assert (called.outcome, replied.outcome) == ("completed", "completed")
    # An own path reads the chunks of the known APIs, too.
    assert (called.last[semconv.TOKENS], replied.last[semconv.TOKENS]) == (3, 3)
    assert classes(sides) == {came.get("x_slo_class")}
    assert serving.kind is SpanKind.SERVER
    if came is CAME:
        assert f"{ids(serving.parent)[1]:016x}" == SPAN
    if name == "Flask" and not own:  # whose view reads the request; Django's does not
        assert serving.name == "chat m"


def test_a_sync_endpoint_in_a_thread(model: SseServer, recorder: Recorded) -> None:
    with AsgiServer(StreamMiddleware(gateway(model.url))) as server:
        assert b"[DONE]" in server.post(STREAMED, "/sync/chat/completions", **CAME)
    sides = rows(recorder)
    assert ids(sides["client"][0].parent) == ids(sides["server"][0].context)
    assert classes(sides) == {"voice"}


def test_a_path_that_is_not_recorded_hands_trace_and_class_on(model: SseServer, recorder: Recorded) -> None:
    with AsgiServer(StreamMiddleware(gateway(model.url))) as server:
        server.post(STREAMED, "/chat", **CAME)
    [calling] = recorder.requests()
    assert calling.parent is not None
    assert (f"{calling.parent.trace_id:032x}", f"{calling.parent.span_id:016x}") == (TRACE, SPAN)
    assert (recorder.stream().segments[0].attributes or {})[semconv.SLO_CLASS] == "voice"


def test_so_does_one_of_wsgi(model: SseServer, recorder: Recorded) -> None:
    with WsgiServer(wsgi.StreamMiddleware(flask_gateway(model.url))) as running:
        running.post(STREAMED, "/chat", **CAME)
    [calling] = recorder.requests()
    assert f"{ids(calling.parent)[1]:016x}" == SPAN
    assert (recorder.stream().segments[0].attributes or {})[semconv.SLO_CLASS] == "voice"


def test_text_that_django_streams(recorder: Recorded) -> None:
    with served("Django, WSGI", "") as running:
        assert b"one two three" in running.post({}, "/text")
    assert (recorder.stream().outcome, recorder.stream().last[semconv.TOKENS]) == ("completed", 3)


@pytest.mark.parametrize("name", ["Flask", "Django, WSGI"])
def test_json_of_its_own_is_said(name: str, recorder: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    with served(name, "") as running:
        assert b"all of it" in running.post({}, "/whole")
    assert recorder.spans() == ()
    [warned] = ours(caplog)
    assert "/whole (application/json)" in warned


def test_a_background_task_calls_within_the_request(model: SseServer, recorder: Recorded) -> None:
    async def remember(url: str) -> None:
        async for _ in by_async_sdk(url):
            pass

    with AsgiServer(StreamMiddleware(gateway(model.url, background=remember))) as server:
        server.post(STREAMED, **CAME)
        until(lambda: len([stream for stream in recorder.streams() if stream.outcome]) == 3)
    assert [stream.outcome for stream in recorder.streams()] == ["completed"] * 3
    assert {span.context.trace_id for span in recorder.requests() if span.context} == {int(TRACE, 16)}


def test_spans_of_the_application_join_the_trace(model: SseServer) -> None:
    spans, segments = InMemorySpanExporter(), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    otel_llm.instrument(exporter=segments, tracer_provider=provider)

    async def body(url: str) -> AsyncIterator[str]:
        with provider.get_tracer("mine").start_as_current_span("step"):
            async for data in by_async_sdk(url):
                yield data

    try:
        with AsgiServer(StreamMiddleware(gateway(model.url, body))) as server:
            server.post(STREAMED)
        by_name = {(span.name, span.kind): span for span in spans.get_finished_spans()}
        serving = by_name["chat m", SpanKind.SERVER]
        step = by_name["step", SpanKind.INTERNAL]
        assert ids(step.parent) == ids(serving.context)
        assert ids(by_name["chat m", SpanKind.CLIENT].parent) == ids(step.context)
        assert trace.get_current_span() is trace.INVALID_SPAN
    finally:
        otel_llm.uninstrument()


def test_nothing_is_current_after_a_request(model: SseServer, recorder: Recorded) -> None:
    async def main() -> list[object]:
        seen: list[object] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.append(baggage.get_baggage(semconv.SLO_CLASS))

        headers = [(b"x-slo-class", b"voice")]
        for route in ("/chat", "/v1/chat/completions"):
            scope = {"type": "http", "method": "POST", "path": route, "headers": headers}
            await StreamMiddleware(app)(scope, None, None)  # type: ignore[arg-type]
            seen.append(baggage.get_baggage(semconv.SLO_CLASS))
        return seen

    assert asyncio.run(main()) == ["voice", None, "voice", None]


def test_nothing_is_attached_where_propagation_is_off(model: SseServer) -> None:
    otel_llm.instrument(exporter=InMemorySpanExporter(), propagate=False)
    try:
        context = propagation.extract([(b"x-slo-class", b"voice")])
        assert propagation.around(context, trace.INVALID_SPAN) is None
    finally:
        otel_llm.uninstrument()


# Another server instrumentation.


class ServerSpans:
    """A server instrumentation inside the middleware, as OpenTelemetry's are: SERVER unless a span is current."""

    def __init__(self, app: Any, provider: TracerProvider) -> None:
        self._app = app
        self._tracer = provider.get_tracer("http")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        current = trace.get_current_span() is not trace.INVALID_SPAN
        kind = SpanKind.INTERNAL if current else SpanKind.SERVER
        with self._tracer.start_as_current_span("POST", kind=kind):
            await self._app(scope, receive, send)


def test_a_server_instrumentation_inside_keeps_its_kind_and_is_the_parent(
    model: SseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "opentelemetry.instrumentation.asgi"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    otel_llm.instrument(exporter=InMemorySpanExporter(), tracer_provider=provider)
    try:
        with AsgiServer(StreamMiddleware(ServerSpans(gateway(model.url), provider))) as server:
            server.post(STREAMED)
        by_kind = {span.kind: span for span in spans.get_finished_spans()}
        outer = by_kind[SpanKind.SERVER]
        assert outer.name == "POST"
        assert ids(by_kind[SpanKind.INTERNAL].parent) == ids(outer.context)
        assert ids(by_kind[SpanKind.CLIENT].parent) == ids(outer.context)
    finally:
        otel_llm.uninstrument()


def test_a_trace_that_an_instrumentation_began_later_does_not_part_the_rows(
    model: SseServer, monkeypatch: pytest.MonkeyPatch, recorder: Recorded
) -> None:
    """Django's opens its span behind the body, hence in a trace of its own if none came with the request."""
    name = "opentelemetry.instrumentation.asgi"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    provider = TracerProvider()

    async def body(url: str) -> AsyncIterator[str]:
        with provider.get_tracer("http").start_as_current_span("POST", kind=SpanKind.SERVER):
            async for data in by_async_sdk(url):
                yield data

    with AsgiServer(StreamMiddleware(gateway(model.url, body))) as server:
        server.post(STREAMED)
    sides = rows(recorder)
    assert ids(sides["client"][0].parent) == ids(sides["server"][0].context)


# A browser that leaves.


@pytest.fixture
def gate(server: SseServer) -> Iterator[Gate]:
    """A model that sends three words, and three more behind a gate."""
    held = Gate()
    server.replies["m"] = Reply([*words(3), held, *words(3), chunk(finish="stop"), DONE])
    yield held
    held.open()


def leave_after_three(server: Served, path: str = "/v1/chat/completions") -> None:
    with server.connect(STREAMED, path, **CAME) as connection:
        got = b""
        while b"w2" not in got:
            got += connection.recv(65536)


@pytest.mark.parametrize("name", GATEWAYS)
def test_a_browser_that_leaves_cancels_both(name: str, server: SseServer, recorder: Recorded) -> None:
    gate = Gate()
    more = [step for word in words(300) for step in (word, Wait(0.01))]
    server.replies["m"] = Reply([*words(3), gate, *more, chunk(finish="stop"), DONE])
    with served(name, server.url) as running:
        leave_after_three(running, GATEWAYS[name].own)
        if GATEWAYS[name].wsgi:
            gate.open()
        sides = rows(recorder)
        gate.open()
    assert [sides[side][1].outcome for side in ("client", "server")] == ["cancelled", "cancelled"]
    if not GATEWAYS[name].wsgi:
        assert [sides[side][1].last[semconv.TOKENS] for side in ("client", "server")] == [3, 3]
    assert classes(sides) == {"voice"}


def test_what_is_read_after_that_passes_uncounted(gate: Gate, server: SseServer, recorder: Recorded) -> None:
    got: list[str] = []
    finished = threading.Event()
    # None is kept once it is done: FastAPI's caches keep the handler, and with it what it closes over, for good.
    tasks: set[asyncio.Task[None]] = set()

    async def body(url: str) -> AsyncIterator[str]:
        queue: asyncio.Queue[str | None] = asyncio.Queue()

        async def read(alone: bool) -> None:
            async with openai.AsyncOpenAI(base_url=url, **SETTINGS) as client:
                async for one in await client.chat.completions.create(**QUESTION, stream=True):
                    if alone and one.choices[0].delta.content:
                        got.append(one.choices[0].delta.content)
                        await queue.put(event(one))
            if alone:
                finished.set()

        for alone in (True, False):
            task = asyncio.create_task(read(alone))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        while (data := await queue.get()) is not None:
            yield data

    with AsgiServer(StreamMiddleware(gateway(server.url, body))) as serving:
        leave_after_three(serving)
        until(lambda: len([stream for stream in recorder.streams() if stream.outcome]) == 3)
        gate.open()
        until(finished.is_set)
    assert got == [f"w{i} " for i in (0, 1, 2, 0, 1, 2)]
    assert [stream.outcome for stream in recorder.streams()] == ["cancelled"] * 3
    assert max(int(str(stream.last[semconv.TOKENS])) for stream in recorder.streams()) == 3


def test_a_call_behind_the_whole_reply_goes_on(gate: Gate, server: SseServer, recorder: Recorded) -> None:
    """A background task's: the client that hung up had all that it asked for."""
    server.replies["short"] = whole(1)
    begun = threading.Event()

    async def short(url: str) -> AsyncIterator[str]:
        async with openai.AsyncOpenAI(base_url=url, **SETTINGS) as client:
            async for one in await client.chat.completions.create(**{**QUESTION, "model": "short"}, stream=True):
                yield event(one)

    async def remember(url: str) -> None:
        async for data in by_async_sdk(url):
            if "w2" in data:
                begun.set()

    with AsgiServer(StreamMiddleware(gateway(server.url, short, background=remember))) as serving:
        serving.post(STREAMED)
        until(begun.is_set)
        gate.open()
        until(lambda: len([stream for stream in recorder.streams() if stream.outcome]) == 3)
    assert [stream.outcome for stream in recorder.streams()] == ["completed"] * 3


class Driven:
    """A request that a test drives by hand: its handler calls the model, keeps the stream, and goes on as told."""

    def __init__(self, url: str, *messages: dict[str, Any]) -> None:
        self._url = url
        self._messages = [{"type": "http.request", "body": b'{"model": "m", "stream": true}'}, *messages]
        self.reached = asyncio.Event()
        self.chunks: Any = None

    async def receive(self) -> dict[str, Any]:
        return self._messages.pop(0)

    async def send(self, message: Any) -> None:
        pass

    async def call(self) -> None:
        async with openai.AsyncOpenAI(base_url=self._url, **SETTINGS) as client:
            self.chunks = aiter(await client.chat.completions.create(**QUESTION, stream=True))
            await anext(self.chunks)
            self.reached.set()

    def served_by(self, app: Any) -> Any:
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
        return StreamMiddleware(app)(scope, self.receive, self.send)


def test_a_handler_that_is_cancelled_cancels_its_calls(gate: Gate, server: SseServer, recorder: Recorded) -> None:
    async def main() -> None:
        driven = Driven(server.url)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            calling = asyncio.create_task(driven.call())  # of its own: the handler's cancellation does not reach it
            await calling
            await asyncio.Event().wait()

        task = asyncio.create_task(driven.served_by(app))
        await driven.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [stream.outcome for stream in recorder.streams()] == ["cancelled", "cancelled"]
        gate.open()

    asyncio.run(main())


def test_a_disconnect_behind_the_whole_reply_ends_no_call(gate: Gate, server: SseServer, recorder: Recorded) -> None:
    async def main() -> None:
        driven = Driven(server.url, {"type": "http.disconnect"})

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send(
                {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
            )
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
            async with openai.AsyncOpenAI(base_url=server.url, **SETTINGS) as client:
                chunks = aiter(await client.chat.completions.create(**QUESTION, stream=True))
                await anext(chunks)
                assert (await receive())["type"] == "http.disconnect"
                gate.open()
                async for _ in chunks:
                    pass

        await driven.served_by(app)

    asyncio.run(main())
    assert [stream.outcome for stream in recorder.streams()] == ["completed", "completed"]
    assert recorder.streams()[1].last[semconv.TOKENS] == 6
