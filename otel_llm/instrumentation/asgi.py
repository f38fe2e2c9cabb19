"""Any OpenAI-compatible server that is an ASGI application: what leaves it, token by token, and how that ended.

    vllm serve MODEL --middleware otel_llm.instrumentation.asgi.StreamMiddleware
    app.add_middleware(StreamMiddleware)

Messages pass through as they come, one for one: nothing is held back, nothing is read that the application does not
read, so back-pressure stays what it was.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from typing import TYPE_CHECKING, Any, Final

from otel_llm.instrumentation import runtime, served
from otel_llm.instrumentation.exchange import Exchange
from otel_llm.instrumentation.sse_chunks import api_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

ENGINES: Final = ("vllm", "sglang", "transformers")
"""Who serves, where nobody says: the first of these that this process has imported."""
INSTANCE_VARIABLE: Final = "OTEL_LLM_INSTANCE"

_log: Final = logging.getLogger("otel_llm")


class StreamMiddleware:
    """Records each streamed reply of an ASGI application.

    `provider` is the `gen_ai.provider.name` on what is recorded, default the engine that is found in this process.
    `instance` says which replica this is (`otel_llm.instance`), default the variable OTEL_LLM_INSTANCE, else
    `host:port`.
    """

    def __init__(self, app: App, provider: str | None = None, instance: str | None = None) -> None:
        self._app = app
        self._provider = provider
        self._instance = instance or os.environ.get(INSTANCE_VARIABLE) or None
        self._started = False
        self._failed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        heard = self._exchange(scope, receive, send)
        if heard is None:
            await self._app(scope, receive, send)
            return
        token = served.current.set(heard.served)
        try:
            await self._app(scope, heard.receive, heard.send)
        except BaseException as error:
            heard.raised(error)
            raise
        else:
            heard.returned()
        finally:
            # A coroutine that is dropped is closed in another context, where there is nothing to put back.
            with contextlib.suppress(ValueError):
                served.current.reset(token)

    def _exchange(self, scope: Scope, receive: Receive, send: Send) -> Exchange | None:
        """Return what listens to a request that may be answered by a stream, None for all other connections."""
        if self._failed:
            return None
        try:
            kind = scope["type"]
            api = api_of(scope["path"]) if kind == "http" and scope["method"] == "POST" else None
            if api is None and kind != "lifespan":
                return None
            if runtime.disabled():
                self._failed = True
                return None
            # At the start of the server, where there is one to hear of: the first request shall not wait for it. Once:
            # whoever stopped the recorder does not want it back.
            running = runtime.running() if self._started else runtime.start(runtime.configured)
            self._started = True
            if api is None or running is None:
                return None
            return Exchange(
                running,
                scope,
                receive,
                send,
                api=api,
                provider=self._provider or next((name for name in ENGINES if name in sys.modules), None),
                instance=self._instance or _instance(scope),
            )
        except Exception as bug:  # noqa: BLE001
            if runtime.running() is None:  # bad settings: they are as bad for the next request
                self._failed = True
                _log.warning("otel_llm cannot start and records nothing", exc_info=bug)
            else:
                runtime.warn(bug)
            return None


def _instance(scope: Scope) -> str | None:
    address = scope.get("server")
    if not address:
        return None
    _, port = address
    return socket.gethostname() if port is None else f"{socket.gethostname()}:{port}"
