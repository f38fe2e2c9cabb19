"""Slow clients of the HTTP receiver: over headers, a body, an answer, or idle."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from threading import Event, Thread

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from support.collector.fake_evaluator import FakeEvaluator
from support.collector.http_client import RAW, connect, head, otlp_listener, rest, serving, takes_an_export
from support.commands import wait_until
from support.patience import WAIT_S

from otel_llm.collector.receive.http_listener import HttpServer
from otel_llm.collector.receive.otlp_http import otlp_app
from otel_llm.collector.settings import Limits

PROTOBUF = "Content-Type: application/x-protobuf"
SHORT = Limits(message_bytes=2**16, body_s=0.5, header_s=0.5, idle_connection_s=1)


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with serving(otlp_listener(SHORT)) as made:
        yield made


class Trickle:
    """Send one piece after the other, until the other side has had enough."""

    def __init__(self, connection: socket.socket, chunk: bytes, every_s: float = 0.05) -> None:
        self._stop = Event()
        self._thread = Thread(target=self._run, args=(connection, chunk, every_s), daemon=True)

    def _run(self, connection: socket.socket, chunk: bytes, every_s: float) -> None:
        while not self._stop.wait(every_s):
            try:
                connection.sendall(chunk)
            except OSError:
                return

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize(
    ("sent", "chunk"),
    [
        (b"", b""),
        (b"", b"\r\n"),
        (b"P", b""),
        (b"POST /v1/tra", b"c"),
        (b"POST /v1/traces HTTP/1.1\r\n", b"X-A: b\r\n"),
        (b"POST /v1/traces HTTP/1.1\r\nX-A: ", b"b"),
    ],
)
def test_headers_that_never_end(server: HttpServer, sent: bytes, chunk: bytes) -> None:
    with connect(server.port) as connection:
        connection.sendall(sent)
        with Trickle(connection, chunk):
            assert rest(connection)[:13] in (b"HTTP/1.1 408 ", b"")
    assert takes_an_export(server.port)


@pytest.mark.parametrize("headers", [("Content-Length: 60000",), ("Transfer-Encoding: chunked",)])
def test_a_body_that_trickles(server: HttpServer, headers: tuple[str, ...]) -> None:
    chunk = b"x" if "Length" in headers[0] else b"1\r\nx\r\n"
    with connect(server.port) as connection:
        connection.sendall(head(PROTOBUF, *headers))
        with Trickle(connection, chunk):
            answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the body did not arrive within 0.5 s" in answer


@pytest.mark.parametrize("reported", ["413", "415", "405"])
def test_the_rest_of_a_body_that_was_refused_is_not_waited_for_either(server: HttpServer, reported: str) -> None:
    start = "PUT /v1/traces HTTP/1.1" if reported == "405" else "POST /v1/traces HTTP/1.1"
    kind = "Content-Type: text/plain" if reported == "415" else PROTOBUF
    with connect(server.port) as connection:
        connection.sendall(head(kind, "Content-Length: 1000000000", start=start))
        assert connection.recv(13) == f"HTTP/1.1 {reported} ".encode()
        with Trickle(connection, b"x"):
            rest(connection)


def test_an_idle_connection_is_closed(server: HttpServer) -> None:
    with connect(server.port) as connection:
        connection.sendall(head(PROTOBUF, f"Content-Length: {len(RAW)}") + RAW)
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("chunk", [b"", b"\r\n"])
def test_an_idle_connection_that_is_kept_awake_is_closed(server: HttpServer, chunk: bytes) -> None:
    with connect(server.port) as connection:
        connection.sendall(head(PROTOBUF, f"Content-Length: {len(RAW)}") + RAW)
        with Trickle(connection, chunk):
            rest(connection)


def test_an_answer_that_is_not_read() -> None:
    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()
        await Response(bytes(2**26))(scope, receive, send)

    limits = Limits(body_s=0.5, idle_connection_s=3600)
    with serving(otlp_listener(limits, large)) as server, connect(server.port) as connection:
        connection.sendall(head(start="GET / HTTP/1.1"))
        assert connection.recv(5) == b"HTTP/"
        wait_until("given up", lambda: server.connections == 0)


def test_a_client_that_closes_its_side_is_answered(server: HttpServer) -> None:
    with connect(server.port) as connection:
        connection.sendall(head(PROTOBUF, "Connection: close", f"Content-Length: {len(RAW)}") + RAW)
        connection.shutdown(socket.SHUT_WR)
        assert rest(connection)[:13] in (b"HTTP/1.1 200 ", b"")
    assert takes_an_export(server.port)


def test_none_of_them_stays(server: HttpServer) -> None:
    open_ones = [connect(server.port) for _ in range(50)]
    for number, connection in enumerate(open_ones):
        connection.sendall(head(PROTOBUF, "Content-Length: 9")[: number * 3])
    assert takes_an_export(server.port)
    wait_until("all are gone", lambda: server.connections == 0)
    for connection in open_ones:
        connection.close()


def test_a_connection_grows_old() -> None:
    """One of an age is closed once its answer is out, and not before."""
    began = Event()
    otlp = otlp_app(FakeEvaluator())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        began.set()
        await otlp(scope, receive, send)

    age_s = 1.0
    with serving(otlp_listener(Limits(), app, age_s)) as server, connect(server.port) as connection:
        connection.sendall(head(PROTOBUF, f"Content-Length: {len(RAW)}", "X-A: b"))
        assert began.wait(WAIT_S)
        time.sleep(age_s + 0.5)  # it is looked after a few times a second
        assert server.connections == 1
        connection.sendall(RAW)
        assert rest(connection).startswith(b"HTTP/1.1 200 ")
