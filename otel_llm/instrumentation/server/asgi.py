"""The middleware for ASGI applications with streamed replies: the tokens of each reply, and its outcome.

    vllm serve MODEL --middleware otel_llm.instrumentation.server.asgi.StreamMiddleware
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
from otel_llm.instrumentation.server.middleware import Middleware, handed_on

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from otel_llm.instrumentation.server.exchange import Exchange

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

LAST_WORDS: Final = frozenset({"lifespan.shutdown.complete", "lifespan.shutdown.failed"})
"""The messages at the end of an application's lifespan, after which its server stops."""


class StreamMiddleware(Middleware):
    """The ASGI middleware that records streamed replies; the settings are those of `Middleware`."""

    stack: ClassVar[str] = "asgi"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        kind = scope["type"]
        heard = None
        if kind == "http":
            heard = self._exchange(
                scope["method"], scope["path"], lambda: scope["headers"], lambda: scope.get("server") or None
            )
        elif kind == "lifespan":
            self._running()  # the first request need not wait for that
            send = self._stopping(send)
        if heard is None:
            attached = propagation.enter(handed_on(scope.get("headers", ())))
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
                        await graceful_stop.settled(running)
            await send(message)

        return sends


# The application calls these in place of the server's functions: messages pass unchanged, and so do the server's
# errors.


def _receiving(heard: Exchange, receive: Receive) -> Receive:
    async def received() -> Message:
        message = await receive()
        if not heard.deaf:
            try:
                if message["type"] == "http.disconnect":
                    heard.left()
                else:
                    heard.take(message.get("body", b""), more=message.get("more_body", False))
            except Exception as bug:  # noqa: BLE001
                heard.broken(bug)
        return message

    return received


def _sending(heard: Exchange, send: Send) -> Send:
    async def sends(message: Message) -> None:
        ends = False
        if not heard.deaf:
            try:
                if message["type"] == "http.response.body":
                    heard.sends(message.get("body", b""))
                    ends = not message.get("more_body", False)
                elif message["type"] == "http.response.start":
                    heard.starts(message["status"], message.get("headers", ()))
            except Exception as bug:  # noqa: BLE001
                heard.broken(bug)
        try:
            await send(message)
        except OSError:
            heard.left()
            raise
        if ends:
            heard.completed()

    return sends
