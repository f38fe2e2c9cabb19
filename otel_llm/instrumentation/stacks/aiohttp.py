"""Streamed replies over aiohttp as server-sent events, for every way of reading `response.content`.

`ClientSession._request`, beneath `post` and all others, is the commit. The response's `content` stays the same object,
with a class that sees the bytes which the application reads: every way of reading takes them by the same function.
aiohttp has removed compression by then. Received bytes that are not read are not seen.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Final

from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.process.patches import Patches, disguised
from otel_llm.instrumentation.request import propagation
from otel_llm.instrumentation.stacks import client_request
from otel_llm.instrumentation.stacks.stack import StackInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.instrumentation.core.recording import Recording
    from otel_llm.instrumentation.parse.sse_chunks import Tap
    from otel_llm.instrumentation.stacks.client_request import Call

RECORDING: Final = "_otel_llm_recording"
"""The one added attribute of a recorded response."""


class AiohttpInstrumentor(StackInstrumentor):
    """The hooks that record the token times of event streams that are read with `aiohttp`."""

    stack: ClassVar[str] = "aiohttp"
    package: ClassVar[str] = "aiohttp"
    requires: ClassVar[tuple[str, ...]] = ("aiohttp >= 3.11, < 4",)

    def _patch(self) -> Patches:
        from aiohttp import ClientResponse, ClientSession, StreamReader

        for name in ("_read_nowait_chunk", "_wait", "feed_eof", "set_exception"):
            getattr(StreamReader, name)  # raises if a hook moved
        patches = Patches()
        patches.replace(ClientSession, "_request", _request)
        patches.replace(ClientResponse, "close", _closing)
        patches.replace(ClientResponse, "release", _closing)
        return patches


def _request(original: Callable[..., Any]) -> Callable[..., Any]:
    async def _request(self: Any, method: str, str_or_url: Any, **kwargs: Any) -> Any:
        call = _call(self, method, str_or_url, kwargs)
        if call is None:
            response = await original(self, method, str_or_url, **kwargs)
            _passed(method, kwargs, response)
            return response
        attached = None if call.recording is None else propagation.attach(call.recording)
        try:
            response = await original(self, method, str_or_url, **kwargs)
        except BaseException as error:
            call.failed(error)
            raise
        finally:
            propagation.detach(attached)
        _adopt(call, response, self, kwargs)
        return response

    return _request


def _call(session: Any, method: str, url: Any, kwargs: dict[str, Any]) -> Call | None:
    """Return the recorded call of a request, with our headers in `kwargs`; None for one that is not recorded."""
    try:
        if method.upper() != "POST" or runtime.running() is None:
            return None
        url = session._build_url(url)
        call = client_request.call(url.path, _body(kwargs), url.scheme, url.host, url.port, "aiohttp")
        recording = client_request.carried(url.path) if call is None else call.recording
        if recording is not None:
            _inject(recording, session, kwargs)
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)
        return None
    return call


def _body(kwargs: dict[str, Any]) -> Any:
    data = kwargs.get("data")
    return kwargs.get("json") if data is None else getattr(data, "_value", data)  # a payload of bytes, or bytes


def _passed(method: str, kwargs: dict[str, Any], response: Any) -> None:
    """Note an answer that is not recorded."""
    running = runtime.running()
    if running is None or method.upper() != "POST":
        return
    try:
        url, content_type = response.url, response.headers.get("Content-Type", "")
        running.unrecorded.answered("aiohttp", url.host, url.path, _body(kwargs), content_type)
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)


def _inject(recording: Recording, session: Any, kwargs: dict[str, Any]) -> None:
    from multidict import CIMultiDict

    stated = CIMultiDict(kwargs.get("headers") or ())  # a copy: the application may use its headers again
    headers = CIMultiDict(session.headers)
    headers.update(stated)
    there = set(headers)
    propagation.inject(recording, headers)
    for name in set(headers) - there:
        stated[name] = headers[name]
    kwargs["headers"] = stated


def _closing(original: Callable[..., Any]) -> Callable[..., Any]:
    def close(self: Any) -> Any:
        recording: Recording | None = self.__dict__.get(RECORDING)
        if recording is not None:
            recording.closed()
        return original(self)

    return close


def _adopt(call: Call, response: Any, session: Any, kwargs: dict[str, Any]) -> None:
    from aiohttp import StreamReader

    try:
        tap = call.answered(response.status, response.headers.get("Content-Type", ""))
        if tap is None:
            return
        recording, content = tap.recording, response.content
        encoded = response.headers.get("Content-Encoding", "identity").lower() not in {"", "identity"}
        unpacks = kwargs.get("auto_decompress")
        if encoded and not (session.auto_decompress if unpacks is None else unpacks):
            recording.give_up()  # raw bytes: their contents are not known
        elif type(content) is not StreamReader or content.at_eof():
            tap.take(response._body or b"")  # read by a middleware, or by what `raise_for_status` calls
            tap.ended()
        else:
            recording.opened(response, tap)
            setattr(response, RECORDING, recording)
            content._buffer = _Buffer(tap, content._buffer)
            content.__class__ = _seen()
    except Exception as bug:  # noqa: BLE001
        if call.recording is not None:
            call.recording.broken(bug)


class _Buffer(deque[bytes]):
    """What a `content` has received and not given out yet; the one of its members that has room for a tap."""

    __slots__ = ("tap",)

    def __init__(self, tap: Tap, received: deque[bytes]) -> None:
        super().__init__(received)
        self.tap = tap


@functools.cache
def _seen() -> Any:
    """Return the class of a `content` that looks at what is taken out of it."""
    from aiohttp import StreamReader
    from aiohttp.streams import AsyncStreamIterator, ChunkTupleAsyncStreamIterator

    class Loop(AsyncStreamIterator[bytes]):
        __slots__ = ("__weakref__",)  # that it is dropped is all that one ever sees of a `break`

    class ChunkLoop(ChunkTupleAsyncStreamIterator):
        __slots__ = ("__weakref__",)

    class Seen(StreamReader):
        __slots__ = ()
        _buffer: _Buffer

        def _read_nowait_chunk(self, n: int) -> bytes:
            data = super()._read_nowait_chunk(n)
            buffer = self._buffer
            buffer.tap.take(data)
            if self._eof and not buffer:
                buffer.tap.ended()
            return data

        async def _wait(self, func_name: str) -> None:
            tap = self._buffer.tap
            tap.waiting = True
            try:
                await super()._wait(func_name)
            except asyncio.CancelledError:  # of this read; there may be another one
                tap.left()
                raise
            except RuntimeError:  # two readers at once: one of them reads on
                raise
            except BaseException as error:
                tap.recording.failed(error)
                raise
            finally:
                tap.waiting = False

        def feed_eof(self) -> None:
            super().feed_eof()
            if not self._buffer:
                self._buffer.tap.ended()

        def set_exception(self, exc: BaseException, *args: Any, **kwargs: Any) -> None:
            self._buffer.tap.recording.failed(exc)  # whatever is read next raises it, also if bytes are left
            super().set_exception(exc, *args, **kwargs)

        def _looped(self, loop: Any) -> Any:
            self._buffer.tap.entered(loop)
            return loop

        def __aiter__(self) -> Any:
            return self._looped(Loop(self.readline))

        def iter_chunked(self, n: int) -> Any:
            return self._looped(Loop(super().iter_chunked(n).read_func))

        def iter_any(self) -> Any:
            return self._looped(Loop(self.readany))

        def iter_chunks(self) -> Any:
            return self._looped(ChunkLoop(self))

    disguised(Loop, AsyncStreamIterator)
    disguised(ChunkLoop, ChunkTupleAsyncStreamIterator)
    return disguised(Seen, StreamReader)
