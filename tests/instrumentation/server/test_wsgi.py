"""The WSGI middleware: PEP 3333 to the letter. `test_gateways.py` has Flask and Django on a real server."""

from __future__ import annotations

import gc
import gzip
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.util import FileWrapper, setup_testing_defaults
from wsgiref.validate import validator

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from support.instrumentation.asgi_server import data_of
from support.instrumentation.gateways import QUESTION
from support.instrumentation.recorded import Recorded
from support.logs import ours
from support.sse_server import DONE, chunk

import otel_llm
from otel_llm import semconv
from otel_llm.instrumentation.core import server_context
from otel_llm.instrumentation.server import exchange
from otel_llm.instrumentation.server.wsgi import StreamMiddleware

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CAME = {"traceparent": f"00-{TRACE}-{SPAN}-01", "x_slo_class": "voice", "content_type": "application/json"}
STREAMED = {**QUESTION, "stream": True}
EVENT_STREAM = [("Content-Type", "text/event-stream")]
REPLY = [data_of(chunk({"content": word})) for word in ("one ", "two ")] + [data_of(DONE)]


# PEP 3333.


class Gateway:
    """A server by hand: the status and headers of its response, and the parts that it was handed."""

    def __init__(self, body: bytes = json.dumps(STREAMED).encode(), path: str = "/v1/chat/completions") -> None:
        self.environ: dict[str, Any] = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "SCRIPT_NAME": "",
            "CONTENT_LENGTH": str(len(body)),
            "CONTENT_TYPE": "application/json",
            "HTTP_X_SLO_CLASS": "voice",
            "wsgi.input": io.BytesIO(body),
        }
        setup_testing_defaults(self.environ)
        self.started: list[tuple[Any, ...]] = []
        self.written: list[bytes] = []

    def start_response(self, *args: Any, **named: Any) -> Callable[[bytes], object]:
        if self.started and len(args) > 2 and args[2] is not None:
            raise args[2][1].with_traceback(args[2][2])
        self.started.append((*args, *named.items()))
        return self.written.append

    def serve(self, app: Any, **settings: Any) -> Any:
        return StreamMiddleware(app, **settings)(self.environ, self.start_response)


class Reply3:
    """An application's reply, which counts what is asked of it."""

    def __init__(self, pieces: Iterable[bytes] = REPLY) -> None:
        self._pieces = iter(pieces)
        self.asked = 0
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self.asked += 1
        return next(self._pieces)

    def close(self) -> None:
        self.closed += 1


def answering(body: Any) -> Any:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        environ["wsgi.input"].read()
        start_response("200 OK", EVENT_STREAM)
        return body

    return app


def test_pieces_pass_one_for_one_and_the_reply_is_closed_once(recorder: Recorded) -> None:
    server, reply = Gateway(), Reply3()
    body = server.serve(answering(reply))
    assert reply.asked == 0, "read ahead"
    for number, piece in enumerate(body, 1):
        assert piece is REPLY[number - 1]
        assert reply.asked == number, "read ahead"
    assert reply.closed == 0
    body.close()
    assert reply.closed == 1
    assert server.started == [("200 OK", EVENT_STREAM)]
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("completed", 2)
    assert (stream.segments[0].attributes or {})[semconv.SLO_CLASS] == "voice"
    assert (stream.segments[0].attributes or {})[semconv.GEN_AI_REQUEST_MODEL] == "m"


def test_closed_before_its_end(recorder: Recorded) -> None:
    reply = Reply3()
    body = Gateway().serve(answering(reply))
    next(body)
    body.close()
    assert reply.closed == 1
    assert (recorder.stream().outcome, recorder.stream().last[semconv.TOKENS]) == ("cancelled", 1)


@pytest.mark.usefixtures("own_garbage")
@pytest.mark.parametrize("read", [0, 1])
def test_dropped_without_being_closed(read: int, recorder: Recorded) -> None:
    body = Gateway().serve(answering(Reply3()))
    for _ in range(read):
        next(body)
    del body
    gc.collect()
    assert recorder.stream().outcome == "abandoned"


def test_a_reply_that_failed_is_closed_without_its_client_leaving(recorder: Recorded) -> None:
    calls: list[Any] = []

    def pieces() -> Iterator[bytes]:
        calls.append(iter(otel_llm.track(iter(["one", "two"]))))
        next(calls[0])
        raise RuntimeError
        yield b""

    body = Gateway().serve(answering(Reply3(pieces())))
    with pytest.raises(RuntimeError):
        next(body)
    body.close()
    assert list(calls[0]) == ["two"]
    assert [stream.outcome for stream in recorder.streams()] == ["error", "completed"]


