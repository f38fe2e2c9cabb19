"""The HTTP receiver beyond its limits of size and number."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from threading import Event, Thread
from typing import cast

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.collector.fake_evaluator import FakeEvaluator
from support.collector.http_client import (
    PROTOBUF,
    RAW,
    connect,
    head,
    otlp_listener,
    rest,
    send,
    serving,
    takes_an_export,
)
from support.commands import wait_until
from support.patience import WAIT_S

from otel_llm.collector.receive import otlp_http
from otel_llm.collector.receive.http_listener import MAX_HEAD_BYTES, Connection, HttpServer
from otel_llm.collector.receive.otlp_http import otlp_app
from otel_llm.collector.receive.senders import Sender
from otel_llm.collector.settings import Limits
from otel_llm.shared.web.acceptor import Acceptor, ConnectionTracker

GZIP = {"Content-Encoding": "gzip"}
BEGINNING = head("Content-Type: application/x-protobuf", "Content-Length: 60000")


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with serving(otlp_listener()) as made:
        yield made


def test_connections_beyond_the_limit_are_turned_away_and_the_others_go_on() -> None:
    with serving(otlp_listener(Limits(connections=3))) as server, ExitStack() as stack:
        let_in = []
        for _ in range(3):
            let_in.append(stack.enter_context(connect(server.port)))
            let_in[-1].sendall(head("Content-Type: application/x-protobuf", f"Content-Length: {len(RAW)}") + RAW)
            assert let_in[-1].recv(65536).startswith(b"HTTP/1.1 200 ")
        for _ in range(10):
            status, headers, _ = send(server.port)
            assert (status, headers["retry-after"]) == (503, "1")
        beyond = [stack.enter_context(connect(server.port)) for _ in range(200)]
        assert all(rest(one)[:13] in (b"HTTP/1.1 503 ", b"") for one in beyond)
        assert server.turned_away == 210
        for one in let_in:
            one.sendall(head("Content-Type: application/x-protobuf", f"Content-Length: {len(RAW)}") + RAW)
            assert one.recv(13) == b"HTTP/1.1 200 "
        let_in[0].close()
        wait_until("there is room", lambda: server.connections == 2)
        assert takes_an_export(server.port)


def test_headers_have_a_limit(server: HttpServer) -> None:
    assert send(server.port, headers=PROTOBUF | {"X-A": "x" * (MAX_HEAD_BYTES // 2)})[0] == 200
    for huge in (
        head(*(f"X-{number}: {'x' * 1000}" for number in range(80))),
        head("X-A: " + "x" * (MAX_HEAD_BYTES + 1)),
        head(start=f"POST /v1/traces?{'x' * MAX_HEAD_BYTES} HTTP/1.1"),
        b"POST /v1/traces HTTP/1.1\r\nX-A: " + b"x" * 2**22,  # no end in sight
        b"POST /" + b"x" * 2**22,
    ):
        with connect(server.port) as connection:
            sending = Thread(target=send_all, args=(connection, huge), daemon=True)
            sending.start()
            assert rest(connection)[:13] in (b"HTTP/1.1 431 ", b"")  # cut, if we did not wait for all of it
            sending.join()
    assert takes_an_export(server.port)


def test_huge_headers_are_answered_where_they_are_read(server: HttpServer) -> None:
    with connect(server.port) as connection:
        connection.sendall(head("X-A: " + "x" * (MAX_HEAD_BYTES + 1)))
        assert rest(connection).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [(b"0\r\nX-A: ", b"x"), (b"0\r\n", b"X-A: b\r\n"), (b"1;", b"x"), (b"", b"0")],
    ids=["a trailer", "trailers", "an extension of a chunk", "the length of a chunk"],
)
def test_what_stands_beside_a_body_has_the_same_limit(server: HttpServer, begins: bytes, goes_on: bytes) -> None:
    with connect(server.port) as connection:
        connection.sendall(head("Content-Type: application/x-protobuf", "Transfer-Encoding: chunked"))
        with pytest.raises(OSError):  # noqa: PT011 - cut, or no longer read
            connection.sendall(begins + goes_on * (2**25 // len(goes_on)))
    assert takes_an_export(server.port)


def test_a_body_of_small_chunks(server: HttpServer) -> None:
    chunks = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in RAW * 2000) + b"0\r\nX-A: b\r\n\r\n"
    with connect(server.port) as connection:
        connection.sendall(head("Content-Type: application/x-protobuf", "Transfer-Encoding: chunked") + chunks)
        assert connection.recv(13) == b"HTTP/1.1 200 "


def test_json_is_read_one_document_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As objects it takes many times its bytes."""
    reading: list[int] = []
    both = Event()

    def slow(text: bytes) -> ExportTraceServiceRequest:
        reading.append(1)
        assert sum(reading) == 1
        both.wait(0.2)
        reading.append(-1)
        return ExportTraceServiceRequest()

    monkeypatch.setattr(otlp_http, "parse_json", slow)
    with serving(otlp_listener()) as server, ThreadPoolExecutor(4) as pool:
        answers = pool.map(
            lambda _: send(server.port, body=b"{}", headers={"Content-Type": "application/json"})[0], range(4)
        )
        assert list(answers) == [200] * 4


