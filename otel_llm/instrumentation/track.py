"""Record any iterator of a reply's chunks: the stream of a library without a hook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context

from otel_llm import semconv
from otel_llm.instrumentation.core.reading import recorded, recorded_async
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.core.suppressing import beneath, beneath_async, suppressing
from otel_llm.instrumentation.parse.callback_reader import CallbackReader
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.request import request_builder
from otel_llm.instrumentation.stacks import hooked_stream
from otel_llm.instrumentation.stacks.hooked_stream import StatedReader

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping

    from otel_llm.export.records import AttributeValue

CLOSING: Final = frozenset({"close", "aclose"})


class _Tracked:
    """The common part of tracked streams: the stream's own attributes, and observation of its closing."""

    def __init__(self, stream: Any, recording: Recording, reader: CallbackReader) -> None:
        self._stream = stream
        self._recording = recording
        self._callbacks = reader
        self._reader: Any = None

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._stream, name)
        if name not in CLOSING or not callable(value):
            return value

        def close(*args: Any, **kwargs: Any) -> Any:
            self._recording.closed(self._callbacks)
            return value(*args, **kwargs)

        return close

    def _same(self, entered: Any) -> Any:
        """Return this object if entering the stream returned the stream, else the result, tracked."""
        if entered is not self._stream:
            self._stream = entered
            self._recording.opened(self, entered, self._callbacks)
        return self


class TrackedStream(_Tracked):
    """A tracked sync iterator."""

    def __iter__(self) -> Generator[Any, None, None]:
        loop = recorded(beneath(iter(self._stream), self._recording), self._recording, self, self._callbacks)
        self._recording.entered(loop, self._callbacks)
        return loop

    def __next__(self) -> Any:
        if self._reader is None:
            inner = beneath(self._stream, self._recording)
            self._reader = recorded(inner, self._recording, reader=self._callbacks)
        return next(self._reader)

    def __enter__(self) -> Any:
        with suppressing(self._recording):
            entered = self._stream.__enter__()
        return self._same(entered)

    def __exit__(self, *exc_info: object) -> Any:
        self._recording.closed(self._callbacks)
        return self._stream.__exit__(*exc_info)


class TrackedAsyncStream(_Tracked):
    """A tracked async iterator."""

    def __aiter__(self) -> AsyncGenerator[Any, None]:
        inner = beneath_async(aiter(self._stream), self._recording)
        loop = recorded_async(inner, self._recording, self, self._callbacks)
        self._recording.entered(loop, self._callbacks)
        return loop

    async def __anext__(self) -> Any:
        if self._reader is None:
            inner = beneath_async(self._stream, self._recording)
            self._reader = recorded_async(inner, self._recording, reader=self._callbacks)
        return await anext(self._reader)

    async def __aenter__(self) -> Any:
        with suppressing(self._recording):
            entered = await self._stream.__aenter__()
        return self._same(entered)

    async def __aexit__(self, *exc_info: object) -> Any:
        self._recording.closed(self._callbacks)
        return await self._stream.__aexit__(*exc_info)


def track(
    stream: Any,
    *,
    model: str | None,
    slo_class: str | None,
    kind: Callable[[Any], str | None] | None,
    count: Callable[[Any], int] | None,
    basis: str,
    operation: str,
    provider: str | None,
    instance: str | None,
    measured_at: str,
    input_tokens: int | None,
    exact_resume: bool | None,
    commit_ns: int | None,
) -> Any:
    """Return the tracked stream, see `otel_llm.track`; the stream itself if it cannot be recorded."""
    if runtime.disabled():
        return stream
    try:
        running = runtime.start(runtime.configured)
        running.unrecorded.claim()
        reader = CallbackReader(kind, count, basis)
        stated = kind is not None or count is not None
        ours = {
            semconv.INSTANCE: instance,
            semconv.EXACT_RESUME: exact_resume,
        }
        if (recording := hooked_stream.recording_of(stream)) is not None:
            hooked_stream.state(recording, _known({**ours, semconv.SLO_CLASS: slo_class}))
            if stated:
                recording.read_by(StatedReader(recording.reader, reader, silent=False))
            return stream
        if (recording := hooked_stream.recording_beneath(stream)) is not None:
            hooked_stream.state(recording, _known({**ours, semconv.SLO_CLASS: slo_class}))
            if not stated:
                return stream
            recording.read_by(StatedReader(recording.reader, reader, silent=True))
            tracked = _tracked(stream, recording, reader)
            recording.hand_over(reader, tracked, stream)
            return tracked
        context = otel_context.get_current()
        request = request_builder.request(
            running,
            context,
            operation=operation,
            model=model,
            gen_ai={semconv.GEN_AI_PROVIDER_NAME: provider, semconv.GEN_AI_USAGE_INPUT_TOKENS: input_tokens},
            ours={semconv.MEASURED_AT: measured_at, **ours},
            slo_class=slo_class,
            commit_ns=commit_ns,
            stack="track",
        )
        recording = Recording(running, request, reader)
        tracked = _tracked(stream, recording, reader)
        recording.announce(context)
        recording.opened(tracked, stream)
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)
        return stream
    return tracked


def _tracked(stream: Any, recording: Recording, reader: CallbackReader) -> _Tracked:
    if hasattr(type(stream), "__aiter__") or hasattr(type(stream), "__aenter__"):
        return TrackedAsyncStream(stream, recording, reader)
    return TrackedStream(stream, recording, reader)


def _known(stated: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    return {name: value for name, value in stated.items() if value is not None}
