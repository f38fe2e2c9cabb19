"""A real HTTP server that streams OpenAI-compatible replies at a scripted pace; the model's name picks the script.

`python -m otel_llm.bench.paced_server --port 0` prints one line with its base URL and serves until it is stopped.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import TYPE_CHECKING, Any

import click
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from otel_llm.bench.deliveries import DELIVERIES, Delivery, by_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

WORDS = [
    "people",
    "read",
    "while",
    "the",
    "model",
    "writes",
    "and",
    "they",
    "wait",
    "only",
    "when",
    "there",
    "is",
    "nothing",
    "left",
    "to",
    "read",
]


class ConnectionCutError(Exception):
    """Break the connection without ending the reply, as a dying server does."""


def create_app() -> Starlette:
    """Return the server: `/v1/models` and `/v1/chat/completions`."""
    return Starlette(
        routes=[
            Route("/v1/models", _models),
            Route("/v1/chat/completions", _complete, methods=["POST"]),
        ]
    )


async def _models(request: Request) -> Response:  # noqa: ARG001
    return JSONResponse({"object": "list", "data": [{"id": one.name, "object": "model"} for one in DELIVERIES]})


async def _complete(request: Request) -> Response:
    try:
        body = await request.json()
    except ValueError:
        return _refused(400, "the body is no JSON")
    delivery = by_name(body.get("model", "")) if isinstance(body, dict) else None
    if delivery is None:
        return _refused(404, "no such model; /v1/models lists them")
    if body.get("stream") is not True:
        return _refused(400, "this server only streams: send stream=true")
    options = body.get("stream_options") or {}
    return StreamingResponse(
        stream(delivery, running_usage=bool(options.get("continuous_usage_stats"))), media_type="text/event-stream"
    )


def _refused(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, status_code=status)


async def stream(delivery: Delivery, *, running_usage: bool) -> AsyncIterator[bytes]:
    """Yield the reply's server-sent events, each at its time on the loop's clock (pauses do not drift)."""
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    yield _event(delivery, {"role": "assistant", "content": ""})
    sent = 0
    for chunk in delivery.chunks:
        due_s += chunk.pause_s
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        text = "".join(f"{WORDS[(sent + k) % len(WORDS)]} " for k in range(chunk.tokens))
        sent += chunk.tokens
        yield _event(delivery, {"content": text}, sent if running_usage else None)
    if delivery.cut:
        raise ConnectionCutError
    yield _event(delivery, {}, sent if running_usage else None, finish="stop")
    yield b"data: [DONE]\n\n"


def _event(delivery: Delivery, delta: dict[str, str], tokens: int | None = None, finish: str | None = None) -> bytes:
    event: dict[str, Any] = {
        "id": f"chatcmpl-{delivery.name}",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": delivery.name,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    if tokens is not None:
        event["usage"] = {"prompt_tokens": 12, "completion_tokens": tokens, "total_tokens": 12 + tokens}
    return f"data: {json.dumps(event)}\n\n".encode()


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=0, show_default=True, help="0 picks a free one.")
def main(host: str, port: int) -> None:
    """Serve scripted replies until stopped."""
    listener = socket.create_server((host, port))
    click.echo(f"http://{host}:{listener.getsockname()[1]}/v1")
    sys.stdout.flush()
    # A cut connection is this server's purpose: its traceback would be noise.
    config = uvicorn.Config(create_app(), log_level="critical", access_log=False, lifespan="off")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