def send_all(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        connection.sendall(data)


def test_more_exports_than_it_takes_are_told_when_to_come_back() -> None:
    go_on = Event()
    began: list[bytes] = []
    behind = FakeEvaluator()

    def slow(raw: bytes, _sender: Sender) -> bytes:
        began.append(raw)
        assert go_on.wait(WAIT_S)
        return behind(raw)

    limits = Limits(concurrent_exports=2, queued_exports=1)
    app = otlp_app(slow, limits=limits)
    with serving(otlp_listener(limits, app)) as server, ThreadPoolExecutor(2) as pool:
        first = [pool.submit(send, server.port) for _ in range(2)]
        wait_until("two in hand", lambda: len(began) == 2)
        wait_until("one waiting", lambda: is_refused(server.port))
        for headers in (PROTOBUF, {"Content-Type": "application/json"}):
            body = RAW if headers is PROTOBUF else b"{}"
            status, answered, content = send(server.port, body=body, headers=headers)
            assert (status, answered["retry-after"]) == (429, "1")
            assert b"too many exports at once" in content
        go_on.set()
        assert [one.result(WAIT_S)[0] for one in first] == [200, 200]
        assert takes_an_export(server.port)


def is_refused(port: int) -> bool:
    """Say whether an export is asked to be retried; one that is not waits its turn, and is left to it."""
    with connect(port) as connection:
        connection.settimeout(0.2)
        connection.sendall(head("Content-Type: application/x-protobuf", "Content-Length: 0"))
        try:
            return connection.recv(13) == b"HTTP/1.1 429 "
        except TimeoutError:
            return False


def test_the_bodies_of_all_requests_together_have_a_limit() -> None:
    limits = Limits(message_bytes=2**16, receiving_bytes=2**17)
    with serving(otlp_listener(limits)) as server, ExitStack() as stack:
        begun = [stack.enter_context(connect(server.port)) for _ in range(3)]
        for connection in begun[:2]:
            connection.sendall(BEGINNING + bytes(59_000))
        wait_until("too much", lambda: send(server.port, body=RAW + bytes(40_000))[0] == 429)
        status, headers, content = send(server.port, body=RAW + bytes(40_000))
        assert (status, headers["retry-after"]) == (429, "1")
        assert b"too much is being received" in content
        assert takes_an_export(server.port)  # what is small still fits
        for connection in begun[:2]:
            connection.close()
        wait_until("there is room", lambda: send(server.port, body=bytes(40_000))[0] == 400)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_gzip_bomb(server: HttpServer, layers: int) -> None:
    bomb = bytes(2**28)
    for _ in range(layers):
        bomb = gzip.compress(bomb)
    status, _, _ = send(server.port, body=bomb, headers=PROTOBUF | GZIP)
    assert status == (413 if layers == 1 else 400)  # a bomb in gzip is no export request
    assert takes_an_export(server.port)


@pytest.mark.parametrize(
    "body",
    [b"[" * 2**20, b'{"resourceSpans":' + b"[" * 2**20, b'{"a":' * 2**18, b"1" * 10_000],
    ids=["lists", "lists in an object", "objects", "a number"],
)
def test_json_that_is_made_to_hurt(server: HttpServer, body: bytes) -> None:
    status, _, content = send(server.port, body=body, headers={"Content-Type": "application/json"})
    assert (status, json.loads(content)["code"]) == (400, 3)
    assert takes_an_export(server.port)


def test_clients_that_go_away_in_the_middle(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    for cut in range(0, len(BEGINNING) + 100, 7):
        with connect(server.port) as connection:
            connection.sendall((BEGINNING + bytes(100))[:cut])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))  # a reset
    wait_until("all are gone", lambda: server.connections == 0)
    assert takes_an_export(server.port)
    assert caplog.text == ""


def test_a_flood_of_connections_leaves_turns_to_those_that_are_there() -> None:
    seen: list[int] = []

    async def scenario() -> None:
        turns = 0

        def make(_tracker: ConnectionTracker[Connection]) -> Connection:
            seen.append(turns)
            return cast("Connection", asyncio.Protocol())

        with socket.create_server(("127.0.0.1", 0), backlog=100) as listener, ExitStack() as stack:
            port = listener.getsockname()[1]
            for _ in range(50):
                stack.enter_context(connect(port))
            acceptor = Acceptor(listener, make, most=100, handshake_s=10, context=None)
            accepting = asyncio.create_task(acceptor.run())
            while len(seen) < 50:
                turns += 1
                await asyncio.sleep(0)
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)

    asyncio.run(scenario())
    assert len(set(seen)) > 10
