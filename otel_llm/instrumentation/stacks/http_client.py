"""Streamed replies read over `http.client`: by requests, urllib3, urllib.request, boto, or by hand. Sync, any thread.

`endheaders` is the commit: all clients call it, and there the request line and the headers are known but not sent yet.
urllib3 2 sends the body later, so its `request` leaves the body on the connection. `getresponse` returns the response;
its `fp` is replaced by a proxy. All ways of reading a body use it, those of urllib3 too, which reads the framing of
chunks past `http.client`; therefore the proxy parses framing and compression. A response that is not recorded keeps its
`fp`, and its reads cost nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

import wrapt

from otel_llm.export import host_log
from otel_llm.instrumentation.parse.http_body import BodyError, HttpBody
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.process.patches import Patches
from otel_llm.instrumentation.request import propagation
from otel_llm.instrumentation.stacks import client_request
from otel_llm.instrumentation.stacks.stack import StackInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from otel_llm.instrumentation.core.recording import Recording
    from otel_llm.instrumentation.parse.sse_chunks import Tap
    from otel_llm.instrumentation.stacks.client_request import Call

CALL: Final = "_otel_llm_call"
"""Attribute of a connection: the recorded call that waits for its response."""
BODY: Final = "_otel_llm_body"
"""Attribute of a connection: the body of the request that urllib3 is about to send."""
PASSED: Final = "_otel_llm_passed"
"""Attribute of a connection: host, path and body of a POST that is not recorded, until its response."""
URLLIB3: Final = "urllib3.connection"
HTTPS_PORT: Final = 443

_CLOSING: Final = frozenset({"close", "_close_conn"})


class HttpClientInstrumentor(StackInstrumentor):
    """The hooks that record the token times of replies that are read with `http.client`."""

    stack: ClassVar[str] = "http-client"
    package: ClassVar[str] = "http.client"
    requires: ClassVar[tuple[str, ...]] = ()  # the standard library's

    _urllib3_awaited: bool = False

    def _patch(self) -> Patches:
        from http.client import HTTPConnection

        HTTPConnection("localhost")._buffer  # type: ignore[attr-defined]  # noqa: B018  raises if it moved
        patches = Patches()
        patches.replace(HTTPConnection, "endheaders", _endheaders)
        patches.replace(HTTPConnection, "getresponse", _getresponse)
        patches.replace(HTTPConnection, "close", _close)
        if URLLIB3 in sys.modules:
            patches.replace(sys.modules[URLLIB3].HTTPConnection, "request", _request)
        elif not self._urllib3_awaited:  # an import hook cannot be removed: once a process
            type(self)._urllib3_awaited = True
            wrapt.register_post_import_hook(self._hook_urllib3, URLLIB3)
        return patches

    def _hook_urllib3(self, module: Any) -> None:
        if self._patches is None:
            return
        try:
            self._patches.replace(module.HTTPConnection, "request", _request)
        except Exception as moved:  # noqa: BLE001
            host_log.warning("otel_llm does not know this version of urllib3 and does not record it: %s", moved)


def _endheaders(original: Callable[..., Any]) -> Callable[..., Any]:
    def endheaders(self: Any, message_body: Any = None, **kwargs: Any) -> Any:
        call = _commit(self, message_body)
        if call is None:
            return original(self, message_body, **kwargs)
        try:
            result = original(self, message_body, **kwargs)
        except BaseException as error:
            call.failed(error)
            raise
        self.__dict__[CALL] = call
        return result

    return endheaders


def _request(original: Callable[..., Any]) -> Callable[..., Any]:
    def request(self: Any, method: str, url: str, body: Any = None, *args: Any, **kwargs: Any) -> Any:
        self.__dict__[BODY] = body
        try:
            return original(self, method, url, body, *args, **kwargs)
        except BaseException as error:  # the body could not be sent
            if (call := self.__dict__.pop(CALL, None)) is not None:
                call.failed(error)
            raise
        finally:
            self.__dict__.pop(BODY, None)

    return request


def _getresponse(original: Callable[..., Any]) -> Callable[..., Any]:
    # No other arguments: urllib3 1 passes one of Python 2's first, and after the TypeError none.
    def getresponse(self: Any) -> Any:
        call: Call | None = self.__dict__.pop(CALL, None)
        if call is None:
            response = original(self)
            _passed(self, response)
            return response
        try:
            response = original(self)
        except BaseException as error:
            call.failed(error)
            raise
        _adopt(call, response)
        return response

    return getresponse


def _close(original: Callable[..., Any]) -> Callable[..., Any]:
    def close(self: Any) -> Any:
        call: Call | None = self.__dict__.pop(CALL, None)
        self.__dict__.pop(PASSED, None)
        if call is not None and call.recording is not None:  # closed before the response
            call.recording.closed()
        return original(self)

    return close


def _commit(connection: Any, body: Any) -> Call | None:
    """Return the recorded call of a request with complete headers, ours among them; None if it is not recorded."""
    try:
        line = connection._buffer[0]
        if not line.startswith(b"POST ") or runtime.running() is None:
            return None
        # A proxy gets the whole URL.
        target = urlsplit(line.split(b" ")[1].decode("latin-1"))
        body = connection.__dict__.get(BODY, body)
        host = target.hostname or connection._tunnel_host or connection.host
        scheme = "https" if connection.default_port == HTTPS_PORT else "http"
        call = client_request.call(
            target.path,
            body,
            target.scheme or scheme,
            host,
            target.port if target.hostname else connection._tunnel_port or connection.port,
            "http-client",
        )
        if call is None:
            connection.__dict__[PASSED] = (host, target.path, body)
            if (recording := client_request.carried(target.path)) is not None:
                _inject(recording, connection)
        if call is not None and call.recording is not None:
            _inject(call.recording, connection)
            call.recording.opened(connection, None)  # a collected connection has no reader any more
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)
        return None
    return call


def _passed(connection: Any, response: Any) -> None:
    """Note an answer that is not recorded."""
    passed, running = connection.__dict__.pop(PASSED, None), runtime.running()
    if passed is None or running is None:
        return
    try:
        host, path, body = passed
        running.unrecorded.answered("http.client", host, path, body, response.headers.get("content-type", ""))
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)


def _inject(recording: Recording, connection: Any) -> None:
    stated = [line.partition(b":")[0].decode("latin-1") for line in connection._buffer[1:]]
    headers = dict.fromkeys(stated, "")
    propagation.inject(recording, headers)
    for name in headers.keys() - set(stated):
        connection.putheader(name, headers[name])


def _adopt(call: Call, response: Any) -> None:
    try:
        headers = response.headers
        tap = call.answered(response.status, headers.get("content-type", ""))
        if tap is None:
            return
        if response.isclosed():  # without a body
            tap.ended()
            return
        try:
            body = HttpBody(
                chunked=response.chunked, length=response.length, coding=headers.get("content-encoding", "")
            )
        except BodyError:  # its contents cannot be known
            tap.recording.give_up()
            return
        response.fp = _WatchedFile(response.fp, tap, body)
        tap.recording.opened(response, tap)
    except Exception as bug:  # noqa: BLE001
        if call.recording is not None:
            call.recording.broken(bug)


class _WatchedFile:
    """The file that a response reads from; reads are observed, all else is the original file's."""

    __slots__ = ("_body", "_file", "_recording", "_tap")

    def __init__(self, file: Any, tap: Tap, body: HttpBody) -> None:
        self._file = file
        self._tap = tap
        self._recording = tap.recording
        self._body = body

    @property  # type: ignore[misc]  # for `isinstance`
    def __class__(self) -> Any:
        return type(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int | None = -1, /) -> Any:
        try:
            data = self._file.read(size)
        except BaseException as error:
            self._recording.failed(error)
            raise
        # A buffered file gives less than was asked for only at its end.
        self._see(data, lambda: (data, size is None or size < 0 or len(data) < size))
        return data

    def read1(self, size: int = -1, /) -> Any:
        try:
            data = self._file.read1(size)
        except BaseException as error:
            self._recording.failed(error)
            raise
        self._see(data, lambda: (data, not data and size != 0))
        return data

    def readline(self, size: int | None = -1, /) -> Any:
        try:
            line = self._file.readline(size)
        except BaseException as error:
            self._recording.failed(error)
            raise
        self._see(line, lambda: (line, line[-1:] != b"\n" and (size is None or size < 0 or len(line) < size)))
        return line

    def readinto(self, buffer: Any, /) -> Any:
        try:
            count = self._file.readinto(buffer)
        except BaseException as error:
            self._recording.failed(error)
            raise
        self._see(count, lambda: (bytes(memoryview(buffer)[:count]), count < len(buffer)))
        return count

    def readinto1(self, buffer: Any, /) -> Any:
        try:
            count = self._file.readinto1(buffer)
        except BaseException as error:
            self._recording.failed(error)
            raise
        self._see(count, lambda: (bytes(memoryview(buffer)[:count]), not count and len(buffer) > 0))
        return count

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if line := self.readline():
            return line
        raise StopIteration

    def __enter__(self) -> Any:
        self._file.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> Any:
        if not self._recording.done and not _collected(sys._getframe(1)):
            self._recording.closed()
        return self._file.close()

    def _see(self, given: object, inspect: Callable[[], tuple[bytes, bool]]) -> None:
        """Apply the result of `inspect`: the bytes, and whether the body ends there; `given` None: nothing was read."""
        if given is None or self._recording.done:
            return
        body, tap = self._body, self._tap
        try:
            data, ends = inspect()
            for chunk in body.feed(data):
                tap.take(chunk)
            if ends or body.complete:
                tap.ended()
        except BodyError:
            self._recording.give_up()
        except Exception as bug:  # noqa: BLE001
            self._recording.broken(bug)


def _collected(frame: FrameType | None) -> bool:
    """Return whether a response is closed in `frame` because it is collected, not by its reader.

    Python's finalizer of files marks the object before it closes it; urllib3's response closes that of `http.client`.
    """
    while frame is not None and frame.f_code.co_name in _CLOSING:
        if getattr(frame.f_locals.get("self"), "_finalizing", False) is True:
            return True
        frame = frame.f_back
    return False
