"""A real HTTP server that streams OpenAI-compatible replies at a scripted pace; the model's name picks the script.

`python -m otel_llm.demo.paced_server --port 0` prints one line with its base URL and serves until it is stopped. As in
vLLM, `return_token_ids` adds ids, and `/v1/completions` continues a reply from the end of its prompt's ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from otel_llm.demo.paced_requests import MAX_MODEL_LEN, PacedRequest, RefusedError, prompt_of
from otel_llm.demo.scripted_deliveries import DELIVERIES, Stalls
from otel_llm.demo.vocabulary import continuation, detokenize

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.requests import Request

    from otel_llm.demo.paced_requests import Endpoint
    from otel_llm.demo.scripted_deliveries import Chunk


DONE: Final = b"data: [DONE]\n\n"


@dataclass(slots=True)
class ReplyChunks:
    """The events of one reply in their order; `sent`: tokens so far."""

    request: PacedRequest
    sent: int = 0
    _prompt_told: bool = field(default=False, init=False)

    def opening(self) -> Iterator[bytes]:
        """Yield a chat's first chunk, which has a role and no text."""
        if self.request.endpoint == "chat":
            yield self._event(self._choice("", role="assistant"), self._prompt())

    def text(self, ids: list[int]) -> bytes:
        """Return the chunk of the next tokens."""
        self.sent += len(ids)
        return self._event(self._choice(detokenize(ids), ids), usage=self.request.running_usage)

    def closing(self) -> Iterator[bytes]:
        """Yield the finish, the usage if it was asked for, and the end."""
        yield self._event(self._choice(None, [], finish=self.request.finish), usage=self.request.running_usage)
        if self.request.final_usage:
            yield self._event(None, usage=True)
        yield DONE

    def _choice(
        self, text: str | None, ids: list[int] | None = None, *, role: str | None = None, finish: str | None = None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0}
        if self.request.endpoint == "chat":
            choice["delta"] = ({} if role is None else {"role": role}) | ({} if text is None else {"content": text})
        else:
            choice |= {"text": text or ""}
        choice["finish_reason"] = finish
        if self.request.return_ids:
            if ids is not None:
                choice["token_ids"] = ids
            if self.request.endpoint == "completions":
                choice |= self._prompt()
        return choice

    def _prompt(self) -> dict[str, Any]:
        """Return the prompt's ids with the first chunk that asks for them."""
        if self._prompt_told or not self.request.return_ids:
            return {}
        self._prompt_told = True
        return {"prompt_token_ids": self.request.prompt_ids}

    def _event(
        self, choice: dict[str, Any] | None, more: dict[str, Any] | None = None, *, usage: bool = False
    ) -> bytes:
        chat = self.request.endpoint == "chat"
        event: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{self.request.delivery.name}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": 0,
            "model": self.request.delivery.name,
            "choices": [] if choice is None else [choice],
            **(more or {}),
        }
        if usage:
            prompt = len(self.request.prompt_ids)
            event["usage"] = {
                "prompt_tokens": prompt,
                "completion_tokens": self.sent,
                "total_tokens": prompt + self.sent,
            }
        return f"data: {json.dumps(event)}\n\n".encode()


ENDPOINTS: Final[dict[str, Endpoint]] = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}


class ConnectionCutError(Exception):
    """The connection is broken without ending the reply, as by a dying server."""


def create_app(stalls: Stalls | None = None, slots: int | None = None) -> Starlette:
    """Return the server; some of its streams stall if `stalls` is given, and only `slots` are served at a time."""
    numbers = itertools.count(1)
    free = None if slots is None else asyncio.Semaphore(slots)

    async def complete(request: Request) -> Response:
        asked = PacedRequest.read(ENDPOINTS[request.url.path], await _body(request))
        chunks = asked.chunks if stalls is None else stalls.applied(next(numbers), asked.chunks)
        return StreamingResponse(stream(asked, chunks, free), media_type="text/event-stream")

    return Starlette(
        routes=[
            Route("/health", _health),
            Route("/v1/models", _models),
            *(Route(path, complete, methods=["POST"]) for path in ENDPOINTS),
            Route("/tokenize", _tokenize, methods=["POST"]),
            Route("/detokenize", _detokenize, methods=["POST"]),
        ],
        exception_handlers={RefusedError: _refused},
    )


