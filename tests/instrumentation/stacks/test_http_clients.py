"""Every HTTP client, in every way that its users read: the same bytes as bare, recorded once, with token times."""

from __future__ import annotations

import gc
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import ClientResponse
from opentelemetry import trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation import wire_bodies as bodies
from support.instrumentation.http_clients import BODY, CLIENTS, PAST, Read, ask_aiohttp, open_requests
from support.instrumentation.recorded import Recorded, ids
from support.instrumentation.wire_bodies import QUESTION
from support.instrumentation.wire_server import EVENT_STREAM, WireServer
from support.logs import ours

import otel_llm
from otel_llm import semconv

CHAT = "/v1/chat/completions"
WAYS = [(client, way) for client, one in CLIENTS.items() for way in one.ways]

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning"),
]
every_client = pytest.mark.parametrize("client", CLIENTS)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Collect the connections that a test dropped while its own filters of warnings stand."""
    yield
    gc.collect()


@pytest.fixture
def server() -> Iterator[WireServer]:
    with WireServer(bodies.chat()) as running:
        yield running


def post(client: str, url: str, question: Any = QUESTION, **headers: str) -> bytes:
    body = question if isinstance(question, Iterator) else json.dumps(question).encode()
    return CLIENTS[client].post(url, body, {name.replace("_", "-"): value for name, value in headers.items()})


def compared(client: str, way: str, read: Read) -> object:
    """Return what is compared of a read: its pieces, or their bytes if the network cuts them."""
    return (type(read[0]), type(read[0])().join(read)) if way in CLIENTS[client].cut else list(read)


@pytest.mark.parametrize(("client", "way"), WAYS, ids=[" ".join(one) for one in WAYS])
def test_every_way_of_reading_gives_what_it_gave_and_is_recorded(client: str, way: str, server: WireServer) -> None:
    server.close = way == PAST
    read = CLIENTS[client].ways[way]
    bare = compared(client, way, read(server.url + CHAT))
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter)
    try:
        assert compared(client, way, read(server.url + CHAT)) == bare
        recorded = Recorded(exporter)
        stream = recorded.stream()
        [request] = recorded.requests()
    finally:
        otel_llm.uninstrument()
    assert (stream.outcome, stream.last[semconv.TOKENS], len(stream.times_ns)) == ("completed", 4, 4)
    assert request.name == "chat m"
    expected = {
        semconv.GEN_AI_REQUEST_STREAM: True,
        semconv.GEN_AI_USAGE_INPUT_TOKENS: 7,
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: 4,
        semconv.GEN_AI_RESPONSE_MODEL: "served",
        semconv.SERVER_ADDRESS: "127.0.0.1",
        semconv.SERVER_PORT: int(server.url.rpartition(":")[2]),
        semconv.MEASURED_AT: "client",
    }
    attributes = request.attributes or {}
    assert {name: attributes.get(name) for name in expected} == expected


TWO = [bodies.word(1), bodies.word(2)]
ENDS: dict[str, tuple[list[bytes], str, int, str | None]] = {
    "nothing": ([], "disconnected", 0, None),
    "cut": (TWO, "disconnected", 2, None),
    "unfinished line": ([*TWO, b"data: [DONE]"], "completed", 2, None),
    "error code": ([*TWO, b'data: {"error": {"message": "x", "code": 503}}\n\n'], "error", 2, "503"),
    "error type": ([*TWO, b'data: {"error": {"type": "overloaded"}}\n\n'], "error", 2, "overloaded"),
    "error text": ([*TWO, b'data: {"error": "words \xc3\xa4"}\n\n'], "error", 2, "_OTHER"),
    "no chunks": ([*TWO, b"data: {broken\n\n", b"data: 3\n\n", bodies.DONE], "completed", 2, None),
}
"""By name: the body, and its outcome, tokens and type of error. `test_situations.py` has more."""


def ended(recorder: Recorded) -> tuple[object, object, object]:
    """Return the outcome of the one stream, its tokens, and the type of the request's error."""
    [request] = recorder.requests()
    stream = recorder.stream()
    return stream.outcome, stream.last[semconv.TOKENS], (request.attributes or {}).get(semconv.ERROR_TYPE)


