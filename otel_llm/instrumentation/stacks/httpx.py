"""Streamed replies over httpx or httpx2 as server-sent events, sync and async, for every way of reading.

Two places are hooked, both public. `send` is the commit, and gets a response whose body was not read yet: if `send`
itself is to read it, the hook does so. The response's `stream` gives the bytes of all of `iter_raw`, `iter_bytes`,
`iter_text`, `iter_lines` and `read`; it stays the same object, with a class that sees them. The bytes of a compressed
body are seen behind the response's own decoder, hence not where the application reads it raw.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import AsyncGenerator
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final

from otel_llm.instrumentation.core.suppressing import attempt_answered, attempting, suppressing
from otel_llm.instrumentation.parse.http_body import coding_of
from otel_llm.instrumentation.parse.sse_chunks import api_of
from otel_llm.instrumentation.parse.wires import WIRES
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.process.patches import Patches, disguised
from otel_llm.instrumentation.request import propagation
from otel_llm.instrumentation.stacks import client_request
from otel_llm.instrumentation.stacks.stack import StackInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_llm.instrumentation.core.recording import Recording
    from otel_llm.instrumentation.parse.sse_chunks import Tap
    from otel_llm.instrumentation.stacks.client_request import Call

TAP: Final = "_otel_llm_tap"
"""The one added attribute of a recorded body."""


class HttpxInstrumentor(StackInstrumentor):
    """The hooks that record the token times of event streams that are read with `httpx`."""

    stack: ClassVar[str] = "httpx"
    package: ClassVar[str] = "httpx"
    requires: ClassVar[tuple[str, ...]] = ("httpx >= 0.27, < 1",)

    def _patch(self) -> Patches:
        return _patch("httpx")


class Httpx2Instrumentor(StackInstrumentor):
    """The hooks that record the token times of event streams that are read with `httpx2`."""

    stack: ClassVar[str] = "httpx2"
    package: ClassVar[str] = "httpx2"
    requires: ClassVar[tuple[str, ...]] = ("httpx2 >= 2.12, < 3",)

    def _patch(self) -> Patches:
        return _patch("httpx2")


def _patch(package: str) -> Patches:
    module: Any = import_module(package)
    patches = Patches()
    patches.replace(module.Client, "send", _send)
    patches.replace(module.AsyncClient, "send", _send_async)
    return patches


def _send(original: Callable[..., Any]) -> Callable[..., Any]:
    def send(self: Any, request: Any, *, stream: bool = False, **kwargs: Any) -> Any:
        call = _call(request)
        if call is None:
            _carry(request)
            with _attempt(request):
                response = original(self, request, stream=stream, **kwargs)
                attempt_answered(getattr(response, "status_code", None))
            _passed(request, response)
            return response
        with _sending(call, request):
            response = original(self, request, stream=True, **kwargs)
            _adopt(call, response)
            if not stream:
                try:
                    response.read()
                except BaseException:
                    response.close()
                    raise
        return response

    return send


def _send_async(original: Callable[..., Any]) -> Callable[..., Any]:
    async def send(self: Any, request: Any, *, stream: bool = False, **kwargs: Any) -> Any:
        call = _call(request)
        if call is None:
            _carry(request)
            with _attempt(request):
                response = await original(self, request, stream=stream, **kwargs)
                attempt_answered(getattr(response, "status_code", None))
            _passed(request, response)
            return response
        with _sending(call, request):
            response = await original(self, request, stream=True, **kwargs)
            _adopt(call, response)
            if not stream:
                try:
                    await response.aread()
                except BaseException:
                    await response.aclose()
                    raise
        return response

    return send


@contextlib.contextmanager
def _sending(call: Call, request: Any) -> Iterator[None]:
    """Send the request inside, with our headers: its error is the call's end, and no inner hook records it again."""
    added = _inject(call, request)
    attached = None if call.recording is None else propagation.attach(call.recording)
    try:
        with suppressing():
            yield
    except BaseException as error:
        call.failed(error)
        raise
    finally:
        propagation.detach(attached)
        _withdraw(request, added)