async def _health(request: Request) -> Response:  # noqa: ARG001
    return Response()


async def _models(request: Request) -> Response:  # noqa: ARG001
    models = [{"id": one.name, "object": "model", "max_model_len": MAX_MODEL_LEN} for one in DELIVERIES]
    return JSONResponse({"object": "list", "data": models})


async def _tokenize(request: Request) -> Response:
    body = await _body(request)
    ids = prompt_of(body.get("prompt") if isinstance(body, dict) else None)
    return JSONResponse({"count": len(ids), "max_model_len": MAX_MODEL_LEN, "tokens": ids, "token_strs": None})


async def _detokenize(request: Request) -> Response:
    body = await _body(request)
    return JSONResponse({"prompt": detokenize(prompt_of(body.get("tokens") if isinstance(body, dict) else None))})


async def _body(request: Request) -> Any:
    try:
        return await request.json()
    except ValueError:
        raise RefusedError(400, "the body is no JSON") from None


async def _refused(request: Request, refused: Exception) -> Response:  # noqa: ARG001
    status = refused.status if isinstance(refused, RefusedError) else 500
    error = {"message": str(refused), "type": "invalid_request_error"}
    return JSONResponse({"error": error}, status_code=status)


async def stream(
    request: PacedRequest, chunks: tuple[Chunk, ...], free: asyncio.Semaphore | None = None
) -> AsyncIterator[bytes]:
    """Yield the reply's server-sent events, each at its time on the loop's clock (pauses do not drift).

    `free`: the slots; the reply waits for one, in order of arrival, and holds it to its end.
    """
    async with contextlib.nullcontext() if free is None else free:
        async for event in _paced(request, chunks):
            yield event


async def _paced(request: PacedRequest, chunks: tuple[Chunk, ...]) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    reply = ReplyChunks(request)
    for event in reply.opening():
        yield event
    ids = list(request.prompt_ids)
    for chunk in chunks:
        due_s += chunk.pause_s
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        new = continuation(ids, chunk.tokens)
        ids += new
        yield reply.text(new)
    if request.delivery.cut:
        raise ConnectionCutError
    for event in reply.closing():
        yield event


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=0, show_default=True, help="0 picks a free one.")
@click.option(
    "--stall-every", type=click.IntRange(min=1), metavar="N", help="Stall every Nth stream (2: half of them)."
)
@click.option(
    "--stall-after",
    type=click.IntRange(min=0),
    default=12,
    show_default=True,
    metavar="TOKENS",
    help="Stall behind so many tokens.",
)
@click.option(
    "--stall-for",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a stall lasts.",
)
@click.option(
    "--slots", type=click.IntRange(min=1), metavar="N", help="Serve N replies at a time; others wait for one."
)
def main(host: str, port: int, stall_every: int | None, stall_after: int, stall_for: float, slots: int | None) -> None:
    """Serve scripted replies until stopped; `/v1/models` lists the scripts.

    With --stall-every a stream stops in mid-reply and goes on later, whatever its script; a reply that another server
    resumes from its token ids does not notice. With --slots replies wait for each other, as on an engine that is full.

    \b
    Example:
      python -m otel_llm.demo.paced_server --port 8001 --stall-every 2 --stall-after 12 --stall-for 5
      python -m otel_llm.demo.paced_server --port 8001 --slots 4   # a queue: `otel-llm bench` shows its waits
    """
    stalls = None if stall_every is None else Stalls(stall_every, stall_after, stall_for)
    listener = socket.create_server((host, port))
    click.echo(f"http://{host}:{listener.getsockname()[1]}/v1")
    sys.stdout.flush()
    # A cut connection is this server's purpose: its traceback would be noise.
    config = uvicorn.Config(create_app(stalls, slots), log_level="critical", access_log=False, lifespan="off")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
