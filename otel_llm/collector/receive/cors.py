"""Let pages of listed origins post from a browser (the Fetch standard's CORS protocol); all others stay shut out."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_AGE_S: Final = 7200
"""The longest that Chromium keeps the answer to a preflight."""


class Cors:
    """An ASGI application that says which pages may ask it; an origin is named back, never `*`, never credentials."""

    def __init__(self, app: ASGIApp, origins: frozenset[str]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a preflight; mark the answer to a post."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        origin = headers.get("origin")
        if origin not in self._origins:
            await self._app(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                made = MutableHeaders(scope=message)
                made["Access-Control-Allow-Origin"] = origin
                made["Access-Control-Expose-Headers"] = "Retry-After"
                made.add_vary_header("Origin")
            await send(message)

        app: ASGIApp = self._app
        if scope["method"] == "OPTIONS" and headers.get("access-control-request-method") == "POST":
            app = Response(
                status_code=HTTPStatus.NO_CONTENT,
                headers={
                    "Access-Control-Allow-Methods": "POST",
                    "Access-Control-Allow-Headers": "Content-Type, Content-Encoding, Authorization",
                    "Access-Control-Max-Age": str(MAX_AGE_S),
                },
            )
        await app(scope, receive, marked)
