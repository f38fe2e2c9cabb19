"""OTLP over HTTP: POST /v1/traces as protobuf or JSON, plain or gzip, answered in the encoding of the request.

Errors are `google.rpc.Status` in that encoding. A browser may post from pages of listed origins only.
"""

from __future__ import annotations

import asyncio
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf.json_format import MessageToDict
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from otel_llm.collector.receive.errors import (
    BadRequestError,
    BusyError,
    InternalError,
    TooSlowError,
    UnsupportedContentError,
    answer,
    as_refusal,
    challenge,
    status,
)
from otel_llm.collector.receive.gunzip import gunzip
from otel_llm.collector.receive.refusal_counts import RefusalCounts
from otel_llm.collector.receive.senders import sender_of
from otel_llm.collector.settings import Limits
from otel_llm.formats.otlp.export_json import parse_json
from otel_llm.shared.errors import ForbiddenError, RefusalError, TooLargeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp

    from otel_llm.collector.receive.senders import Accept, Sender
    from otel_llm.shared.web.tokens import Tokens

T = TypeVar("T")


class Admission:
    """The limits of one receiver; use it in the receiver's event loop only."""

    def __init__(self, limits: Limits) -> None:
        self._most_bytes = limits.receiving_bytes
        self._most_exports = limits.concurrent_exports + limits.queued_exports
        self._threads = ThreadPoolExecutor(limits.concurrent_exports, thread_name_prefix="otlp-http")
        self._exports = 0
        self.held_bytes = 0
        """The bodies of all unanswered requests."""

    @contextmanager
    def receiving(self) -> Iterator[BodyMemory]:
        """Give the account of one request's body, until the end of the block."""
        room = BodyMemory(self)
        try:
            yield room
        finally:
            self.held_bytes -= room.taken

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run `work` in a thread and return its result.

        Raises:
            BusyError: too many exports wait for a thread.
        """
        if self._exports >= self._most_exports:
            raise BusyError("too many exports at once")
        self._exports += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        finally:
            self._exports -= 1

    def hold(self, count: int) -> None:
        """Count bytes.

        Raises:
            BusyError: there are too many.
        """
        if self.held_bytes + count > self._most_bytes:
            raise BusyError("too much is being received")
        self.held_bytes += count


class BodyMemory:
    """The memory that one body takes."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.taken = 0

    def take(self, count: int) -> None:
        """Take room for more bytes.

        Raises:
            BusyError: there is none.
        """
        self._admission.hold(count)
        self.taken += count


PATH: Final = "/v1/traces"
PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
CODE_OF_HTTP: Final = {404: 5, 405: 12}
"""`google.rpc.Code` of the router's answers: NOT_FOUND, UNIMPLEMENTED."""
PREFLIGHT_S: Final = 7200
"""The longest that Chromium caches the answer to a preflight."""
_log = logging.getLogger(__name__)


