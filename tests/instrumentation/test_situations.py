"""Every client, and the middlewares, in every situation of the table: one row, with its tokens and its end."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from typing import Any

import anthropic
import openai
import pytest
from support.instrumentation.http_clients import CLIENTS
from support.instrumentation.recorded import Recorded
from support.instrumentation.situations import APIS, SITUATIONS, Api, Situation
from support.instrumentation.wire_server import WireServer

import otel_llm
from otel_llm import semconv
from otel_llm.instrumentation.server import asgi, wsgi

Read = bytes | list[str] | str
"""What a caller got: bytes, what an SDK made of them, or the name of the error that it raised."""


def over_openai(url: str, api: Api) -> Read:
    asked = {name: value for name, value in api.asks.items() if name != "stream"}
    with openai.OpenAI(base_url=url.partition("/v1")[0] + "/v1", api_key="none", max_retries=0) as client:
        create: Any = client.chat.completions.create if api is APIS["chat"] else client.responses.create
        return seen(lambda: create(**asked, stream=True))


def over_anthropic(url: str, api: Api) -> Read:
    asked: Any = api.asks
    with anthropic.Anthropic(base_url=url.partition("/v1")[0], api_key="none", max_retries=0) as client:
        return seen(lambda: client.messages.create(**asked))


def seen(create: Callable[[], Any]) -> Read:
    try:
        return [one.model_dump_json() for one in create()]
    except Exception as error:  # noqa: BLE001
        return type(error).__name__


SDKS: dict[str, Callable[[str, Api], Read]] = {
    "chat": over_openai,
    "responses": over_openai,
    "messages": over_anthropic,
}


def cases(clients: Sequence[str], each: int = 1) -> Iterator[Any]:
    """Yield each situation in each API that has it, with `each` of the clients in turn."""
    turns = cycle(clients)
    for name, situation in SITUATIONS.items():
        for api in situation.apis:
            for client in islice(turns, each):
                yield pytest.param(client, APIS[api], situation, id=f"{client}, {api}, {name}")


def of_row(recorder: Recorded) -> tuple[object, object]:
    """Return how the one row ended, and its tokens."""
    [request] = recorder.requests()
    [stream] = recorder.streams()
    attributes = request.attributes or {}
    assert stream.outcome == attributes[semconv.OUTCOME]
    return attributes[semconv.OUTCOME], attributes[semconv.TOKENS]


BYTES = [name for name in CLIENTS if "lm15" not in name]
"""lm15 refuses some codings itself."""


@pytest.mark.parametrize(("client", "api", "situation"), list(cases(BYTES, 2)))
def test_a_client_that_reads_bytes(client: str, api: Api, situation: Situation, recorder: Recorded) -> None:
    pieces = situation.body(api)
    with WireServer([piece for piece in pieces if piece], situation.headers) as server:
        body = json.dumps(api.asks).encode()
        assert CLIENTS[client].post(server.url + api.path, body, {}) == b"".join(pieces)
    assert of_row(recorder) == (situation.outcome, situation.tokens)


@pytest.mark.parametrize(
    ("sdk", "api", "situation"), [one for one in cases(["SDK"]) if one.values[1] is not APIS["gemini"]]
)
def test_an_sdk(sdk: str, api: Api, situation: Situation, recorder: Recorded) -> None:
    name = next(name for name, one in APIS.items() if one is api)
    pieces = [piece for piece in situation.body(api) if piece]
    with WireServer(pieces, situation.headers) as server:
        read = SDKS[name](server.url + api.path, api)
        outcome, tokens = of_row(recorder)
        otel_llm.uninstrument()
        assert SDKS[name](server.url + api.path, api) == read
    if isinstance(read, str):  # it raised: the row has what was read until then
        assert outcome in {"error", "disconnected"}
    elif situation.sdks:
        assert (outcome, tokens) == (situation.outcome, situation.tokens)
    else:
        assert tokens in {0, situation.tokens}


def served_by_asgi(pieces: Sequence[bytes], headers: dict[str, str], api: Api) -> bytes:
    """Return what an ASGI server gets of a reply."""

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        stated = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": stated})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def serve() -> bytes:
        got: list[Any] = []
        body = json.dumps(api.asks).encode()

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            got.append(message)

        scope = {"type": "http", "method": "POST", "path": api.path, "query_string": b"", "headers": []}
        await asgi.StreamMiddleware(app)(scope, receive, send)
        assert [name.decode() for name, _ in got[0]["headers"]] == [name.lower() for name in headers]
        return b"".join(message["body"] for message in got[1:])

    return asyncio.run(serve())


def served_by_wsgi(pieces: Sequence[bytes], headers: dict[str, str], api: Api) -> bytes:
    """Return what a WSGI server gets of a reply."""

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        environ["wsgi.input"].read()
        start_response("200 OK", list(headers.items()))
        return iter(pieces)

    body = json.dumps(api.asks).encode()
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": api.path, "wsgi.input": io.BytesIO(body)}
    reply: Any = wsgi.StreamMiddleware(app)(environ, lambda _status, _headers, *_more: lambda _data: None)
    with contextlib.closing(reply) if hasattr(reply, "close") else contextlib.nullcontext():
        return b"".join(reply)


SERVED = {"asgi": served_by_asgi, "wsgi": served_by_wsgi}


@pytest.mark.parametrize(
    ("server", "api", "situation"), [one for one in cases(list(SERVED), 2) if one.values[1] is not APIS["gemini"]]
)
def test_a_middleware(server: str, api: Api, situation: Situation, recorder: Recorded) -> None:
    pieces = [piece for piece in situation.body(api) if piece]
    assert SERVED[server](pieces, dict(situation.headers), api) == b"".join(pieces)
    # An application that sends its reply to the end has not broken it off.
    outcome = "completed" if situation.outcome == "disconnected" else situation.outcome
    assert of_row(recorder) == (outcome, situation.tokens)
