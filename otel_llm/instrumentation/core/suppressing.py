"""Suppression inside a recorded call: its requests are not recorded again by hooks further down."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

from otel_llm import semconv
from otel_llm.instrumentation.segments.outcomes import error_type

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator

    from otel_llm.instrumentation.core.recording import Recording

T = TypeVar("T")
HTTP_ERRORS: Final = 400


class Suppression:
    """One call, or one tracked stream, whose requests an outer instrumentation records already.

    `live` until it ends: a task that begins meanwhile inherits the context for its own life, and with it this.
    `recording`: whose trace the requests' headers carry; `tried`: whose attempts they are.
    """

    __slots__ = ("live", "recording", "tried")

    def __init__(self, recording: Recording | None = None, tried: Recording | None = None) -> None:
        self.live = True
        self.recording = recording
        self.tried = tried or recording


suppression: Final[ContextVar[Suppression | None]] = ContextVar("otel_llm_suppression", default=None)
"""The suppression of the next request; set and reset in one frame around its call. Read it by `is_nested`."""


def is_nested() -> bool:
    """Return whether an outer instrumentation records the next request."""
    present = suppression.get()
    return present is not None and present.live and (present.recording is None or not present.recording.done)


def carrier() -> Recording | None:
    """Return the recording whose trace the next request's headers carry, None for none."""
    present = suppression.get()
    return None if present is None or not is_nested() else present.recording


@contextlib.contextmanager
def suppressing(recording: Recording | None = None, tried: Recording | None = None) -> Iterator[None]:
    """Keep hooks further down from recording requests made inside; these carry the trace of `recording`.

    They are attempts of it, or of `tried`, whose headers are put in otherwise.
    """
    present = Suppression(recording, tried)
    token = suppression.set(present)
    try:
        yield
    finally:
        present.live = False
        # A dropped coroutine is closed in the context of the garbage collector.
        with contextlib.suppress(ValueError):
            suppression.reset(token)


_model: Final[ContextVar[object]] = ContextVar("otel_llm_model", default=None)
"""The model of the attempt that is being made."""


@contextlib.contextmanager
def attempting(model: object = None) -> Iterator[None]:
    """Make a call for `model` inside, by default the outer call's: an attempt of the recording that suppresses it."""
    present = suppression.get()
    recording = None if present is None or not is_nested() else present.tried
    if recording is None:
        yield
        return
    failed, recording.failed_attempt = recording.failed_attempt, None
    if failed is not None:  # the reader waits on, for this attempt
        recording.event(semconv.ATTEMPT_EVENT, *failed)
    token = _model.set(model or _model.get())
    try:
        yield
    except Exception as error:
        attempt_failed(recording, error_type(error))
        raise
    finally:
        with contextlib.suppress(ValueError):  # as in `suppressing`
            _model.reset(token)


def attempt_answered(status: object) -> None:
    """Note the HTTP status of the answer to an attempt."""
    present = suppression.get()
    if present is None or present.tried is None or not isinstance(status, int) or status < HTTP_ERRORS:
        return
    if is_nested():
        attempt_failed(present.tried, str(status))


def attempt_failed(recording: Recording, error: str, model: object = None) -> None:
    """Note that an attempt failed, by its `error.type`; if another follows, it becomes an event.

    Of attempts inside an attempt, the outermost is noted last. The model is by default that of the present attempt.
    """
    stated = model or _model.get()
    attributes = {semconv.ATTEMPT_MODEL: stated} if isinstance(stated, str) else {}
    recording.failed_attempt = recording.clock_ns(), {**attributes, semconv.ERROR_TYPE: error}


# Between two chunks, while the application runs, nothing is suppressed.


def beneath(inner: Iterator[T], recording: Recording) -> Generator[T, None, None]:
    """Yield what `inner` yields; the requests that it makes meanwhile carry the recording's trace, unrecorded."""
    present = Suppression(recording)
    token: Any = suppression.set(present)
    try:
        for chunk in inner:
            suppression.reset(token)
            token = None
            yield chunk
            token = suppression.set(present)
    finally:
        present.live = False
        if token is not None:
            suppression.reset(token)


async def beneath_async(inner: AsyncIterator[T], recording: Recording) -> AsyncGenerator[T, None]:
    """Yield what `inner` yields; the requests that it makes meanwhile carry the recording's trace, unrecorded."""
    present = Suppression(recording)
    token: Any = suppression.set(present)
    try:
        async for chunk in inner:
            suppression.reset(token)
            token = None
            yield chunk
            token = suppression.set(present)
    finally:
        present.live = False
        if token is not None:
            # A dropped coroutine is closed in the context of the garbage collector.
            with contextlib.suppress(ValueError):
                suppression.reset(token)