def _call(request: Any) -> Call | None:
    try:
        if request.method != "POST":
            return None
        url = request.url
        # A body that is a stream has no `_content`, and must not be read by us.
        body = request.__dict__.get("_content")
        return client_request.call(url.path, body, url.scheme, url.host or None, url.port, _library(request))
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)
        return None


def _library(request: Any) -> str:
    return str(type(request).__module__.partition(".")[0])


def _passed(request: Any, response: Any) -> None:
    """Note an answer that is not recorded."""
    running = runtime.running()
    if running is None or request.method != "POST":
        return
    try:
        url, body = request.url, request.__dict__.get("_content")
        content_type = response.headers.get("content-type", "")
        running.unrecorded.answered(_library(request), url.host, url.path, body, content_type)
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)


def _carry(request: Any) -> None:
    recording = client_request.carried(request.url.path)
    if recording is not None:
        propagation.inject(recording, request.headers)


def _attempt(request: Any) -> contextlib.AbstractContextManager[None]:
    """Return what a request is sent in that another call makes, again if it is tried again."""
    known = request.method == "POST" and api_of(request.url.path, WIRES) is not None
    return attempting() if known else contextlib.nullcontext()


def _inject(call: Call, request: Any) -> set[str]:
    """Put our headers into the request; return their names."""
    if call.recording is None:
        return set()
    there = set(request.headers)
    propagation.inject(call.recording, request.headers)
    return set(request.headers) - there


def _withdraw(request: Any, added: set[str]) -> None:
    """Restore the application's request: sent again, it is another inference with a trace of its own."""
    for name in added:
        request.headers.pop(name, None)


def _adopt(call: Call, response: Any) -> None:
    try:
        tap = call.answered(response.status_code, response.headers.get("content-type", ""))
        if tap is not None:
            watch(response, tap)
            tap.recording.opened(response, tap)
    except Exception as bug:  # noqa: BLE001
        if call.recording is not None:
            call.recording.broken(bug)


def watch(response: Any, tap: Any, seen: Callable[[Any], Any] | None = None) -> None:
    """Pass the body of a response to `tap`: as it is read, or all at once if it arrives read already.

    `seen` returns the class of a body that sees its bytes, by default one whose every reader is recorded. Raises
    AttributeError or TypeError if the body's class cannot be changed, as that of a transport with slots.
    """
    if response.is_stream_consumed:  # by an event hook, a transport that caches, or a mock
        tap.take(response.content)
        tap.ended()
        return
    body = response.stream
    encoded = coding_of(response.headers.get("content-encoding", ""))
    decoder = _Decoder(response._get_content_decoder(), tap) if encoded else None
    body_type: Any = type(body)
    body.__class__ = (seen or _seen)(body_type)
    setattr(body, TAP, (tap, decoder))
    if decoder is not None:
        response._decoder = decoder


def unwatch(response: Any) -> None:
    """Undo `watch` for a response that was still not read."""
    body = response.stream
    watched = body.__dict__.pop(TAP, None)
    if watched is not None:
        body.__class__ = type(body).__bases__[0]
        if watched[1] is not None:
            response._decoder = watched[1].inner


class _Decoder:
    """The decoder of a compressed body; its output is seen. `used`: whether it was ever called."""

    def __init__(self, decoder: Any, tap: Tap) -> None:
        self.used = False
        self.inner = decoder
        self._take = tap.take

    def _see(self, decoded: Any) -> Any:
        if isinstance(decoded, bytes):
            self._take(decoded)
            return decoded
        return self._see_chunks(decoded)  # httpx2 returns an iterator of chunks

    def _see_chunks(self, chunks: Any) -> Any:
        for chunk in chunks:
            self._take(chunk)
            yield chunk

    def decode(self, data: bytes) -> Any:
        self.used = True
        return self._see(self.inner.decode(data))

    def flush(self) -> Any:
        return self._see(self.inner.flush())


