"""What only `http.client` and what stands on it do with a stream; `test_http_clients.py` has what every client does."""

from __future__ import annotations

import gc
import http.client
import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
import urllib3
from opentelemetry.instrumentation.utils import suppress_instrumentation
from support.instrumentation import wire_bodies as bodies
from support.instrumentation.http_clients import BODY, CLIENTS, JSON, open_bare, open_requests, open_urllib3
from support.instrumentation.recorded import Recorded
from support.instrumentation.wire_bodies import QUESTION
from support.instrumentation.wire_server import EVENT_STREAM, WireServer
from support.logs import ours
from support.patience import WAIT_S
from support.sse_server import Gate

from otel_llm import semconv
from otel_llm.instrumentation.core.suppressing import suppressing

CHAT = "/v1/chat/completions"


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


@pytest.mark.parametrize("opened", [open_bare, open_urllib3, open_requests], ids=["http.client", "urllib3", "requests"])
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
        for client, way in (("http.client", "lines"), ("urllib3", "stream of 7"), ("requests", "lines")):
            assert CLIENTS[client].ways[way](server.url + CHAT)
    assert [(stream.outcome, len(stream.times_ns)) for stream in recorder.streams()] == [("completed", 4)] * 3


@pytest.mark.parametrize("opened", [open_bare, open_urllib3, open_requests], ids=["http.client", "urllib3", "requests"])
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


class LostError(Exception):
    """The connection of the test is gone while the body is sent."""


def test_a_request_whose_body_cannot_be_sent_has_failed(server: WireServer, recorder: Recorded) -> None:
    class Connection(urllib3.connection.HTTPConnection):
        def send(self, data: Any) -> None:
            if data == BODY:
                raise LostError
            super().send(data)

    connection = Connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    with pytest.raises(LostError):
        connection.request("POST", CHAT, BODY, dict(JSON))
    connection.close()
    assert recorder.stream().outcome == "error"


@pytest.mark.parametrize("outcome", ["cancelled", "abandoned"])
def test_a_connection_that_is_closed_or_dropped_before_the_response(outcome: str, recorder: Recorded) -> None:
    gate = Gate()
    with WireServer([bodies.word(1)], before_headers=gate) as server:
        connection = http.client.HTTPConnection(server.url.partition("//")[2])
        connection.request("POST", CHAT, BODY, dict(JSON))
        if outcome == "cancelled":
            connection.close()
        del connection
        gc.collect()
        assert recorder.stream().outcome == outcome
        gate.open()


@pytest.mark.parametrize("coding", ["zstd", "gzip"])
def test_a_body_that_cannot_be_unpacked_is_given_up(
    coding: str, recorder: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    with WireServer([b"neither"], {**EVENT_STREAM, "Content-Encoding": coding}) as server:
        assert open_bare(server.url + CHAT).read() == b"neither"
    [stream] = recorder.streams()
    assert (stream.outcome, stream.times_ns) == (None, [])
    assert ours(caplog) == []


def test_reads_of_what_is_not_recorded_are_those_of_the_bare_library(server: WireServer, recorder: Recorded) -> None:
    with suppress_instrumentation():
        unseen = open_requests(server.url + CHAT)
    assert type(unseen.raw._fp.fp) is io.BufferedReader
    assert unseen.content
    with suppressing():
        assert open_requests(server.url + CHAT).content
    assert recorder.spans() == ()
    assert all("traceparent" not in sent.headers for sent in server.requests)


def test_a_connection_is_used_again(server: WireServer, recorder: Recorded) -> None:
    with requests.Session() as session:
        for _ in range(3):
            assert session.post(server.url + CHAT, json=QUESTION, timeout=WAIT_S).content
            assert session.get(server.url + CHAT, timeout=WAIT_S).status_code == 200
    assert [(stream.outcome, len(stream.times_ns)) for stream in recorder.streams()] == [("completed", 4)] * 3


def test_a_socket_that_does_not_wait_gives_what_it_gave(recorder: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    with WireServer([gate, *bodies.chat()]) as server:
        response: Any = open_bare(server.url + CHAT)
        socket = response.fp.raw._sock
        socket.setblocking(False)
        assert (response.fp.read(5), response.fp.readinto(bytearray(5))) == (None, None)
        assert response.fp.readinto1(bytearray(5)) is None
        socket.settimeout(WAIT_S)
        gate.open()
        response.read()
    assert (recorder.stream().outcome, len(recorder.stream().times_ns)) == ("completed", 4)
    assert ours(caplog) == []