def test_an_exception_in_the_reply(recorder: Recorded) -> None:
    def pieces() -> Iterator[bytes]:
        yield REPLY[0]
        raise RuntimeError("private words")

    reply = Reply3(pieces())
    body = Gateway().serve(answering(reply))
    next(body)
    with pytest.raises(RuntimeError, match="private words"):
        next(body)
    body.close()
    assert reply.closed == 1
    assert recorder.stream().outcome == "error"
    assert "private" not in str([span.to_json() for span in recorder.spans()])


def test_an_exception_in_the_application(recorder: Recorded) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        environ["wsgi.input"].read()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        Gateway().serve(app)
    assert recorder.stream().outcome == "error"


@pytest.mark.parametrize("late", [False, True], ids=["before the head left", "after it left"])
def test_exc_info(late: bool, recorder: Recorded) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        environ["wsgi.input"].read()
        if late:
            start_response("200 OK", EVENT_STREAM)
        try:
            int("no")
        except ValueError:
            start_response("500 Internal Server Error", [], sys.exc_info())
        return [b"sorry"]

    server = Gateway()
    if late:
        with pytest.raises(ValueError, match="no"):
            server.serve(app)
    else:
        assert server.serve(app) == [b"sorry"]
        assert server.started[0][2][0] is ValueError
    assert recorder.stream().outcome == "error"


def test_write(recorder: Recorded) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        environ["wsgi.input"].read()
        write = start_response("200 OK", EVENT_STREAM)
        for piece in REPLY:
            write(piece)
        return []

    server = Gateway()
    assert server.serve(app) == []
    assert server.written == REPLY
    assert (recorder.stream().outcome, recorder.stream().last[semconv.TOKENS]) == ("completed", 2)


def test_a_generator_that_starts_the_response_itself(recorder: Recorded) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        environ["wsgi.input"].read()
        start_response("200 OK", EVENT_STREAM)
        yield from REPLY

    assert list(Gateway().serve(app)) == REPLY
    assert (recorder.stream().outcome, recorder.stream().last[semconv.TOKENS]) == ("completed", 2)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/files"])
def test_files_and_lists_stay_what_they_are(path: str, recorder: Recorded) -> None:
    for body in ([b"whole"], (b"whole",), FileWrapper(io.BytesIO(b"file"))):
        server = Gateway(path=path)
        server.environ["wsgi.file_wrapper"] = FileWrapper
        assert server.serve(answering(body)) is body


def test_a_reply_that_knows_its_length_keeps_it(recorder: Recorded) -> None:
    class One(Reply3):
        def __len__(self) -> int:
            return 1

    assert len(Gateway().serve(answering(One()))) == 1
    assert not hasattr(Gateway().serve(answering(Reply3())), "__len__")


def test_a_request_of_which_nothing_is_wanted_gets_the_servers_own_functions(recorder: Recorded) -> None:
    server = Gateway(path="/other")
    del server.environ["HTTP_X_SLO_CLASS"]
    seen: list[Any] = []
    body = Reply3()

    def app(*given: Any) -> Any:
        seen.extend(given)
        return body

    wanted = server.environ["wsgi.input"]
    assert server.serve(app) is body
    assert seen[0] is server.environ
    assert seen[0]["wsgi.input"] is wanted
    assert seen[1] == server.start_response


@pytest.mark.parametrize(
    "how", ["read", "read(7)", "readinto", "readline", "readlines", "for", "read without a length"]
)
def test_the_request_is_seen_in_whatever_way_it_is_read(how: str, recorder: Recorded) -> None:
    asked = json.dumps(STREAMED, indent=1).encode()
    got: list[bytes] = []

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        body = environ["wsgi.input"]
        assert body.seekable()  # all else is the server's own object's
        if how == "read(7)":
            got.extend(iter(lambda: body.read(7), b""))
        elif how == "readinto":
            buffer = bytearray(7)
            while size := body.readinto(buffer):
                got.append(bytes(buffer[:size]))
        elif how == "readline":
            got.extend(iter(body.readline, b""))
        elif how == "for":
            got.extend(body)
        elif how == "readlines":
            got.extend(body.readlines())
        else:
            got.append(body.read())
        start_response("200 OK", EVENT_STREAM)
        return Reply3()

    server = Gateway(asked)
    if how.endswith("length"):
        del server.environ["CONTENT_LENGTH"]
    list(server.serve(app))
    assert b"".join(got) == asked
    assert (recorder.stream().segments[0].attributes or {})[semconv.GEN_AI_REQUEST_MODEL] == "m"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat", "/other"])
