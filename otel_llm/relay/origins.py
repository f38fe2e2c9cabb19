"""The pages that may ask: a browser names the origin of its page, and any page can reach a port of its own machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiohttp import web

from otel_llm.relay.answers import error_response

if TYPE_CHECKING:
    from multidict import CIMultiDict

ORIGIN: Final = web.RequestKey("origin", str)
_PREFLIGHT_S: Final = 600


class ClientRequest(web.BaseRequest):
    """A request of a client; the answers to a page that may ask say so to its browser."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        origin = self.get(ORIGIN)
        if origin is not None:
            _allow(response.headers, origin)


def checked_origin(request: web.BaseRequest, allowed: frozenset[str]) -> web.Response | None:
    """Return the answer to a page that may not ask, and to a browser that asks whether one may; None for the others.

    Only browsers send the header, and cannot be kept from it: it stops DNS rebinding, too.
    """
    stated = request.headers.getall("Origin", [])
    if not stated:
        return None
    if len(stated) > 1 or stated[0] not in allowed:
        message = "no page of this origin may ask: list it in the settings file (cors: origins)"
        return error_response(403, message, "invalid_request_error", "unknown_origin")
    request[ORIGIN] = stated[0]
    if request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers:
        return None
    response = web.Response(status=204)
    response.headers["Access-Control-Allow-Methods"] = "GET, POST"
    response.headers["Access-Control-Allow-Headers"] = request.headers.get("Access-Control-Request-Headers", "")
    response.headers["Access-Control-Max-Age"] = str(_PREFLIGHT_S)
    return response


def _allow(headers: CIMultiDict[str], origin: str) -> None:
    """Let the page of an origin read an answer, whatever the backend says of pages."""
    headers["Access-Control-Allow-Origin"] = origin
    headers.add("Vary", "Origin")
