"""What passes through the middleware, message for message, driven as a server drives an application."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from support.instrumentation.asgi_by_hand import (
    END,
    QUESTION,
    START,
    App,
    Message,
    Server,
    piece,
    scope_of,
    serve,
    streams,
)
from support.instrumentation.asgi_server import data_of
from support.instrumentation.recorded import Recorded
from support.logs import ours
from support.sse_server import DONE

import otel_llm
from otel_llm import semconv
from otel_llm.instrumentation.core import server_context
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.server.asgi import StreamMiddleware
from otel_llm.instrumentation.server.exchange import Exchange


def test_messages_are_the_servers_and_the_applications_own(recorder: Recorded) -> None:
    server = Server(
        {"type": "http.request", "body": QUESTION[:5], "more_body": True},
        {"type": "http.request", "body": QUESTION[5:], "more_body": False},
    )
    got: list[Message] = []
    mine = [START, piece("one"), END]
    progress: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert server.given == 0, "read ahead"
        got.append(await receive())
        assert server.given == 1, "read ahead"
        got.append(await receive())
        for message in mine:
            await send(message)
            progress.append(len(server.sent))

    serve(app, server)
    assert [a is b for a, b in zip(got, server.messages, strict=True)] == [True, True]
    assert [a is b for a, b in zip(server.sent, mine, strict=True)] == [True] * 3
    assert progress == [1, 2, 3], "held back"
    assert recorder.stream().outcome == "completed"


def test_committed_when_the_headers_are_here(recorder: Recorded) -> None:
    between: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        between.append(time.time_ns())
        await streams(scope, receive, send)

    serve(
        app,
        Server(
            {"type": "http.request", "body": QUESTION[:5], "more_body": True},
            {"type": "http.request", "body": QUESTION[5:], "more_body": False},
        ),
    )
    assert (recorder.stream().segments[0].start_time or 0) < between[0]


def test_back_pressure_stays(recorder: Recorded) -> None:
    async def main() -> None:
        drained = asyncio.Event()
        asked: list[Message] = []

        async def send(message: Message) -> None:
            asked.append(message)
            await drained.wait()

        task = asyncio.create_task(StreamMiddleware(streams)(scope_of(), Server().receive, send))
        for _ in range(10):
            await asyncio.sleep(0)
        assert asked == [START]
        drained.set()
        await task
        assert len(asked) == 4

    asyncio.run(main())


@pytest.mark.parametrize(
    "scope",
    [
        scope_of(kind="websocket"),
        scope_of("/v1/models"),
        scope_of(method="GET"),
    ],
    ids=["websocket", "another path", "another method"],
)
def test_other_connections_get_the_servers_own_functions(recorder: Recorded, scope: dict[str, Any]) -> None:
    server = Server()
    seen: list[Any] = []

    async def app(*given: Any) -> None:
        seen.extend(given)

    serve(app, server, scope)
    assert seen == [scope, server.receive, server.send]
    assert seen[0] is scope


def test_the_end_of_the_lifespan_waits_for_what_was_recorded(
    recorder: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "uvicorn.server", raising=False)  # a server without a hook of its own
    said = [{"type": f"lifespan.{word}"} for word in ("startup.complete", "shutdown.complete")]
    sent_before: list[tuple[int, int]] = []

    class Lifespan(Server):
        async def send(self, message: Message) -> None:
            spans = recorder.exporter.get_finished_spans()
            requests = sum(span.name != semconv.SEGMENT_SPAN for span in spans)
            sent_before.append((sum(len(span.events) for span in spans), requests))
            await super().send(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(said[0])
        for _ in otel_llm.track(iter("abc"), model="m"):
            pass
        await send(said[1])

    server = Lifespan()
    serve(app, server, {"type": "lifespan"})
    assert server.sent == said
    assert all(ours is theirs for ours, theirs in zip(server.sent, said, strict=True))
    assert sent_before == [(0, 0), (3, 1)]  # tokens, in as many segments as were cut meanwhile, and request spans


def outcome_when(recorder: Recorded, app: App, server: Server, error: type[BaseException] | None = None) -> object:
    with pytest.raises(error) if error else contextlib.nullcontext():
        serve(app, server)
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.OUTCOME] == recorder.stream().outcome
    return recorder.stream().outcome


def test_a_send_that_fails(recorder: Recorded) -> None:
    assert outcome_when(recorder, streams, Server(breaks_at=2), OSError) == "cancelled"


def test_a_last_send_that_fails(recorder: Recorded) -> None:
    assert outcome_when(recorder, streams, Server(breaks_at=3), OSError) == "cancelled"


def test_a_disconnect_after_the_reply_changes_nothing(recorder: Recorded) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await streams(scope, receive, send)
        assert (await receive())["type"] == "http.disconnect"
        raise RuntimeError

    server = Server({"type": "http.request", "body": QUESTION}, {"type": "http.disconnect"})
    assert outcome_when(recorder, app, server, RuntimeError) == "completed"


def test_a_disconnect_that_the_application_makes_an_error_of(recorder: Recorded) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        assert (await receive())["type"] == "http.disconnect"
        raise RuntimeError

    server = Server({"type": "http.request", "body": QUESTION}, {"type": "http.disconnect"})
    assert outcome_when(recorder, app, server, RuntimeError) == "cancelled"


def test_an_application_that_stops_halfway(recorder: Recorded) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        await send(piece("one"))

    assert outcome_when(recorder, app, Server()) == "error"


def test_a_cancelled_task(recorder: Recorded) -> None:
    async def main() -> None:
        reached = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send(START)
            await send(piece("one"))
            reached.set()
            await asyncio.Event().wait()

        server = Server()
        task = asyncio.create_task(StreamMiddleware(app)(scope_of(), server.receive, server.send))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert (recorder.stream().outcome, recorder.stream().last[semconv.TOKENS]) == ("cancelled", 1)


def test_a_dropped_coroutine(recorder: Recorded) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        server = Server()
        serving: Any = StreamMiddleware(app)(scope_of(), server.receive, server.send)
        serving.send(None)
        serving.close()

    asyncio.run(main())
    assert recorder.stream().outcome == "cancelled"


def test_the_request_is_known_to_the_task_and_forgotten_after_it(recorder: Recorded) -> None:
    known: list[object] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await streams(scope, receive, send)
        known.append(server_context.current_server_context())

    async def main() -> None:
        server = Server()
        await StreamMiddleware(app)(scope_of(), server.receive, server.send)
        known.append(server_context.current_server_context())

    asyncio.run(main())
    assert isinstance(known[0], server_context.ServerContext)
    assert known[1] is None


def test_two_requests_at_once_are_two_streams(recorder: Recorded) -> None:
    async def main() -> None:
        app = StreamMiddleware(streams)
        servers = [Server() for _ in range(20)]
        await asyncio.gather(*(app(scope_of(), server.receive, server.send) for server in servers))

    asyncio.run(main())
    assert [stream.last[semconv.TOKENS] for stream in recorder.streams()] == [2] * 20


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        *((Exchange, method) for method in ("__init__", "take", "_begin", "starts", "sends", "left")),
        (server_context.ServerContext, "record_facts"),
    ],
)
def test_a_bug_of_ours_is_one_warning_and_no_more(
    recorder: Recorded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, owner: type, method: str
) -> None:
    def bug(*args: Any, **kwargs: Any) -> None:
        raise KeyError("our own")

    monkeypatch.setattr(owner, method, bug)
    server = Server({"type": "http.request", "body": QUESTION}, {"type": "http.disconnect"})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await streams(scope, receive, send)
        await receive()

    with caplog.at_level(logging.WARNING, "otel_llm"):
        serve(app, server)
    assert [message["type"] for message in server.sent] == ["http.response.start"] + ["http.response.body"] * 3
    assert len(ours(caplog)) == 1


def test_a_server_span_that_is_open_already_is_the_parent() -> None:
    spans, segments = InMemorySpanExporter(), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    otel_llm.instrument(exporter=segments, tracer_provider=provider)
    try:
        with provider.get_tracer("http").start_as_current_span("POST /v1/chat/completions", kind=SpanKind.SERVER):
            serve(
                streams, Server(), scope_of(headers=[(b"traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01")])
            )
        ours, theirs = spans.get_finished_spans()
        assert ours.kind is SpanKind.INTERNAL
        assert ours.parent is not None
        assert theirs.context is not None
        assert ours.parent.span_id == theirs.context.span_id
        assert trace.get_current_span() is trace.INVALID_SPAN
    finally:
        otel_llm.uninstrument()


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    server = Server()
    seen: list[Any] = []

    async def app(*given: Any) -> None:
        seen.extend(given)

    serve(app, server)
    assert seen[1:] == [server.receive, server.send]


def test_a_stopped_recorder_is_not_given_back() -> None:
    otel_llm.instrument(exporter=InMemorySpanExporter())
    application = StreamMiddleware(streams)
    asyncio.run(application(scope_of(kind="lifespan"), Server().receive, Server().send))
    otel_llm.uninstrument()
    asyncio.run(application(scope_of(), Server().receive, Server().send))
    assert runtime.running() is None


def test_done_is_no_token(recorder: Recorded) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        await send({"type": "http.response.body", "body": data_of(DONE), "more_body": True})
        await send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})
        await send({"type": "http.response.body"})

    serve(app, Server())
    assert (recorder.stream().outcome, recorder.stream().last[semconv.TOKENS]) == ("completed", 0)


@pytest.mark.parametrize(
    ("stated", "recorded"),
    [("m" * 10_000, "m" * 256), ("\ud800half", "?half"), ("模型", "模型"), ("", None), (7, None)],
    ids=["long", "half a character", "another script", "empty", "a number"],
)
def test_a_model_of_a_client_can_be_sent_whatever_it_is(
    stated: object, recorded: str | None, recorder: Recorded
) -> None:
    """One name that no exporter can encode would cost all spans of its batch."""
    question = json.dumps({"model": stated, "stream": True}).encode()
    serve(streams, Server({"type": "http.request", "body": question, "more_body": False}))
    [request] = recorder.requests()
    assert (request.attributes or {}).get(semconv.GEN_AI_REQUEST_MODEL) == recorded
    assert request.name == ("chat" if recorded is None else f"chat {recorded}")


def test_a_clients_headers_leave_no_word_in_the_log(recorder: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    secret = b"sk-live-999 \x9b1m"
    names = (b"baggage", b"tracestate", b"traceparent", b"x-request-id", b"x-slo-class")
    for length in (1, 400, 5000):
        headers = [
            (b"traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"),
            *((one, secret * length) for one in names),
        ]
        serve(streams, Server(), scope_of(headers=headers))
    assert "sk-live" not in caplog.text
    assert len(ours(caplog)) == 1  # of the unknown class
