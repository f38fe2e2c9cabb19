"""Streams read over `http.client`, in every way its users read: the same bytes, and token times."""

from __future__ import annotations

import functools
import gc
import http.client
import io
import itertools
import json
import logging
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
import urllib3
from opentelemetry import trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation import wire_bodies as bodies
from support.instrumentation.recorded import Recorded, ids
from support.instrumentation.wire_bodies import QUESTION
from support.instrumentation.wire_server import EVENT_STREAM, WireServer
from support.patience import WAIT_S
from support.sse_server import Gate

import otel_llm
from otel_llm import semconv
from otel_llm.instrumentation.core.covering import covering

CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}
BODY = json.dumps(QUESTION)


def bare(url: str) -> http.client.HTTPResponse:
    """Return the response of a bare connection."""
    connection = http.client.HTTPConnection(url.partition("//")[2].partition("/")[0], timeout=WAIT_S)
    connection.request("POST", CHAT, BODY, JSON)
    return connection.getresponse()


def pooled(url: str) -> Any:
    pool = urllib3.PoolManager(timeout=WAIT_S)
    return pool.request("POST", url, body=BODY.encode(), headers=JSON, preload_content=False)


def posted(url: str) -> requests.Response:
    return requests.post(url, json=QUESTION, stream=True, timeout=WAIT_S)


def readinto(response: Any) -> Iterator[bytes]:
    buffer = bytearray(7)
    while count := response.readinto(buffer):
        yield bytes(buffer[:count])


def taken(read: Callable[..., bytes], *args: int) -> list[bytes]:
    return list(iter(functools.partial(read, *args), b""))


def joined(read: list[Any]) -> tuple[type, Any]:
    """Return all that was read: how it is cut may depend on the network."""
    return type(read[0]), type(read[0])().join(read)


def past(url: str) -> list[bytes]:
    """Read as old SSE clients do, the framing of the chunks with the rest."""
    response = posted(url)
    return taken(response.raw._fp.fp.read1, 100)