def test_the_standard_librarys_validator_finds_nothing(path: str, recorder: Recorded) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        start_response("200 OK", EVENT_STREAM)
        return iter(REPLY)

    server = Gateway(path=path)
    outer: Any = validator(StreamMiddleware(validator(app), paths=["/chat"]))
    body: Any = outer(server.environ, server.start_response)
    assert list(body) == REPLY
    body.close()


def test_each_turn_runs_in_the_requests_context_and_leaves_none(recorder: Recorded) -> None:
    key = otel_context.create_key("mine")
    seen: list[tuple[object, object, bool]] = []

    def look() -> None:
        seen.append(
            (
                baggage.get_baggage(semconv.SLO_CLASS),
                otel_context.get_value(key),
                server_context.current_server_context() is not None,
            )
        )

    def pieces() -> Iterator[bytes]:
        look()
        token = otel_context.attach(otel_context.set_value(key, 1))  # held over the pieces, as a span may be
        yield REPLY[0]
        look()
        yield REPLY[1]
        otel_context.detach(token)
        look()

    body = Gateway().serve(answering(pieces()))
    for _ in body:
        assert otel_context.get_current() == {}
        assert server_context.current_server_context() is None
    body.close()
    assert seen == [("voice", None, True), ("voice", 1, True), ("voice", None, True)]
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.parametrize("method", ["__init__", "take", "_begin", "starts", "sends"])
def test_a_bug_of_ours_is_one_warning_and_no_more(
    method: str, recorder: Recorded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*args: Any, **kwargs: Any) -> None:
        raise KeyError("our own")

    monkeypatch.setattr(exchange.Exchange, method, bug)
    reply = Reply3()
    body = Gateway().serve(answering(reply))
    assert list(body) == REPLY
    if body is not reply:
        body.close()
    assert len(ours(caplog)) == 1


# What servers and applications do beside PEP 3333, or at its edges.


