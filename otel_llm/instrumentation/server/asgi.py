"""The middleware for ASGI applications with streamed replies: the tokens of each reply, and its outcome.

    vllm serve MODEL --middleware otel_llm.instrumentation.asgi.StreamMiddleware
    app.add_middleware(StreamMiddleware, paths=["/chat"])

Messages pass through one for one: nothing is held back, nothing is read that the application does not read, so
back-pressure is unchanged.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, ClassVar, Final

from otel_llm.instrumentation.core import serving
from otel_llm.instrumentation.process import graceful_stop, runtime
from otel_llm.instrumentation.process.graceful_stop import UVICORN
from otel_llm.instrumentation.request import propagation
from otel_llm.instrumentation.server.http_headers import kept, octets, pairs_of
from otel_llm.instrumentation.server.middleware import Middleware, handed_on

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from otel_llm.instrumentation.server.exchange import Exchange

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

START: Final = "http.response.start"
BODY: Final = "http.response.body"
BODIES: Final = frozenset({BODY, "http.response.pathsend", "http.response.zerocopysend"})
"""The messages with a piece of a reply: its bytes, or a file that the server sends; all others only go with it."""
LAST_WORDS: Final = frozenset({"lifespan.shutdown.complete", "lifespan.shutdown.failed"})
"""The messages at the end of an application's lifespan, after which its server stops."""


class StreamMiddleware(Middleware):
    """The ASGI middleware that records streamed replies; the settings are those of `Middleware`."""

    stack: ClassVar[str] = "asgi"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        kind = scope.get("type")
        if "headers" in scope and (headers := kept(scope["headers"])) is not scope["headers"]:
            scope["headers"] = headers  # the application reads them after us
        heard = None
        if kind == "http":
            heard = self._exchange(
                scope.get("method", ""),
                scope.get("path", ""),
                lambda: pairs_of(scope.get("headers")),
                lambda: scope.get("server") or None,
            )
        elif kind == "lifespan":
            self._running()  # the first request need not wait for that
            send = self._stopping(send)
        if heard is None:
            attached = propagation.enter(handed_on(lambda: pairs_of(scope.get("headers"))))
            try:
                await self._app(scope, receive, send)
            finally:
                propagation.detach(attached)
            return
        token = serving.current.set(heard.server_context)
        attached = propagation.enter(propagation.around(heard.server_context.context, heard.server_context.span))
        try:
            await self._app(scope, _receiving(heard, receive), _sending(heard, send))
        except BaseException as error:
            heard.raised(error)
            raise
        else:
            heard.returned()
        finally:
            propagation.detach(attached)
            # A dropped coroutine is closed in another context, where there is nothing to restore.
            with contextlib.suppress(ValueError):
                serving.current.reset(token)

    def _stopping(self, send: Send) -> Send:
        """Return the lifespan's `send` that sends the recorded data before it lets the server stop."""

        async def sends(message: Message) -> None:
            # uvicorn's own shutdown waits, and later: when the streams that its grace cut have ended.
            if message["type"] in LAST_WORDS and UVICORN not in sys.modules:
                with contextlib.suppress(Exception):
                    if (running := runtime.running()) is not None:
                        await graceful_stop.completed(running)
            await send(message)

        return sends


# The application calls these in place of the server's functions: messages pass unchanged, and so do the server's
# errors.


def _receiving(heard: Exchange, receive: Receive) -> Receive:
    async def received() -> Message:
        message = await receive()
        if not heard.deaf:
            try:
                kind = message["type"]
                if kind == "http.disconnect":
                    heard.left()
                elif kind == "http.request":
                    heard.take(octets(message.get("body")), more=bool(message.get("more_body", False)))
            except Exception as bug:  # noqa: BLE001
                heard.broken(bug)
        return message

    return received


def _sending(heard: Exchange, send: Send) -> Send:
    started = False

    async def sends(message: Message) -> None:
        nonlocal started
        kind = message.get("type")
        if kind == START and (headers := kept(message.get("headers"))) is not message.get("headers"):
            message = {**message, "headers": headers}  # the server reads them after us
        ends = not heard.deaf and kind in BODIES and not message.get("more_body", False)
        if not heard.deaf:
            try:
                if kind == BODY:
                    heard.sends(octets(message.get("body")))
                elif kind == START and not started:  # a server refuses a second one
                    started = True
                    heard.starts(message["status"], pairs_of(message.get("headers")))
            except Exception as bug:  # noqa: BLE001
                heard.broken(bug)
        if ends:
            heard.ending()
        try:
            await send(message)
        except BaseException as error:
            heard.unsent(error)
            raise
        if ends:
            heard.completed()

    return sends