WAYS: dict[str, Callable[[str], list[Any]]] = {
    "http.client read": lambda url: [bare(url).read()],
    "http.client read of 7": lambda url: taken(bare(url).read, 7),
    "http.client read1": lambda url: taken(bare(url).read1),
    "http.client readline": lambda url: taken(bare(url).readline),
    "http.client readinto": lambda url: list(readinto(bare(url))),
    "http.client lines": lambda url: list(bare(url)),
    "http.client buffered": lambda url: list(io.TextIOWrapper(io.BufferedReader(bare(url)))),
    "urllib.request": lambda url: list(urllib.request.urlopen(urllib.request.Request(url, BODY.encode(), JSON))),
    "urllib3 stream": lambda url: list(pooled(url).stream()),
    "urllib3 stream of 7": lambda url: list(pooled(url).stream(7)),
    "urllib3 read_chunked": lambda url: list(pooled(url).read_chunked()),
    "urllib3 read of 7": lambda url: taken(pooled(url).read, 7),
    "urllib3 data": lambda url: [pooled(url).data],
    "urllib3 lines": lambda url: list(pooled(url)),
    "requests lines": lambda url: list(posted(url).iter_lines()),
    "requests content of 7": lambda url: list(posted(url).iter_content(7)),
    "requests content": lambda url: [posted(url).content],
    "requests raw": lambda url: [posted(url).raw.read()],
    "requests, no stream": lambda url: [requests.post(url, json=QUESTION, timeout=WAIT_S).content],
    "past http.client": past,
}

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Collect the connections that a test dropped while its own filters of warnings stand."""
    yield
    gc.collect()


@pytest.fixture
def server() -> Iterator[WireServer]:
    with WireServer(bodies.chat()) as running:
        yield running


@pytest.mark.parametrize("way", list(WAYS))
def test_every_way_of_reading_gives_what_it_gave_and_is_recorded(way: str, server: WireServer) -> None:
    read = WAYS[way]
    # What reads past http.client waits for more of an open connection.
    server.close = way == "past http.client"
    seen = joined(read(server.url + CHAT))
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter)
    try:
        assert joined(read(server.url + CHAT)) == seen
        recorded = Recorded(exporter)
        stream = recorded.stream()
        assert (stream.outcome, stream.last[semconv.TOKENS], len(stream.times_ns)) == ("completed", 4, 4)
        [request] = recorded.requests()
        told = dict(request.attributes or {})
    finally:
        otel_llm.uninstrument()
    assert request.name == "chat m"
    assert told[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] == 4
    assert told[semconv.GEN_AI_RESPONSE_MODEL] == "served"
    assert told[semconv.SERVER_ADDRESS] == "127.0.0.1"
    assert told[semconv.SERVER_PORT] == int(server.url.rpartition(":")[2])
    assert told[semconv.MEASURED_AT] == "client"


@pytest.mark.parametrize("opened", [bare, pooled, posted], ids=["http.client", "urllib3", "requests"])
def test_a_token_is_recorded_when_it_is_read_not_when_the_body_ends(
    opened: Callable[[str], Any], recorder: Recorded
) -> None:
    gate = Gate()
    with WireServer([bodies.word(1), bodies.word(2), gate, bodies.DONE]) as server:
        response = opened(server.url + CHAT)
        lines = response.iter_lines(chunk_size=1) if isinstance(response, requests.Response) else iter(response)
        seen = list(itertools.islice(lines, 3))
        assert [line[:6] for line in seen if line.strip()] == [b"data: "] * 2
        [stream] = recorder.streams()
        assert (len(stream.times_ns), stream.outcome) == (2, None)
        gate.open()
        list(lines)
    assert recorder.stream().outcome == "completed"


@pytest.mark.parametrize("framing", ["length", "connection"])
def test_a_body_without_chunks(framing: str, recorder: Recorded) -> None:
    body = b"".join(bodies.chat())
    headers = {"length": {"Content-Length": str(len(body))}, "connection": {"Connection": "close"}}[framing]
    with WireServer([body], {**EVENT_STREAM, **headers}, chunked=False) as server:
        for way in ("http.client lines", "urllib3 stream of 7", "requests lines"):
            assert WAYS[way](server.url + CHAT)
    assert [(stream.outcome, len(stream.times_ns)) for stream in recorder.streams()] == [("completed", 4)] * 3


@pytest.mark.parametrize(
    ("pieces", "outcome", "error"),
    [
        ([bodies.word(1), bodies.word(2)], "disconnected", None),
        ([bodies.word(1), bodies.word(2), b"data: [DONE]"], "completed", None),
        ([bodies.word(1), bodies.word(2), b'data: {"error": {"message": "x", "code": 503}}\n\n'], "error", "503"),
    ],
    ids=["cut", "unfinished line", "error code"],
)
def test_how_a_reply_ends(pieces: list[bytes], outcome: str, error: str | None, recorder: Recorded) -> None:
    with WireServer(pieces) as server:
        WAYS["requests lines"](server.url + CHAT)
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == (outcome, 2)
    [request] = recorder.requests()
    assert (request.attributes or {}).get(semconv.ERROR_TYPE) == error


@pytest.mark.parametrize("opened", [bare, pooled, posted], ids=["http.client", "urllib3", "requests"])
def test_a_read_that_takes_too_long_is_an_error(opened: Callable[[str], Any], recorder: Recorded) -> None:
    gate = Gate()
    with WireServer([bodies.word(1), gate]) as server:
        response = opened(server.url + CHAT)
        pieces = iter(response)
        next(pieces)  # the word, however long it takes
        raw = getattr(response, "raw", response)
        (getattr(raw, "_fp", raw)).fp.raw._sock.settimeout(0.1)
        with pytest.raises((TimeoutError, urllib3.exceptions.ReadTimeoutError, requests.ConnectionError)):
            list(pieces)
        gate.open()
    stream = recorder.stream()
    assert (stream.outcome, len(stream.times_ns)) == ("error", 1)
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.ERROR_TYPE] == "TimeoutError"


@pytest.mark.parametrize(
    ("status", "content_type", "error"),
    [
        (503, "application/json", "503"),
        (307, "text/html", "307"),
        (200, "application/json", "_OTHER"),
    ],
)
def test_an_answer_that_is_no_stream(status: int, content_type: str, error: str, recorder: Recorded) -> None:
    with WireServer([b'{"error": {}}'], {"Content-Type": content_type}, status) as server:
        assert posted(server.url + CHAT).content == b'{"error": {}}'
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("error", 0)
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.ERROR_TYPE] == error


def test_nobody_answers(recorder: Recorded) -> None:
    with WireServer() as server:
        url = server.url
    with pytest.raises(requests.ConnectionError):
        posted(url + CHAT)
    assert recorder.stream().outcome == "disconnected"


class LostError(Exception):
    """The connection of the test is gone while the body is sent."""


def test_a_request_whose_body_cannot_be_sent_has_failed(server: WireServer, recorder: Recorded) -> None:
    class Connection(urllib3.connection.HTTPConnection):
        def send(self, data: Any) -> None:
            if data == BODY.encode():
                raise LostError
            super().send(data)

    connection = Connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    with pytest.raises(LostError):
        connection.request("POST", CHAT, BODY.encode(), JSON)
    connection.close()
    assert recorder.stream().outcome == "error"


@pytest.mark.parametrize("outcome", ["cancelled", "abandoned"])
def test_a_connection_that_is_closed_or_dropped_before_the_response(outcome: str, recorder: Recorded) -> None:
    gate = Gate()
    with WireServer([bodies.word(1)], before_headers=gate) as server:
        connection = http.client.HTTPConnection(server.url.partition("//")[2])
        connection.request("POST", CHAT, BODY, JSON)
        if outcome == "cancelled":
            connection.close()
        del connection
        gc.collect()
        assert recorder.stream().outcome == outcome
        gate.open()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_compressed_body_is_recorded_however_it_is_read(coding: str, recorder: Recorded) -> None:
    packer = zlib.compressobj(wbits=31 if coding == "gzip" else 15)
    pieces = [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in bodies.chat()] + [packer.flush()]
    with WireServer(pieces, {**EVENT_STREAM, "Content-Encoding": coding}) as server:
        assert posted(server.url + CHAT).raw.read(decode_content=False) == b"".join(pieces)
        assert posted(server.url + CHAT).content == b"".join(bodies.chat())
    assert [(stream.outcome, len(stream.times_ns)) for stream in recorder.streams()] == [("completed", 4)] * 2


@pytest.mark.parametrize("coding", ["zstd", "gzip"])
def test_a_body_that_cannot_be_unpacked_is_given_up(
    coding: str, recorder: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    with WireServer([b"neither"], {**EVENT_STREAM, "Content-Encoding": coding}) as server:
        assert bare(server.url + CHAT).read() == b"neither"
    [stream] = recorder.streams()
    assert (stream.outcome, stream.times_ns) == (None, [])
    assert caplog.records == []


def test_trace_and_class_travel_unless_they_are_there(server: WireServer) -> None:
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter, slo_class="voice")
    try:
        for opened in (bare, pooled, posted):
            opened(server.url + CHAT).close()
        theirs = f"00-{'a' * 32}-{'b' * 16}-01"
        given = {"Traceparent": theirs, "X-SLO-Class": "chat"}
        requests.post(server.url + CHAT, json=QUESTION, headers=given, timeout=WAIT_S)
        spans = [ids(span.context) for span in Recorded(exporter).requests()]
    finally:
        otel_llm.uninstrument()
    sent = [request.headers for request in server.requests]
    expected = [f"00-{trace_id:032x}-{span_id:016x}-01" for trace_id, span_id in spans]
    assert sorted(headers["traceparent"] for headers in sent[:3]) == sorted(expected[:3])
    assert sent[3]["traceparent"] == theirs
    assert [headers["x-slo-class"] for headers in sent] == ["voice", "voice", "voice", "chat"]


def test_what_is_not_recorded(server: WireServer, recorder: Recorded) -> None:
    requests.post(server.url + CHAT, json={**QUESTION, "stream": False}, timeout=WAIT_S)
    requests.post(server.url + "/v1/embeddings", json=QUESTION, timeout=WAIT_S)
    with suppress_instrumentation():
        unseen = posted(server.url + CHAT)
    assert type(unseen.raw._fp.fp) is io.BufferedReader  # its reads are those of the bare library
    assert unseen.content
    with covering():
        assert posted(server.url + CHAT).content
    assert recorder.spans() == ()
    assert all("traceparent" not in sent.headers for sent in server.requests)


def by_hand(url: str, pieces: Iterator[bytes]) -> Any:
    connection = http.client.HTTPConnection(url.partition("//")[2].partition("/")[0], timeout=WAIT_S)
    connection.request("POST", CHAT, pieces, JSON)
    return connection.getresponse().read()


@pytest.mark.parametrize(
    "send",
    [by_hand, lambda url, pieces: requests.post(url, data=pieces, timeout=WAIT_S).content],
    ids=["http.client", "requests"],
)
def test_a_request_that_cannot_be_seen_is_known_by_its_answer(
    send: Callable[[str, Iterator[bytes]], bytes], server: WireServer, recorder: Recorded
) -> None:
    def pieces() -> Iterator[bytes]:
        yield BODY[:20].encode()
        yield BODY[20:].encode()

    assert send(server.url + CHAT, pieces()) == b"".join(bodies.chat())
    assert json.loads(server.requests[0].body) == QUESTION
    stream = recorder.stream()
    assert (stream.outcome, len(stream.times_ns)) == ("completed", 4)
    [request] = recorder.requests()
    assert request.name == "chat"


def test_an_open_inference_span_is_attached_to(server: WireServer, recorder: Recorded) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    tracer = TracerProvider().get_tracer("theirs")
    with tracer.start_as_current_span("chat m", attributes={semconv.GEN_AI_OPERATION_NAME: "chat"}) as span:
        assert posted(server.url + CHAT).content
        assert trace.get_current_span() is span
    assert recorder.stream().parents == [ids(span.get_span_context())]
    assert recorder.requests() == []


def test_a_connection_is_used_again(server: WireServer, recorder: Recorded) -> None:
    with requests.Session() as session:
        for _ in range(3):
            assert session.post(server.url + CHAT, json=QUESTION, timeout=WAIT_S).content
            assert session.get(server.url + CHAT, timeout=WAIT_S).status_code == 200
    assert [(stream.outcome, len(stream.times_ns)) for stream in recorder.streams()] == [("completed", 4)] * 3


def test_a_bug_while_parsing_is_one_warning(
    server: WireServer, recorder: Recorded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("otel_llm.instrumentation.parse.http_body.HttpBody.feed", bug)
    ways = [way for way in WAYS if way != "past http.client"]
    for way in ways:
        assert WAYS[way](server.url + CHAT)
    told = [record.name for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == ["otel_llm"]
    assert [stream.outcome for stream in recorder.streams()] == [None] * len(ways)


def test_uninstrumenting_leaves_the_bare_library() -> None:
    classes = http.client.HTTPConnection, urllib3.connection.HTTPConnection
    before = [dict(vars(cls)) for cls in classes]
    otel_llm.instrument(exporter=InMemorySpanExporter())
    assert [dict(vars(cls)) == seen for cls, seen in zip(classes, before, strict=True)] == [False, False]
    otel_llm.uninstrument()
    assert [dict(vars(cls)) for cls in classes] == before


def test_a_socket_that_does_not_wait_gives_what_it_gave(recorder: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    with WireServer([gate, *bodies.chat()]) as server:
        response: Any = bare(server.url)
        socket = response.fp.raw._sock
        socket.setblocking(False)
        assert (response.fp.read(5), response.fp.readinto(bytearray(5))) == (None, None)
        assert response.fp.readinto1(bytearray(5)) is None
        socket.settimeout(20)
        gate.open()
        response.read()
    assert (recorder.stream().outcome, len(recorder.stream().times_ns)) == ("completed", 4)
    assert not caplog.records
