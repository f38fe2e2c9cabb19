"""Every way of framing the same export over HTTP stores it, or is refused so that its sender tries again."""

from __future__ import annotations

import gzip
import re
import socket
from collections.abc import Iterator

import pytest
from support.collector.fake_evaluator import FakeEvaluator
from support.otlp import T0_NS, export, segment_span
from support.patience import WAIT_S

from otel_llm.collector.receive.gunzip import MOST_MEMBERS
from otel_llm.collector.receive.http_listener import HttpServer
from otel_llm.collector.receive.otlp_http import otlp_app
from otel_llm.collector.settings import Limits
from otel_llm.shared.web.address import Address

RAW = export(segment_span(1, 0, [T0_NS])).SerializeToString()
LENGTH = b"Content-Length: %d\r\n" % len(RAW)
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"


def head(*lines: bytes, version: bytes = b"1.1", target: bytes = b"POST /v1/traces") -> bytes:
    start = b"%b HTTP/%b\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n" % (target, version)
    return start + b"".join(lines) + b"\r\n"


def chunked(size: int, trailers: bytes = b"") -> bytes:
    chunks = [RAW[at : at + size] for at in range(0, len(RAW), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in chunks) + b"0\r\n" + trailers + b"\r\n"


CHUNKED = b"Transfer-Encoding: chunked\r\n"
PLAIN = head(LENGTH) + RAW
FRAMINGS = {
    "plain": PLAIN,
    "upgrade to h2c": head(H2C, LENGTH) + RAW,
    "upgrade to anything": head(b"Connection: upgrade\r\nUpgrade: TLS/1.3, x/2\r\n", LENGTH) + RAW,
    "upgrade to websocket": head(b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n", LENGTH) + RAW,
    "upgrade, chunked": head(H2C, CHUNKED) + chunked(7),
    "upgrade, then plain": head(H2C, LENGTH) + RAW + PLAIN,
    "upgrade, without the offer's connection": head(b"Upgrade: h2c\r\n", LENGTH) + RAW,
    "upgrade over 1.0": head(H2C, LENGTH, version=b"1.0") + RAW,
    "expect": head(b"Expect: 100-continue\r\n", LENGTH) + RAW,
    "expect and upgrade": head(b"Expect: 100-continue\r\n", H2C, LENGTH) + RAW,
    "chunked": head(CHUNKED) + chunked(1000),
    "chunks of a byte": head(CHUNKED) + chunked(1),
    "chunked, trailers": head(b"Trailer: x\r\n", CHUNKED) + chunked(9, b"x: y\r\n"),
    "HTTP/1.0": head(LENGTH, version=b"1.0") + RAW,
    "pipelined": PLAIN * 3,
}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[HttpServer, FakeEvaluator]]:
    behind = FakeEvaluator()
    server = HttpServer(otlp_app(behind, limits=Limits(message_bytes=2**20)), Address("127.0.0.1", 0), option="--http")
    server.start()
    yield server, behind
    server.stop(0.1)


def answers(port: int, *chunks: bytes, count: int = 1) -> list[int]:
    """Send pieces over one connection; return the statuses of the first answers, other than 100."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for chunk in chunks:
            connection.sendall(chunk)
        data, found = b"", list[int]()
        while len(found) < count and (more := connection.recv(65536)):
            data += more
            found = [int(one) for one in re.findall(rb"HTTP/1\.1 (\d+) ", data) if one != b"100"]
    return found


def stored(behind: FakeEvaluator) -> list[bytes]:
    found = [message.SerializeToString() for message in behind.messages]
    behind.forget()
    return found


@pytest.mark.parametrize("framing", FRAMINGS)
def test_a_framing_stores_what_it_carries(framing: str, served: tuple[HttpServer, FakeEvaluator]) -> None:
    server, behind = served
    sent = FRAMINGS[framing]
    count = sent.count(b"POST ")
    assert answers(server.port, sent, count=count) == [200] * count
    assert stored(behind) == [RAW] * count


@pytest.mark.parametrize("framing", ["plain", "upgrade to h2c", "upgrade, chunked", "chunked, trailers"])
def test_it_may_be_cut_at_every_byte(framing: str, served: tuple[HttpServer, FakeEvaluator]) -> None:
    server, behind = served
    sent = FRAMINGS[framing]
    for at in range(1, len(sent)):
        assert answers(server.port, sent[:at], sent[at:]) == [200], at
    assert stored(behind) == [RAW] * (len(sent) - 1)
    assert answers(server.port, *(sent[at : at + 1] for at in range(len(sent)))) == [200]
    assert stored(behind) == [RAW]


@pytest.mark.parametrize(
    ("headers", "body", "status", "spans"),
    [
        ([b"Content-Length: 0\r\n"], b"", 200, []),
        ([], b"", 400, None),
        ([H2C], b"", 400, None),
        ([b"Content-Length: 0\r\n", b"Content-Encoding: gzip\r\n"], b"", 400, None),
    ],
    ids=["empty", "no length", "an offer and no length", "empty gzip"],
)
def test_a_body_is_announced(
    headers: list[bytes], body: bytes, status: int, spans: list[bytes] | None, served: tuple[HttpServer, FakeEvaluator]
) -> None:
    server, behind = served
    assert answers(server.port, head(*headers) + body) == [status]
    assert stored(behind) == ([] if spans is None else [b""])


@pytest.mark.parametrize("offer", [b"", H2C], ids=["plain", "upgrade"])
def test_a_body_that_is_cut_off_is_not_acknowledged(offer: bytes, served: tuple[HttpServer, FakeEvaluator]) -> None:
    server, behind = served
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as connection:
        connection.sendall(head(offer, LENGTH) + RAW[:-1])
        connection.shutdown(socket.SHUT_WR)
        assert b" 200 " not in connection.recv(65536)
    assert stored(behind) == []


def test_an_offer_is_no_way_around_a_limit(served: tuple[HttpServer, FakeEvaluator]) -> None:
    server, behind = served
    assert answers(server.port, head(H2C, b"X: %b\r\n" % bytes(66_000).replace(b"\0", b"x"), LENGTH) + RAW) == [431]
    assert answers(server.port, head(H2C, b"Content-Length: 99999999\r\n")) == [413]
    assert answers(server.port, b"CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n") == [400]
    assert stored(behind) == []


def test_several_gzip_members_are_one_body(served: tuple[HttpServer, FakeEvaluator]) -> None:
    server, behind = served

    def send(*members: bytes) -> list[int]:
        body = b"".join(map(gzip.compress, members))
        length = b"Content-Length: %d\r\n" % len(body)
        return answers(server.port, head(b"Content-Encoding: gzip\r\n", length) + body)

    assert send(RAW[:9], RAW[9:]) == [200]
    assert send(b"", RAW, b"") == [200]
    assert send(*[RAW[:1], RAW[1:], *[b""] * (MOST_MEMBERS - 2)]) == [200]
    assert stored(behind) == [RAW] * 3
    assert send(RAW, *[b""] * MOST_MEMBERS) == [400]
    assert send(RAW, bytes(2**21)) == [413]
    assert stored(behind) == []
