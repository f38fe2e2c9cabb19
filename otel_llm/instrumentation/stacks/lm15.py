"""Streamed replies over lm15, the engine of DSPy from 3.4 on, which speaks HTTP over sockets of its own.

`stream` of its transports is the commit, beneath all providers. The response stays the same object, with a class that
sees the pieces of the body; compression is removed by then.
"""

from __future__ import annotations

import dataclasses
import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.process.patches import Patches, disguised
from otel_llm.instrumentation.request import propagation
from otel_llm.instrumentation.stacks import client_request
from otel_llm.instrumentation.stacks.httpx import AsyncPieces, GeneratedPieces, Pieces
from otel_llm.instrumentation.stacks.stack import StackInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.instrumentation.stacks.client_request import Call

TAP: Final = "_otel_llm_tap"
"""The one added attribute of a recorded response."""


class Lm15Instrumentor(StackInstrumentor):
    """The hooks that record the token times of replies that are read with `lm15`."""

    stack: ClassVar[str] = "lm15"
    package: ClassVar[str] = "lm15"
    requires: ClassVar[tuple[str, ...]] = ("lm15 >= 1.0, < 2",)

    def _patch(self) -> Patches:
        return patch("lm15.transports", self.stack)


class DspyInstrumentor(StackInstrumentor):
    """The hooks that record the token times of replies that are read with the copy of lm15 in `dspy`."""

    stack: ClassVar[str] = "dspy"
    package: ClassVar[str] = "dspy"
    requires: ClassVar[tuple[str, ...]] = ("dspy >= 3.4, < 4",)

    def _patch(self) -> Patches:
        return patch("dspy._vendor.lm15.transports", self.stack)


def patch(name: str, stack: str) -> Patches:
    """Hook the module of lm15's transports, or of a copy of them, for a stack."""
    transports: Any = import_module(name)
    patches = Patches()
    patches.replace(transports.StdlibTransport, "stream", functools.partial(_stream, stack))
    patches.replace(transports.StdlibAsyncTransport, "_do_stream", functools.partial(_stream_async, stack))
    return patches


def _stream(stack: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def stream(self: Any, request: Any) -> Any:
        call, request = _commit(request, stack)
        if call is None:
            return original(self, request)
        try:
            response = original(self, request)
        except BaseException as error:
            call.failed(error)
            raise
        _adopt(call, response)
        return response

    return stream


def _stream_async(stack: str, original: Callable[..., Any]) -> Callable[..., Any]:
    async def _do_stream(self: Any, request: Any) -> Any:
        call, request = _commit(request, stack)
        if call is None:
            return await original(self, request)
        try:
            response = await original(self, request)
        except BaseException as error:
            call.failed(error)
            raise
        _adopt(call, response)
        return response

    return _do_stream


def _commit(request: Any, stack: str) -> tuple[Call | None, Any]:
    """Return the recorded call of a request, None for one that is not recorded, and the request with our headers."""
    try:
        if request.method != "POST" or runtime.running() is None:
            return None, request
        url = urlsplit(request.url)
        call = client_request.call(url.path, request.body, url.scheme, url.hostname, url.port, stack)
        recording = client_request.carried(url.path) if call is None else call.recording
        if recording is not None:
            stated = dict(request.headers)
            headers = dict(stated)
            propagation.inject(recording, headers)
            added = [(name, headers[name]) for name in headers.keys() - stated.keys()]
            request = dataclasses.replace(request, headers=[*request.headers, *added])
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)
        return None, request
    return call, request


def _adopt(call: Call, response: Any) -> None:
    try:
        tap = call.answered(response.status, response.header("content-type") or "")
        if tap is not None:
            response_type: Any = type(response)
            response.__class__ = _seen(response_type)
            setattr(response, TAP, tap)
            tap.recording.opened(response, tap)
    except Exception as bug:  # noqa: BLE001
        if call.recording is not None:
            call.recording.broken(bug)


@functools.lru_cache(maxsize=8)
def _seen(response_type: Any) -> Any:
    """Return a response's class that sees its pieces, and is otherwise the original class."""

    # A response is released once: at its end, by an error, by closing it or by leaving its loop.
    class Seen(response_type):  # type: ignore[misc]
        _chunks: Any

        def __iter__(self) -> Any:
            if not isinstance(self._chunks, Pieces):
                self._chunks = Pieces(self._chunks, getattr(self, TAP), None)
            return super().__iter__()

        def _release_once(self, *, body_consumed: bool) -> None:
            getattr(self, TAP).recording.closed()
            super()._release_once(body_consumed=body_consumed)

    class SeenAsync(response_type):  # type: ignore[misc]
        _chunks: Any

        def __aiter__(self) -> Any:
            if not isinstance(self._chunks, AsyncPieces):
                self._chunks = GeneratedPieces(self._chunks, getattr(self, TAP), None)
            return super().__aiter__()

        async def _release_once(self, *, body_consumed: bool) -> None:
            getattr(self, TAP).recording.closed()
            await super()._release_once(body_consumed=body_consumed)

    return disguised(SeenAsync if hasattr(response_type, "__aiter__") else Seen, response_type)
