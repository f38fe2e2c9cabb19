"""The OpenAI SDK: streamed chat completions, sync and async, without changing what the caller gets.

Five places are hooked. `create` is the commit. `_build_request`, innermost, finds the span that is current inside of
every other instrumentation, so that the order of instrumenting does not matter. The SDK's own `post_parser` hands over
the `Stream`, also where `.parse()` of a raw response makes it; only its inner iterator is replaced, so its type and all
else stay the SDK's. `__iter__` and `__aiter__` return what they return, watched: a dropped loop is a `break`.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]
from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from otel_llm import semconv
from otel_llm.instrumentation import committed, runtime
from otel_llm.instrumentation.chunks import MAX_CHOICES, ChunkReader
from otel_llm.instrumentation.patches import Patches
from otel_llm.instrumentation.reading import recorded, recorded_async
from otel_llm.instrumentation.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

RECORDING: Final = "_otel_llm_recording"
"""The one attribute that a recorded `Stream` has more."""
RAW_RESPONSE_HEADER: Final = "X-Stainless-Raw-Response"
"""With it the SDK returns a response whose body the caller may read in any way, as a stream of chunks or not."""


class _Call:
    """A call of `create` until its stream is there."""

    __slots__ = ("context", "raw", "recording")

    def __init__(self, recording: Recording, *, raw: bool) -> None:
        self.recording = recording
        self.raw = raw
        self.context = otel_context.get_current()


_pending: Final[ContextVar[_Call | None]] = ContextVar("otel_llm_pending", default=None)


class OpenAIInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Records the token times of streamed chat completions of the `openai` package."""

    _patches: Patches | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return what must be installed for this to do anything."""
        return ("openai >= 3.0, < 4",)

    def _instrument(self, **kwargs: Any) -> None:
        if not runtime.disabled():
            runtime.start(functools.partial(runtime.configured, **kwargs))
            self._patches = _patch()

    def _uninstrument(self, **kwargs: Any) -> None:  # noqa: ARG002
        if self._patches is not None:
            self._patches.undo()
            self._patches = None
        runtime.stop()


def _patch() -> Patches:
    from openai import AsyncStream, Stream
    from openai._base_client import BaseClient
    from openai.resources.chat.completions import AsyncCompletions, Completions

    patches = Patches()
    patches.replace(Completions, "create", _create)
    patches.replace(AsyncCompletions, "create", _create_async)
    patches.replace(BaseClient, "_build_request", _build_request)
    patches.replace(Stream, "__iter__", _watched)
    patches.replace(AsyncStream, "__aiter__", _watched)
    return patches


def _create(original: Callable[..., Any]) -> Callable[..., Any]:
    def create(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _commit(self, kwargs)
        if call is None:
            return original(self, *args, **kwargs)
        token = _pending.set(call)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            _refused(call, error)
            raise
        finally:
            _pending.reset(token)

    return create


def _create_async(original: Callable[..., Any]) -> Callable[..., Any]:
    async def awaited(self: Any, kwargs: dict[str, Any], made: Any) -> Any:
        call = _commit(self, kwargs)
        if call is None:
            return await made
        token = _pending.set(call)
        try:
            return await made
        except BaseException as error:
            _refused(call, error)
            raise
        finally:
            _pending.reset(token)

    def create(self: Any, *args: Any, **kwargs: Any) -> Any:
        # As in the SDK: arguments are checked by the call, the request begins when its result is awaited.
        return awaited(self, kwargs, original(self, *args, **kwargs))

    return create


def _commit(completions: Any, kwargs: dict[str, Any]) -> _Call | None:
    """Return the call of a streamed completion, None for one that is not recorded."""
    try:
        running = runtime.running()
        if running is None or kwargs.get("stream") is not True or not is_instrumentation_enabled():
            return None
        stated = kwargs.get("n")
        choices = stated if isinstance(stated, int) and 0 < stated <= MAX_CHOICES else 1
        model = kwargs.get("model")
        url = completions._client.base_url
        span_only: dict[str, Any] = {semconv.GEN_AI_REQUEST_STREAM: True}
        if choices > 1:
            span_only[semconv.GEN_AI_REQUEST_CHOICE_COUNT] = choices
        headers = kwargs.get("extra_headers") or {}
        request = committed.request(
            running,
            otel_context.get_current(),
            operation="chat",
            model=model if isinstance(model, str) else None,
            gen_ai={
                semconv.GEN_AI_PROVIDER_NAME: "azure.ai.openai"
                if "Azure" in type(completions._client).__name__
                else "openai",
                semconv.SERVER_ADDRESS: url.host or None,
                semconv.SERVER_PORT: url.port or {"https": 443, "http": 80}.get(url.scheme),
            },
            ours={semconv.MEASURED_AT: "client"},
            span_only=span_only,
            choices=choices,
            says_complete=True,
        )
        return _Call(Recording(running, request, ChunkReader()), raw=RAW_RESPONSE_HEADER in headers)
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)
        return None


def _refused(call: _Call, error: BaseException) -> None:
    # Arguments that the SDK does not take are no request: nobody waited.
    if isinstance(error, TypeError | ValueError) and not call.recording.announced:
        return
    call.recording.announce(call.context)
    call.recording.failed(error)


def _build_request(original: Callable[..., Any]) -> Callable[..., Any]:
    def _build_request(self: Any, options: Any, **kwargs: Any) -> Any:
        call = _pending.get()
        if call is not None:
            try:
                if options.url.endswith("/chat/completions"):
                    call.context = otel_context.get_current()
                    options.post_parser = functools.partial(_parsed, call, options.post_parser)
                    if not call.raw:
                        call.recording.announce(call.context)
            except Exception as bug:  # noqa: BLE001
                call.recording.broken(bug)
        return original(self, options, **kwargs)

    return _build_request


def _parsed(call: _Call, theirs: Any, parsed: Any) -> Any:
    if callable(theirs):
        parsed = theirs(parsed)
    try:
        _adopt(call, parsed)
    except Exception as bug:  # noqa: BLE001
        call.recording.broken(bug)
    return parsed


def _adopt(call: _Call, stream: Any) -> None:
    from openai import AsyncStream, Stream

    recording = call.recording
    if not isinstance(stream, Stream | AsyncStream) or recording.done:
        return
    recording.announce(call.context)
    recording.opened(stream, stream._iterator)
    _watch_close(stream.response.stream, recording)
    setattr(stream, RECORDING, recording)
    if isinstance(stream, Stream):
        stream._iterator = recorded(stream._iterator, recording)
    else:
        stream._iterator = recorded_async(stream._iterator, recording)


def _watch_close(body: Any, recording: Recording) -> None:
    """Hear of the response's being closed, by the stream, the context manager of `.stream()`, or the caller."""
    with contextlib.suppress(AttributeError, TypeError):  # a transport's own body that has no room for it
        body_type: Any = type(body)
        body.__class__ = _heard(body_type)
        setattr(body, RECORDING, recording)


@functools.lru_cache(maxsize=64)
def _heard(body_type: Any) -> Any:
    # A subclass, not a function on the object: one that called the original would have to hold the object, which would
    # keep the connection until the garbage collector comes, or to hold it weakly, which is too weak while it comes.
    class Heard(body_type):  # type: ignore[misc]
        def close(self) -> None:
            getattr(self, RECORDING).closing(sys._getframe(1))
            super().close()

        async def aclose(self) -> None:
            getattr(self, RECORDING).closing(sys._getframe(1))
            await super().aclose()

    for name in ("close", "aclose"):
        if not hasattr(body_type, name):
            delattr(Heard, name)
    Heard.__name__, Heard.__qualname__, Heard.__module__ = (
        body_type.__name__,
        body_type.__qualname__,
        body_type.__module__,
    )
    return Heard


def _watched(original: Callable[..., Any]) -> Callable[..., Any]:
    def iterate(self: Any) -> Any:
        loop = original(self)
        recording = self.__dict__.get(RECORDING)
        if recording is not None:
            recording.entered(loop)
        return loop

    return iterate