@functools.lru_cache(maxsize=64)
def _seen(body_type: Any) -> Any:
    """Return a body's class that sees its bytes, and is otherwise the original class."""
    return watching(
        body_type,
        lambda body: getattr(body, TAP)[0].recording,
        lambda inner, body: Pieces(inner, *getattr(body, TAP)),
        lambda inner, body: of_its_kind(inner, AsyncPieces, GeneratedPieces)(inner, *getattr(body, TAP)),
    )


def watching(
    body_type: Any,
    recording_of: Callable[[Any], Recording],
    chunks: Callable[[Any, Any], Any],
    async_pieces: Callable[[Any, Any], Any],
) -> Any:
    """Return a body's class that notes its closing, and whose iterators are these functions of theirs and the body."""

    # A subclass, not a function on the object: one that calls the original would have to hold the object, which keeps
    # the connection until a garbage collection, or to hold it weakly, which fails during one.
    class Watched(body_type):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return chunks(super().__iter__(), self)

        def __aiter__(self) -> Any:
            return async_pieces(super().__aiter__(), self)

        def close(self) -> None:
            recording_of(self).closing(sys._getframe(1))
            super().close()

        async def aclose(self) -> None:
            recording_of(self).closing(sys._getframe(1))
            await super().aclose()

    return disguised(Watched, body_type, only_where_theirs=("__iter__", "__aiter__", "close", "aclose"))


def of_its_kind(inner: Any, plain: Any, generated: Any) -> Any:
    """Return the class for an async iterator: `generated` for a generator, which a client may close as that."""
    return generated if isinstance(inner, AsyncGenerator) else plain


class _Seeing:
    """The common part of a body's iterators. No generators: dropping one runs code, dropping the bare one does not."""

    __slots__ = ("__weakref__", "_decoder", "_inner", "_recording", "_tap")

    def __init__(self, inner: Any, tap: Tap, decoder: _Decoder | None) -> None:
        self._inner = inner
        self._tap = tap
        self._decoder = decoder
        self._recording = tap.recording
        self._begin()

    def _begin(self) -> None:
        self._recording.entered(self)

    def _ended(self) -> None:
        if self._decoder is None or self._decoder.used:
            self._tap.ended()
        elif not self._recording.done:  # compressed, and read raw: its contents are not known
            self._recording.give_up()


class Pieces(_Seeing):
    """A body's iterator."""

    __slots__ = ()

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        tap = self._tap
        tap.waiting = True
        try:
            data = next(self._inner)
        except StopIteration:
            self._ended()
            raise
        except BaseException as error:
            self._recording.failed(error)
            raise
        finally:
            tap.waiting = False
        if self._decoder is None:
            tap.take(data)
        return data


class Generated:
    """The methods of a body's iterator that stands for an async generator: a client may close it as that."""

    __slots__ = ()
    _inner: Any

    async def asend(self, value: Any) -> Any:
        """Send a value in, as a generator's."""
        return await self._inner.asend(value)

    async def athrow(self, *args: Any) -> Any:
        """Raise an error inside, as a generator's."""
        return await self._inner.athrow(*args)

    async def aclose(self) -> None:
        """Close it, as a generator's."""
        await self._inner.aclose()


class AsyncPieces(_Seeing):
    """A body's async iterator."""

    __slots__ = ()

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        tap = self._tap
        tap.waiting = True
        try:
            data = await anext(self._inner)
        except StopAsyncIteration:
            self._ended()
            raise
        except BaseException as error:
            self._recording.failed(error)
            raise
        finally:
            tap.waiting = False
        if self._decoder is None:
            tap.take(data)
        return data


class GeneratedPieces(AsyncPieces, Generated):
    """A body's async iterator that stands for an async generator."""

    __slots__ = ()
