"""The streams of OpenAI's and Anthropic's SDKs: one generator made both, and both stream in the same way.

Only a stream's inner iterator is replaced, so its type and all else stay the SDK's. `__iter__` and `__aiter__` return
the original iterator, watched: a dropped loop is a `break`. `_build_request`, innermost, finds the current span inside
every other instrumentation, so the order of instrumenting does not matter; there the request's options get a
`post_parser`, the SDK's own, which passes the stream on.

A raw response is recorded by the bytes that its caller reads, until `.parse()` makes a stream of it; so is a stream
whose caller reads the response beneath it (`stream.response.iter_lines()`).
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context

from otel_llm.instrumentation.core.reading import recorded, recorded_async
from otel_llm.instrumentation.core.suppressing import attempting, suppressing
from otel_llm.instrumentation.request.propagation import attach, detach, inject
from otel_llm.instrumentation.segments.outcomes import ABANDONED
from otel_llm.instrumentation.stacks import client_request, httpx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_llm.instrumentation.core.recording import Recording
    from otel_llm.instrumentation.parse.sse_chunks import Api, Tap
    from otel_llm.instrumentation.request.propagation import Attached

RECORDING: Final = "_otel_llm_recording"
"""The one added attribute of a recorded `Stream`."""
AWS: Final = "amazon.eventstream"
"""A part of the content type of Bedrock's streams, which are frames of AWS's own."""
RAW_RESPONSE_HEADER: Final = "X-Stainless-Raw-Response"
"""With this header the SDK returns a response, whose body the caller may read in any way."""


class Call:
    """A call of the SDK until its stream is there.

    `raw`: it returns a response, whose body is one of `api`; `adopted`: the stream is there, and is recorded.
    """

    __slots__ = ("adopted", "api", "attached", "context", "model", "raw", "recording")

    def __init__(self, recording: Recording, api: Api, model: object, *, raw: bool) -> None:
        self.recording = recording
        self.api = api
        self.model = model
        self.raw = raw
        self.adopted = False
        self.attached: Attached | None = None
        self.context = otel_context.get_current()

    def refused(self, error: BaseException) -> None:
        """Note that there will be no stream."""
        # Invalid arguments are no request: no user waited.
        if isinstance(error, TypeError | ValueError) and not self.recording.announced:
            return
        self.recording.announce(self.context)
        self.recording.failed(error)

    def returned(self, made: Any) -> Any:
        """Note the result of the call, and return it."""
        try:
            if self.recording.announced and not self.adopted:
                response = getattr(made, "http_response", None) if self.raw else None
                if response is not None:
                    self._watch(response)
                else:  # a middleware asked, and then answered itself: the stream will never be read
                    self.recording.ended(ABANDONED)
        except Exception as bug:  # noqa: BLE001
            self.recording.broken(bug)
        return made

    def _watch(self, response: Any) -> None:
        content_type = response.headers.get("content-type", "")
        self.recording.opened(response, None)
        if AWS in content_type:
            return
        tap = client_request.tap_of(self.recording, self.api, content_type)
        with contextlib.suppress(AttributeError, TypeError):  # a transport's own body that has no room for it
            httpx.watch(response, tap)
            self.recording.opened(response, tap)


pending: Final[ContextVar[Call | None]] = ContextVar("otel_llm_pending", default=None)
"""The call that is being made; None also inside of a call that is not recorded."""


@contextlib.contextmanager
def calling(call: Call) -> Iterator[None]:
    """Make the SDK's call inside: its error is the request's end, and no inner hook records it again.

    Its result goes through `call.returned`, inside too.
    """
    token = pending.set(call)
    try:
        with suppressing(tried=call.recording), attempting(call.model):
            yield
    except BaseException as error:
        call.refused(error)
        raise
    finally:
        detach(call.attached)
        # A dropped coroutine is closed in the context of the garbage collector.
        with contextlib.suppress(ValueError):
            pending.reset(token)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Make a request inside that does not belong to the pending call: a middleware's, for example."""
    if pending.get() is None:
        yield
        return
    token = pending.set(None)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            pending.reset(token)