def otlp_app(
    accept: Accept,
    *,
    limits: Limits | None = None,
    tokens: Tokens | None = None,
    origins: frozenset[str] = frozenset(),
    refused: RefusalCounts | None = None,
) -> ASGIApp:
    """Return the ASGI application of the OTLP/HTTP receiver.

    Args:
        accept: as in `GrpcReceiver`; JSON reaches it as protobuf. It is called from several threads.
        limits: of bodies, sent and decompressed (413), of their time (408), of concurrent exports (429).
        tokens: an export's `Authorization` header must hold one of them (401); None: it need not.
        origins: of pages that a browser may post from; others get 403.
        refused: counts the exports refused here.
    """
    limits = Limits() if limits is None else limits
    counted = RefusalCounts() if refused is None else refused
    admission = Admission(limits)
    # As objects, many small values take a hundred times their bytes: one document is parsed at a time.
    one_document = Lock()

    async def traces(request: Request) -> Response:
        encoding = _media_type(request)
        try:
            sender = _check_sender(request, tokens, origins)
            gzipped = _check_content(request, encoding)
            with admission.receiving() as room:
                try:
                    async with asyncio.timeout(limits.body_s):
                        body = await _body(request, limits.message_bytes, room)
                except TimeoutError:
                    raise TooSlowError(f"the body did not arrive within {limits.body_s:g} s") from None
                made = await admission.run(_accept, body, gzipped, encoding == JSON, sender)
        except ClientDisconnect:
            counted.count_not_received()
            return Response(status_code=HTTPStatus.BAD_REQUEST)  # not sent: the client has left
        except Exception as error:  # noqa: BLE001 - it is the answer to the client
            refusal = as_refusal(error)
            if isinstance(refusal, InternalError):
                _log.exception("an export could not be accepted: this is a bug")
            refusal.with_traceback(None)  # its frames hold the body, and this frame holds the refusal: a cycle
            counted.count(refusal)
            return _refused(refusal, encoding)
        if encoding == PROTOBUF:
            return Response(made, media_type=PROTOBUF)
        return Response(json.dumps(MessageToDict(ExportTraceServiceResponse.FromString(made))), media_type=JSON)

    def _accept(body: bytes, gzipped: bool, is_json: bool, sender: Sender) -> bytes:
        raw = gunzip(body, limits.message_bytes) if gzipped else body
        if is_json:
            with one_document:
                raw = parse_json(raw).SerializeToString()
        return accept(raw, sender)

    async def refuse_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
        message = f"POST {PATH} is all there is" if error.status_code in CODE_OF_HTTP else error.detail
        if request.method == "POST":  # metrics, logs, or traces at a wrong path
            counted.count(UnsupportedContentError(message))
        code = CODE_OF_HTTP.get(error.status_code, 2)
        made = _status_response(Status(code=code, message=message), error.status_code, _media_type(request))
        made.headers.update(error.headers or {})
        return made

    app = Starlette(routes=[Route(PATH, traces, methods=["POST"])], exception_handlers={HTTPException: refuse_route})
    app.router.redirect_slashes = False  # an exporter would not follow
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["POST"],
        allow_headers=["Content-Type", "Content-Encoding", "Authorization"],
        expose_headers=["Retry-After"],
        max_age=PREFLIGHT_S,
    )


def _check_sender(request: Request, tokens: Tokens | None, origins: frozenset[str]) -> Sender:
    """Return a request's sender.

    Raises:
        ForbiddenError: the request is of a browser's page whose origin is not listed.
        UnauthenticatedError: it has no known token.
    """
    # Browsers send the origin with every POST, other clients send none: this stops DNS rebinding too.
    for origin in request.headers.getlist("origin"):
        if origin not in origins:
            raise ForbiddenError("no posting from this origin: list it in the settings file (cors: origins)")
    bearer = None if tokens is None else tokens.check(request.headers.getlist("authorization"))
    return sender_of("" if request.client is None else request.client.host, bearer)


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _check_content(request: Request, media_type: str) -> bool:
    """Return whether the body is gzip.

    Raises:
        UnsupportedContentError: the content type or encoding is not supported.
    """
    if media_type not in (PROTOBUF, JSON):
        raise UnsupportedContentError(f"content type must be {PROTOBUF} or {JSON}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("gzip", "identity", ""):
        raise UnsupportedContentError("content encoding must be gzip or none")
    return encoding == "gzip"


async def _body(request: Request, max_bytes: int, room: BodyMemory) -> bytes:
    declared = request.headers.get("content-length", "")
    if not (declared or "transfer-encoding" in request.headers):
        raise BadRequestError("the request has no body: send Content-Length, or Transfer-Encoding: chunked")
    if declared.isdigit() and int(declared) > max_bytes:
        raise TooLargeError(f"the body is larger than {max_bytes} bytes")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise TooLargeError(f"the body is larger than {max_bytes} bytes")
        room.take(len(chunk))
    return bytes(body)


def _refused(refusal: RefusalError, encoding: str) -> Response:
    http = answer(refusal).http
    made = _status_response(status(refusal), http, encoding)
    made.headers.update(challenge(refusal))
    if refusal.retry_after_s:
        made.headers["Retry-After"] = str(refusal.retry_after_s)
    if http == HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
        made.headers["Accept"], made.headers["Accept-Encoding"] = f"{PROTOBUF}, {JSON}", "gzip"
    if http == HTTPStatus.REQUEST_TIMEOUT:
        made.headers["Connection"] = "close"  # the rest of the body does not arrive, so it cannot be discarded
    return made


def _status_response(made: Status, http: int, encoding: str) -> Response:
    if encoding == PROTOBUF:
        return Response(made.SerializeToString(), http, media_type=PROTOBUF)
    return Response(json.dumps({"code": made.code, "message": made.message}), http, media_type=JSON)
