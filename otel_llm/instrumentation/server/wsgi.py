"""The middleware for WSGI applications (PEP 3333) with streamed replies, such as Flask's and Django's.

    app.wsgi_app = StreamMiddleware(app.wsgi_app, paths=["/chat"])

The reply's chunks pass through one for one, as the server asks for them. The application's code runs on the server's
thread, a chunk at a time: its context is set for each turn, and removed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import tee
from typing import TYPE_CHECKING, Any, ClassVar, Final

from opentelemetry import context as otel_context

from otel_llm.instrumentation.core import serving
from otel_llm.instrumentation.core.server_context import current_server_context
from otel_llm.instrumentation.request import propagation
from otel_llm.instrumentation.server.http_headers import octets, pairs_of
from otel_llm.instrumentation.server.middleware import Middleware, handed_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.context import Context

    from otel_llm.instrumentation.core.server_context import ServerContext
    from otel_llm.instrumentation.server.exchange import Exchange
    from otel_llm.instrumentation.server.http_headers import Headers

    Environ = dict[str, Any]
    StartResponse = Callable[..., Callable[[bytes], object]]

_HEADERS: Final = (
    (b"traceparent", "HTTP_TRACEPARENT"),
    (b"tracestate", "HTTP_TRACESTATE"),
    (b"baggage", "HTTP_BAGGAGE"),
    (b"x-slo-class", "HTTP_X_SLO_CLASS"),
    (b"x-request-id", "HTTP_X_REQUEST_ID"),
    (b"request-id", "HTTP_REQUEST_ID"),
    (b"content-encoding", "HTTP_CONTENT_ENCODING"),
)
"""The request headers that are read, and their names in the environ."""
INPUT: Final = "wsgi.input"
MAX_DIGITS: Final = 18
"""A longer number is none: Python refuses to read one of thousands of digits."""


class StreamMiddleware(Middleware):
    """The WSGI middleware that records streamed replies; the settings are those of `Middleware`."""

    stack: ClassVar[str] = "wsgi"

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        heard = self._exchange(
            environ.get("REQUEST_METHOD", ""),
            environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""),
            lambda: _headers(environ),
            lambda: _address(environ),
        )
        if heard is None:
            context = handed_on(lambda: _headers(environ))
            if context is None:
                return self._app(environ, start_response)  # type: ignore[no-any-return]
            turns = Turns(context, None)
            body = turns.run(self._app, environ, start_response)
            return body if _at_hand(body, environ) else _chunks(body, turns, None)
        if heard.reads_request and INPUT in environ:
            environ[INPUT] = Input(environ[INPUT], heard, _number(environ.get("CONTENT_LENGTH")))
        turns = Turns(propagation.around(heard.server_context.context, heard.server_context.span), heard.server_context)
        starting = Starting(start_response, heard)
        try:
            body = turns.run(self._app, environ, starting)
        except BaseException as error:
            heard.raised(error)
            raise
        if starting.called and not heard.listens:  # a reply that is not recorded
            return body  # type: ignore[no-any-return]
        if not _at_hand(body, environ):
            return _chunks(body, turns, heard)
        if isinstance(body, list | tuple):
            for chunk in body:
                _sends(heard, chunk)
        heard.completed()
        return body  # type: ignore[no-any-return]


class Turns:
    """The turns of the application's code for one request, each in the context in which the turn before ended."""

    __slots__ = ("_context", "_server_context")

    def __init__(self, context: Context | None, request: ServerContext | None) -> None:
        self._context = otel_context.get_current() if context is None else context
        self._server_context = current_server_context() if request is None else request

    def run(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call `call` and return its result; errors pass through."""
        attached = otel_context.attach(self._context)
        token = serving.current.set(self._server_context)
        try:
            return call(*args)
        finally:
            self._context = otel_context.get_current()
            otel_context.detach(attached)
            serving.current.reset(token)


class Pieces:
    """A reply's chunks on their way from the application to the server."""

    def __init__(self, body: Iterable[bytes], turns: Turns, heard: Exchange | None) -> None:
        self._body = body
        self._turns = turns
        self._heard = heard
        self._ended = False
        self._iterator: Iterator[bytes] | None = None
        self._watched = False
        self._watch()

    def __iter__(self) -> Pieces:
        return self

    def __next__(self) -> bytes:
        heard = self._heard
        try:
            chunk: bytes = self._turns.run(self._next)
        except BaseException as error:
            self._ended = True
            if heard is not None and isinstance(error, StopIteration):
                heard.completed()
            elif heard is not None:
                heard.raised(error)
            raise
        if heard is not None:
            _sends(heard, chunk)
            self._watch()
        return chunk

    def _next(self) -> bytes:
        if self._iterator is None:
            self._iterator = iter(self._body)
        return next(self._iterator)

    def _watch(self) -> None:
        # A server that drops the reply without closing it is seen only by a weak reference.
        if self._watched or self._heard is None or (recording := self._heard.server_context.recording) is None:
            return
        self._watched = True
        recording.opened(self, self._body)

    def close(self) -> None:
        """Close the application's reply; before its end this means that the client left."""
        if self._heard is not None and not self._ended:
            self._heard.left()
        close = getattr(self._body, "close", None)
        if close is not None:
            self._turns.run(close)


class SizedPieces(Pieces):
    """Chunks of a known number: servers make one into a reply with a length."""

    def __len__(self) -> int:
        return len(self._body)  # type: ignore[arg-type]


class Input:
    """The request's body, observed while the application reads it; all else is the server's own.

    `left`: the number of bytes that follow, None if the request does not state it.
    """

    def __init__(self, body: Any, heard: Exchange, left: int | None) -> None:
        self._body = body
        self._heard = heard
        self._left = left

    def __getattr__(self, name: str) -> Any:
        theirs = getattr(self._body, name)
        return self._filling(theirs) if name == "readinto" else theirs  # which some servers' objects do not have

    def _filling(self, theirs: Callable[[Any], int | None]) -> Callable[[Any], int | None]:
        def readinto(buffer: Any) -> int | None:
            size = theirs(buffer)
            self._took(octets(memoryview(buffer)[: size or 0])[: size or 0])
            return size

        return readinto

    def __iter__(self) -> Iterator[bytes]:
        for line in self._body:
            self._took(line)
            yield line
        self._took(b"", to_end=True)

    def read(self, *size: Any) -> bytes:
        """Read as the server's object does."""
        data: bytes = self._body.read(*size)
        if size and size[0] == 0:
            return data
        self._took(data, to_end=not size or size[0] is None or size[0] < 0)
        return data

    def readline(self, *size: Any) -> bytes:
        """Read a line as the server's object does."""
        line: bytes = self._body.readline(*size)
        self._took(line)
        return line

    def readlines(self, *hint: Any) -> list[bytes]:
        """Read lines as the server's object does."""
        lines: list[bytes] = self._body.readlines(*hint)
        self._took(b"".join(lines), to_end=not hint)
        return lines

    def _took(self, data: bytes, *, to_end: bool = False) -> None:
        if self._heard.deaf:
            return
        try:
            data = octets(data)
            if self._left is not None:
                self._left -= len(data)
            self._heard.take(data, more=bool(data) and not to_end and self._left != 0)
        except Exception as bug:  # noqa: BLE001
            self._heard.broken(bug)


class Starting:
    """The server's `start_response`, observed; `called`: whether it was."""

    def __init__(self, start_response: StartResponse, heard: Exchange) -> None:
        self._start_response = start_response
        self._heard = heard
        self.called = False

    def __call__(
        self, status: str, headers: Iterable[tuple[str, str]], *more: Any, **named: Any
    ) -> Callable[[bytes], object]:
        """Start the response as the server does, which re-raises the application's error."""
        ours = headers
        if isinstance(headers, Iterator):  # some servers take one
            headers, ours = tee(headers)
        write = self._start_response(status, headers, *more, **named)
        self.called = True
        heard = self._heard
        if not heard.deaf:
            try:
                heard.starts(int(status[:3]), pairs_of(ours))
            except Exception as bug:  # noqa: BLE001
                heard.broken(bug)

        def writes(data: bytes) -> object:
            _sends(heard, data)
            try:
                return write(data)
            except OSError:
                heard.left()
                raise

        return writes


def _chunks(body: Iterable[bytes], turns: Turns, heard: Exchange | None) -> Pieces:
    return (SizedPieces if hasattr(body, "__len__") else Pieces)(body, turns, heard)


def _at_hand(body: object, environ: Environ) -> bool:
    """Return whether no application code runs while the server sends a body: it is complete, or a file."""
    wrapper = environ.get("wsgi.file_wrapper")
    return isinstance(body, list | tuple) or (isinstance(wrapper, type) and isinstance(body, wrapper))


def _sends(heard: Exchange, chunk: bytes) -> None:
    if not heard.deaf:
        try:
            heard.sends(octets(chunk))
        except Exception as bug:  # noqa: BLE001
            heard.broken(bug)


def _headers(environ: Environ) -> Headers:
    return [(name, octets(environ[key])) for name, key in _HEADERS if key in environ]


def _address(environ: Environ) -> tuple[str, int | None] | None:
    name = environ.get("SERVER_NAME")
    return (name, _number(environ.get("SERVER_PORT"))) if name else None


def _number(text: str | None) -> int | None:
    return int(text) if text and len(text) <= MAX_DIGITS and text.isascii() and text.isdigit() else None