def build_request(is_ours: Callable[[Any], bool]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the replacement of `_build_request`; `is_ours(options)` tells a call's own request from others in it."""

    def replacement(original: Callable[..., Any]) -> Callable[..., Any]:
        def _build_request(self: Any, options: Any, **kwargs: Any) -> Any:
            call = pending.get()
            try:
                if call is not None and not is_ours(options):
                    call = None  # a refreshed token, for example: not our request
                if call is not None:
                    call.context = otel_context.get_current()
                    options.post_parser = functools.partial(_parsed, call, options.post_parser)
                    call.recording.announce(call.context)
            except Exception as bug:  # noqa: BLE001
                if call is not None:
                    call.recording.broken(bug)
            built = original(self, options, **kwargs)
            if call is not None and call.recording.announced:
                inject(call.recording, built.headers)
                call.attached = call.attached or attach(call.recording)
            return built

        return _build_request

    return replacement


def _parsed(call: Call, theirs: Any, parsed: Any) -> Any:
    if callable(theirs):
        parsed = theirs(parsed)
    try:
        _adopt(call, parsed)
    except Exception as bug:  # noqa: BLE001
        call.recording.broken(bug)
    return parsed


def _adopt(call: Call, stream: Any) -> None:
    recording = call.recording
    kind = type(stream)
    if recording.done or not hasattr(kind, "__stream__"):  # not streamed, or parsed into something else
        return
    call.adopted = True
    if call.raw:
        if stream.response.is_stream_consumed:  # the bytes were read, and are recorded already
            return
        httpx.unwatch(stream.response)
    inner = stream._iterator
    recording.opened(stream, inner)
    loop = (recorded_async if hasattr(kind, "__anext__") else recorded)(inner, recording)
    _watch_body(stream.response, Past(recording, call.api, loop, stream.response.headers.get("content-type", "")))
    setattr(stream, RECORDING, recording)
    stream._iterator = loop


class Past:
    """The body of a stream; `loop` reads it for the SDK, and what is read past that is recorded by its bytes.

    So is one JSON text, in which the SDK finds no event: an error, or a reply that comes at once.
    """

    __slots__ = ("__weakref__", "_api", "_content_type", "_loop", "_tap", "_whole", "recording", "waiting")

    def __init__(self, recording: Recording, api: Api, loop: Any, content_type: str) -> None:
        self.recording = recording
        self.waiting = False
        self._api = api
        self._content_type = content_type
        self._whole = client_request.is_whole(api, content_type)
        self._loop = weakref.ref(loop)
        self._tap: Tap | None = None  # made when it is needed, since it references itself

    @property
    def unused(self) -> bool:
        """Whether the SDK reads now, and finds what there is."""
        loop = None if self._whole else self._loop()
        return getattr(loop, "gi_running", False) or getattr(loop, "ag_running", False)

    @property
    def gi_running(self) -> bool:
        """Whether a read past the SDK is waiting for bytes now."""
        return self.waiting

    def take(self, data: bytes) -> None:
        """Apply the next bytes, unless the SDK reads them."""
        if not self.unused:
            self._read().take(data)

    def ended(self) -> None:
        """Note that the body ended."""
        self._read().ended()

    def _read(self) -> Tap:
        if self._tap is None:
            self._tap = client_request.tap_of(self.recording, self._api, self._content_type)
        return self._tap


def _watch_body(response: Any, tap: Past) -> None:
    """Observe when the response has bytes, who reads them, and its closing by the stream or by the caller.

    The SDK passes no keep-alive on: only the bytes show that a silent server is alive.
    """
    # A transport's own body may have no room for it, and one that was read already has nothing to observe.
    if not response.is_stream_consumed and AWS not in response.headers.get("content-type", ""):
        with contextlib.suppress(AttributeError, TypeError):
            httpx.watch(response, tap, _heard)


@functools.lru_cache(maxsize=64)
def _heard(body_type: Any) -> Any:
    return httpx.watching(
        body_type,
        lambda body: getattr(body, httpx.TAP)[0].recording,
        lambda inner, body: Heard(inner, *getattr(body, httpx.TAP)),
        lambda inner, body: httpx.of_its_kind(inner, AsyncHeard, GeneratedHeard)(inner, *getattr(body, httpx.TAP)),
    )


class _Heard:
    """The common part of a body's iterators, which leave to the SDK's stream what the SDK reads."""

    __slots__ = ()
    _tap: Any
    _recording: Recording

    def _begin(self) -> None:
        if not self._tap.unused:  # the caller may have dropped the stream, and kept the response
            self._recording.opened(self, self._tap)
            self._recording.entered(self)


class Heard(_Heard, httpx.Pieces):
    """A body's iterator."""

    __slots__ = ()

    def __next__(self) -> Any:
        if not self._tap.unused:
            return super().__next__()
        data = next(self._inner)
        self._recording.last_byte_ns = self._recording.clock_ns()
        return data


class AsyncHeard(_Heard, httpx.AsyncPieces):
    """A body's async iterator."""

    __slots__ = ()

    async def __anext__(self) -> Any:
        if not self._tap.unused:
            return await super().__anext__()
        data = await self._inner.__anext__()
        self._recording.last_byte_ns = self._recording.clock_ns()
        return data


class GeneratedHeard(AsyncHeard, httpx.Generated):
    """A body's async iterator that stands for an async generator."""

    __slots__ = ()


def watched(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of `__iter__` and `__aiter__`."""

    def iterate(self: Any) -> Any:
        loop = original(self)
        recording = self.__dict__.get(RECORDING)
        if recording is not None:
            recording.entered(loop)
        return loop

    return iterate
