"""What only httpx and httpx2 do with a stream; `test_http_clients.py` has what every HTTP client does."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import httpx
import httpx2
import pytest
from support.instrumentation import wire_bodies as bodies
from support.instrumentation.recorded import Recorded
from support.instrumentation.wire_bodies import QUESTION
from support.instrumentation.wire_server import WireServer
from support.sse_server import Gate

from otel_llm import semconv
from otel_llm.instrumentation.parse import sse_chunks
from otel_llm.instrumentation.request.wishes import Wishes
from otel_llm.instrumentation.stacks import client_request
from otel_llm.instrumentation.stacks.client_request import UNSEEN, StreamRequest
from otel_llm.semconv import MAX_CHOICES

CHAT = "/v1/chat/completions"


both = pytest.mark.parametrize("package", [httpx, httpx2], ids=["httpx", "httpx2"])


@both
def test_a_token_is_recorded_when_its_line_is_read_not_when_the_body_ends(package: Any, recorder: Recorded) -> None:
    gate = Gate()
    first, second = bodies.word(1), bodies.word(2)
    # The line of the second word comes without the blank line that ends its event.
    with (
        WireServer([first, second[:-1], gate, b"\n", bodies.DONE]) as server,
        package.Client() as client,
        client.stream("POST", server.url + CHAT, json=QUESTION) as response,
    ):
        lines = response.iter_lines()
        seen = list(itertools.islice(lines, 3))
        assert [line[:6] for line in seen] == ["data: ", "", "data: "]
        [stream] = recorder.streams()
        assert len(stream.times_ns) == 2
        assert stream.outcome is None
        gate.open()
        list(lines)
    assert recorder.stream().last[semconv.TOKENS] == 2


@both
def test_a_body_that_send_reads_is_recorded_as_it_comes(package: Any, recorder: Recorded) -> None:
    gate = Gate()

    async def post(url: str) -> Any:
        async with package.AsyncClient() as client:
            posted = asyncio.create_task(client.post(url, json=QUESTION))
            while not any(stream.times_ns for stream in await asyncio.to_thread(recorder.streams)):
                await asyncio.sleep(0.01)
            gate.open()
            return await posted

    with WireServer([bodies.word(1), gate, bodies.word(2), bodies.DONE]) as server:
        response = asyncio.run(post(server.url + CHAT))
    assert response.content == bodies.word(1) + bodies.word(2) + bodies.DONE
    assert response.is_closed
    stream = recorder.stream()
    assert (stream.outcome, len(stream.times_ns)) == ("completed", 2)


@both
def test_the_end_marker_is_the_end_for_who_stops_there(package: Any, recorder: Recorded) -> None:
    gate = Gate()
    with (
        WireServer([bodies.word(1), bodies.DONE, gate]) as server,
        package.Client() as client,
        client.stream("POST", server.url + CHAT, json=QUESTION) as response,
    ):
        for line in response.iter_lines():
            if line == "data: [DONE]":
                break
        assert recorder.stream().outcome == "completed"
        gate.open()


@both
def test_a_request_is_given_back_as_it_was(package: Any, recorder: Recorded) -> None:
    with WireServer(bodies.chat()) as server, package.Client() as client:
        request = client.build_request("POST", server.url + CHAT, json=QUESTION)
        before = list(request.headers.raw)
        for _ in range(2):
            client.send(request)
        assert list(request.headers.raw) == before
    first, second = (one.headers["traceparent"] for one in server.requests)
    assert first != second


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"stream": true, "model": "m", "n": 3}', StreamRequest(stream=True, model="m", wishes=Wishes(3))),
        ('{"stream":true}', StreamRequest(stream=True)),
        ({"stream": True, "model": 3, "n": True}, StreamRequest(stream=True)),
        ({"stream": True, "n": MAX_CHOICES + 1}, StreamRequest(stream=True)),
        (b'{"a": {"stream": true}}', None),
        (b'{"stream": false}', None),
        (b'{"stream": true', None),
        (b"", None),
        ({}, None),
        (None, UNSEEN),
        (object(), UNSEEN),
    ],
)
def test_what_a_request_asks_for(body: object, expected: StreamRequest | None) -> None:
    assert client_request.stream_request(sse_chunks.CHAT, CHAT, body) == expected