def late(body: Iterable[bytes] = REPLY, headers: Any = EVENT_STREAM, status: str = "200 OK", before: int = 0) -> Any:
    """Return an application that reads the request in its reply, behind some of its pieces."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response(status, headers)

        def pieces() -> Iterator[bytes]:
            for number, piece in enumerate([*body, b""]):
                if number == before:
                    environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
                if piece:
                    yield piece

        return pieces()

    return app


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_a_request_that_is_read_while_the_reply_streams(before: int, recorder: Recorded) -> None:
    body = Gateway().serve(late(before=before))
    assert list(body) == REPLY
    body.close()
    assert (recorder.stream().outcome, recorder.stream().last[semconv.TOKENS]) == ("completed", 2)
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.GEN_AI_REQUEST_MODEL] == "m"


@pytest.mark.parametrize(("status", "error"), [("429 Slow Down", "429"), ("200 OK", "not_a_stream")])
def test_a_refusal_before_the_request_is_read(status: str, error: str, recorder: Recorded) -> None:
    body = Gateway().serve(late([b"{}"], [("Content-Type", "application/json")], status, before=1))
    assert list(body) == [b"{}"]
    assert recorder.stream().outcome == "error"
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.ERROR_TYPE] == error


@pytest.mark.usefixtures("own_garbage")
def test_a_reply_that_is_told_by_its_content_and_dropped(recorder: Recorded) -> None:
    body = Gateway(b"{}").serve(late(headers=[]))
    assert next(body) == REPLY[0]
    del body
    gc.collect()
    assert recorder.stream().outcome == "abandoned"


def test_a_request_that_is_read_after_the_end(recorder: Recorded) -> None:
    server = Gateway()
    inputs: list[Any] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        inputs.append(environ["wsgi.input"])
        start_response("200 OK", [])
        return [b"whole"]

    assert server.serve(app) == [b"whole"]
    assert json.loads(inputs[0].read()) == STREAMED
    assert recorder.stream().outcome == "error"


def test_a_compressed_request(recorder: Recorded) -> None:
    server = Gateway(gzip.compress(json.dumps(STREAMED).encode()))
    server.environ["HTTP_CONTENT_ENCODING"] = "gzip"
    list(server.serve(answering(Reply3())))
    assert (recorder.stream().segments[0].attributes or {})[semconv.GEN_AI_REQUEST_MODEL] == "m"


@pytest.mark.parametrize(
    ("name", "value"),
    [("CONTENT_LENGTH", "9" * 5000), ("SERVER_PORT", "9" * 5000), ("HTTP_X_REQUEST_ID", "数")],
    ids=["length", "port", "script"],
)
def test_a_request_of_a_hostile_client(
    name: str, value: str, recorder: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    server = Gateway()
    server.environ[name] = value
    assert list(server.serve(answering(Reply3()))) == REPLY
    assert recorder.stream().outcome == "completed"
    assert ours(caplog) == []


def test_a_read_of_nothing_is_no_end(recorder: Recorded) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        assert environ["wsgi.input"].read(0) == b""
        return answering(Reply3())(environ, start_response)

    list(Gateway().serve(app))
    assert (recorder.stream().segments[0].attributes or {})[semconv.GEN_AI_REQUEST_MODEL] == "m"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat"])
def test_headers_that_can_be_read_once_reach_the_server(path: str, recorder: Recorded) -> None:
    server, got = Gateway(path=path), []

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", (pair for pair in [*EVENT_STREAM, ("Set-Cookie", "a=1")]))
        return iter(REPLY)

    def start_response(status: str, headers: Any, *more: Any) -> Any:
        got.extend(headers)

    assert list(StreamMiddleware(app, paths=["/chat"])(server.environ, start_response)) == REPLY
    assert got == [*EVENT_STREAM, ("Set-Cookie", "a=1")]
    assert recorder.stream().outcome == "completed"


@pytest.mark.parametrize("headers", [[("X-Title", "数")], [("X-Title", b"bytes"), ("lonely",)], [(1, 2)]])
def test_headers_that_no_server_could_send(
    headers: list[Any], recorder: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        environ["wsgi.input"].read()
        start_response("200 OK", [*headers, *EVENT_STREAM])
        return Reply3()

    server = Gateway()
    assert list(server.serve(app)) == REPLY
    assert server.started == [("200 OK", [*headers, *EVENT_STREAM])]
    assert (recorder.stream().outcome, recorder.stream().last[semconv.TOKENS]) == ("completed", 2)
    assert ours(caplog) == []


@pytest.mark.parametrize("like", [bytearray, memoryview])
def test_pieces_like_bytes_pass_as_they_are(like: Callable[[bytes], Any], recorder: Recorded) -> None:
    pieces = [like(piece) for piece in REPLY]
    passed = list(Gateway().serve(answering(Reply3(pieces))))
    assert [ours is theirs for ours, theirs in zip(passed, pieces, strict=True)] == [True] * 3
    assert (recorder.stream().outcome, recorder.stream().last[semconv.TOKENS]) == ("completed", 2)


def test_a_write_that_fails(recorder: Recorded) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        environ["wsgi.input"].read()
        write = start_response("200 OK", EVENT_STREAM)
        write(REPLY[0])
        return []

    def start_response(*given: Any) -> Any:
        def write(piece: bytes) -> None:
            raise BrokenPipeError

        return write

    with pytest.raises(BrokenPipeError):
        StreamMiddleware(app)(Gateway().environ, start_response)
    assert recorder.stream().outcome == "cancelled"


def test_a_generator_that_is_closed_before_it_begins(recorder: Recorded) -> None:
    for path in ("/v1/chat/completions", "/chat"):
        body = Gateway(path=path).serve(late(), paths=["/chat"])
        body.close()
    assert [stream.outcome for stream in recorder.streams()] == ["cancelled", "cancelled"]


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT"])
def test_another_method_passes(method: str, recorder: Recorded) -> None:
    server = Gateway()
    server.environ["REQUEST_METHOD"] = method
    assert list(server.serve(answering(Reply3()), paths=["/v1/*"])) == REPLY
    assert recorder.spans() == ()


def test_the_model_of_an_own_endpoint(recorder: Recorded) -> None:
    def model(body: dict[str, Any] | None) -> str | None:
        return None if body is None else f"{body['model']}-by-path"

    for app in (answering(Reply3()), late()):
        list(Gateway(path="/chat").serve(app, paths=["/chat"], model=model))
    names = [(request.attributes or {})[semconv.GEN_AI_REQUEST_MODEL] for request in recorder.requests()]
    assert names == ["m-by-path", "m-by-path"]
    assert {(request.attributes or {})[semconv.HTTP_ROUTE] for request in recorder.requests()} == {"/chat"}
