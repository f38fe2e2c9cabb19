"""A request whose body is compressed asks for a stream like any other; a bomb costs no more than its bound."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable

import pytest
import zstandard
from support.instrumentation.http_clients import CLIENTS
from support.instrumentation.memory import held
from support.instrumentation.recorded import Recorded
from support.instrumentation.situations import CHAT, SITUATIONS, WORDS
from support.instrumentation.wire_server import WireServer

from otel_llm import semconv
from otel_llm.instrumentation.parse.sse_chunks import CHAT as CHAT_API
from otel_llm.instrumentation.stacks.client_request import MAX_BODY_BYTES, UNSEEN, stream_request

BODY = json.dumps(CHAT.asks).encode()
CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("client", ["httpx", "requests"])
@pytest.mark.parametrize("coding", CODINGS)
def test_a_compressed_request_is_one_row_with_its_model(client: str, coding: str, recorder: Recorded) -> None:
    body = CODINGS[coding](BODY)
    with WireServer(SITUATIONS["as documented"].body(CHAT)) as server:
        CLIENTS[client].post(server.url + CHAT.path, body, {"Content-Encoding": coding})
        assert [one.body for one in server.requests] == [body]
    [request] = recorder.requests()
    attributes = request.attributes or {}
    assert attributes[semconv.GEN_AI_REQUEST_MODEL] == "m"
    assert (attributes[semconv.OUTCOME], attributes[semconv.TOKENS]) == ("completed", WORDS)


def test_a_body_that_cannot_be_unpacked_is_known_by_its_answer(recorder: Recorded) -> None:
    with WireServer(SITUATIONS["as documented"].body(CHAT)) as server:
        CLIENTS["httpx"].post(server.url + CHAT.path, b"\x1f\x8bno gzip", {"Content-Encoding": "gzip"})
    assert recorder.stream().last[semconv.TOKENS] == WORDS


def test_a_request_that_asks_for_no_stream_is_not_recorded() -> None:
    whole = gzip.compress(json.dumps({"model": "m"}).encode())
    assert stream_request(CHAT_API, CHAT.path, whole) is None


def test_a_bomb_costs_its_bound() -> None:
    bomb = gzip.compress(b" " * (8 * MAX_BODY_BYTES), 1)
    with held() as memory:
        assert stream_request(CHAT_API, CHAT.path, bomb) is UNSEEN
    assert memory.most < 3 * MAX_BODY_BYTES
