"""Covers: a request that an outer instrumentation records already is not recorded again by hooks further down."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator

    from otel_llm.instrumentation.core.recording import Recording

T = TypeVar("T")


class Cover:
    """One call, or one tracked stream, whose requests an outer instrumentation records already.

    `live` until it ends: a task that begins meanwhile inherits the context, and with it the cover, for its own life.
    """

    __slots__ = ("live", "recording")

    def __init__(self, recording: Recording | None = None) -> None:
        self.live = True
        self.recording = recording


cover: Final[ContextVar[Cover | None]] = ContextVar("otel_llm_cover", default=None)
"""The cover of the next request; set and reset in one frame around its call. Read it by `is_covered`."""


def is_covered() -> bool:
    """Return whether an outer instrumentation records the next request."""
    present = cover.get()
    return present is not None and present.live and (present.recording is None or not present.recording.done)


def carrier() -> Recording | None:
    """Return the recording whose trace the next request's headers carry, None for none."""
    present = cover.get()
    return None if present is None or not is_covered() else present.recording


@contextlib.contextmanager
def covering(recording: Recording | None = None) -> Iterator[None]:
    """Keep hooks further down from recording requests made inside; these carry the trace of `recording`."""
    present = Cover(recording)
    token = cover.set(present)
    try:
        yield
    finally:
        present.live = False
        # A dropped coroutine is closed in the context of the garbage collector.
        with contextlib.suppress(ValueError):
            cover.reset(token)


# Between two chunks, while the application runs, nothing is covered.


def beneath(inner: Iterator[T], recording: Recording) -> Generator[T, None, None]:
    """Yield what `inner` yields; the requests that it makes meanwhile carry the recording's trace, unrecorded."""
    present = Cover(recording)
    token: Any = cover.set(present)
    try:
        for chunk in inner:
            cover.reset(token)
            token = None
            yield chunk
            token = cover.set(present)
    finally:
        present.live = False
        if token is not None:
            cover.reset(token)


async def beneath_async(inner: AsyncIterator[T], recording: Recording) -> AsyncGenerator[T, None]:
    """Yield what `inner` yields; the requests that it makes meanwhile carry the recording's trace, unrecorded."""
    present = Cover(recording)
    token: Any = cover.set(present)
    try:
        async for chunk in inner:
            cover.reset(token)
            token = None
            yield chunk
            token = cover.set(present)
    finally:
        present.live = False
        if token is not None:
            # A dropped coroutine is closed in the context of the garbage collector.
            with contextlib.suppress(ValueError):
                cover.reset(token)