def in_turn(*each: str) -> list[tuple[str, str]]:
    """Return every client with the ends of `each`, and each other end with one client."""
    others = [name for name in ENDS if name not in each]
    turns = zip(others, CLIENTS, strict=False)
    return [*((client, name) for client in CLIENTS for name in each), *((client, name) for name, client in turns)]


@pytest.mark.parametrize(("client", "name"), in_turn("cut", "error code"))
def test_how_a_reply_ends(client: str, name: str, recorder: Recorded) -> None:
    pieces, *expected = ENDS[name]
    with WireServer(pieces) as server:
        assert post(client, server.url + CHAT) == b"".join(pieces)
    assert ended(recorder) == tuple(expected)


@every_client
@pytest.mark.parametrize(
    ("status", "content_type", "error"),
    [(503, "application/json", "503"), (429, "text/event-stream", "429"), (200, "application/json", "_OTHER")],
)
def test_an_answer_that_is_no_stream(
    status: int, content_type: str, error: str, client: str, recorder: Recorded
) -> None:
    with WireServer([b'{"error": {}}'], {"Content-Type": content_type}, status) as server:
        assert post(client, server.url + CHAT) == b'{"error": {}}'
    assert ended(recorder) == ("error", 0, error)


@every_client
def test_no_server_listens(client: str, recorder: Recorded) -> None:
    with WireServer() as server:
        url = server.url
    with pytest.raises(CLIENTS[client].refused):
        post(client, url + CHAT)
    assert ended(recorder)[0] == "disconnected"


@every_client
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_compressed_body_is_recorded_however_it_is_read(client: str, coding: str, recorder: Recorded) -> None:
    packer = zlib.compressobj(wbits=31 if coding == "gzip" else 15)
    pieces = [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in bodies.chat()] + [packer.flush()]
    with WireServer(pieces, {**EVENT_STREAM, "Content-Encoding": coding}) as server:
        assert post(client, server.url + CHAT) in {b"".join(pieces), b"".join(bodies.chat())}
    stream = recorder.stream()
    assert (stream.outcome, len(stream.times_ns)) == ("completed", 4)


RAW: dict[str, tuple[Callable[[str], bytes], str | None]] = {
    "httpx": (lambda url: b"".join(CLIENTS["httpx"].ways["raw"](url)), None),
    "httpx2": (lambda url: b"".join(CLIENTS["httpx2"].ways["raw"](url)), None),
    "aiohttp": (lambda url: b"".join(ask_aiohttp(url, until_end, auto_decompress=False)), None),
    "requests": (lambda url: bytes(open_requests(url).raw.read(decode_content=False)), "completed"),
}
"""How each client gives a compressed body as it came, and the outcome that is recorded then."""


async def until_end(response: ClientResponse) -> list[bytes]:
    return [piece async for piece in response.content.iter_any()]


@pytest.mark.parametrize("client", RAW)
def test_a_compressed_body_that_is_not_unpacked(client: str, recorder: Recorded) -> None:
    read, outcome = RAW[client]
    packed = gzip.compress(b"".join(bodies.chat()))
    with WireServer([packed], {**EVENT_STREAM, "Content-Encoding": "gzip"}) as server:
        assert read(server.url + CHAT) == packed
    [stream] = recorder.streams()
    assert (stream.outcome, len(stream.times_ns)) == (outcome, 4 if outcome else 0)


@every_client
def test_trace_and_class_travel_unless_they_are_there(client: str, server: WireServer) -> None:
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter, slo_class="voice")
    theirs = f"00-{'a' * 32}-{'b' * 16}-01"
    try:
        for _ in range(2):
            post(client, server.url + CHAT, x_mine="1")
        post(client, server.url + CHAT, Traceparent=theirs, X_SLO_Class="chat")
        spans = [ids(span.context) for span in Recorded(exporter).requests()]
    finally:
        otel_llm.uninstrument()
    sent = [request.headers for request in server.requests]
    expected = [f"00-{trace_id:032x}-{span_id:016x}-01" for trace_id, span_id in spans]
    assert [headers["traceparent"] for headers in sent] == [*expected[:2], theirs]
    assert [headers["x-slo-class"] for headers in sent] == ["voice", "voice", "chat"]
    assert [headers.get("x-mine") for headers in sent] == ["1", "1", None]
    assert len(set(spans)) == 3


@every_client
def test_what_is_not_recorded(client: str, server: WireServer, recorder: Recorded) -> None:
    post(client, server.url + CHAT, {**QUESTION, "stream": False})
    post(client, server.url + CHAT, {"messages": [{"content": '"stream": true'}]})
    post(client, server.url + "/v1/embeddings")
    with suppress_instrumentation():
        post(client, server.url + CHAT)
    assert recorder.spans() == ()
    assert all("traceparent" not in sent.headers for sent in server.requests)


@pytest.mark.parametrize("client", [name for name in CLIENTS if "lm15" not in name])
def test_a_request_that_cannot_be_seen_is_known_by_its_answer(
    client: str, server: WireServer, recorder: Recorded
) -> None:
    assert post(client, server.url + CHAT, iter([BODY[:20], BODY[20:]])) == b"".join(bodies.chat())
    assert json.loads(server.requests[0].body) == QUESTION
    assert ended(recorder) == ("completed", 4, None)
    [request] = recorder.requests()
    assert request.name == "chat"


@every_client
def test_choices_are_streams_of_their_own(client: str, recorder: Recorded) -> None:
    with WireServer(bodies.chat(3, choices=2)) as server:
        post(client, server.url + CHAT, {**QUESTION, "n": 2})
    for stream in recorder.streams():
        stream.check()
    assert [(one.outcome, one.last[semconv.TOKENS]) for one in recorder.streams()] == [("completed", 3)] * 2
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.GEN_AI_REQUEST_CHOICE_COUNT] == 2


@pytest.mark.parametrize("client", ["httpx", "httpx2", "aiohttp", "requests"])
@pytest.mark.parametrize(
    ("path", "body", "operation", "provider"),
    [
        ("/v1/completions", bodies.text(), "text_completion", "openai"),
        ("/openai/v1/responses?api-version=1", bodies.responses(), "chat", "openai"),
        ("/v1/messages", bodies.messages(), "chat", "anthropic"),
    ],
    ids=["completions", "responses", "messages"],
)
def test_the_other_endpoints(
    path: str, body: list[bytes], operation: str, provider: str, client: str, recorder: Recorded
) -> None:
    with WireServer(body) as server:
        post(client, server.url + path)
    [stream] = recorder.streams()
    assert (stream.outcome, stream.last[semconv.TOKENS], len(stream.times_ns)) == ("completed", 4, 4)
    [request] = recorder.requests()
    attributes = request.attributes or {}
    assert attributes[semconv.GEN_AI_OPERATION_NAME] == operation
    assert attributes[semconv.GEN_AI_PROVIDER_NAME] == provider
    assert attributes[semconv.GEN_AI_RESPONSE_MODEL] == "served"


@every_client
def test_an_open_inference_span_is_attached_to(client: str, server: WireServer, recorder: Recorded) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("theirs")
    with tracer.start_as_current_span("chat m", attributes={semconv.GEN_AI_OPERATION_NAME: "chat"}) as span:
        post(client, server.url + CHAT)
        assert trace.get_current_span() is span
    assert recorder.stream().parents == [ids(span.get_span_context())]
    assert recorder.requests() == []


@every_client
def test_a_bug_while_parsing_is_one_warning(
    client: str,
    server: WireServer,
    recorder: Recorded,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def bug(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    for parser in ("sse.SseParser", "http_body.HttpBody"):
        monkeypatch.setattr(f"otel_llm.instrumentation.parse.{parser}.feed", bug)
    ways = [read for way, read in CLIENTS[client].ways.items() if way != PAST]
    for read in ways:
        assert read(server.url + CHAT)
    assert len(ours(caplog)) == 1
    assert [stream.outcome for stream in recorder.streams()] == [None] * len(ways)
