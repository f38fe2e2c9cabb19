"""The liveness of a stream's reader: loops that were left, streams that were dropped, responses being closed."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

FRAMES: Final = 64
"""The number of frames in which the reader is searched when a response is closed."""
BODY_ITERATORS: Final = frozenset({"iter_raw", "aiter_raw"})
"""The functions of httpx and httpx2 that close a response because its body has ended."""


class ReaderLiveness:
    """The liveness of one stream's reader, watched by weak references, which never keep the stream alive.

    `opened_ns` is when there was a stream to read; `collected` whether it is gone; `body_ended` whether the response's
    body was read to its end. Times are readings of the given clock, monotonic ns.
    """

    __slots__ = ("_clock_ns", "_inner", "_left_ns", "_loop", "_stream", "body_ended", "collected", "opened_ns")

    def __init__(self, clock_ns: Callable[[], int], commit_ns: int) -> None:
        self._clock_ns = clock_ns
        self._left_ns: int | None = None
        self._stream: weakref.ref[Any] | None = None
        self._loop: weakref.ref[Any] | None = None
        self._inner: weakref.ref[Any] | None = None
        self.opened_ns = commit_ns
        self.collected = False
        self.body_ended = False

    def open(self, stream: object, inner: object) -> None:
        """Watch a stream that gets its chunks from `inner`; if that is a generator, it shows whether it is running."""
        self.opened_ns = self._clock_ns()
        self.collected = False
        self._stream = weakref.ref(stream, self._on_collected)
        with contextlib.suppress(TypeError):  # it allows no weak reference, and so cannot be watched
            self._inner = weakref.ref(inner)

    def enter(self, loop: object) -> None:
        """Watch a loop over the stream: its being dropped is the only sign of a `break`."""
        self._left_ns = None
        self._loop = weakref.ref(loop, self._on_left)

    def end(self) -> None:
        """Stop watching; the callbacks would keep this object and those it references alive."""
        self._stream = self._loop = None

    # These two run where the last reference is dropped, perhaps in the garbage collector: no lock, queue or wake-up.

    def _on_left(self, _: object) -> None:
        if self._left_ns is None:
            self._left_ns = self._clock_ns()

    def _on_collected(self, _: object) -> None:
        self.collected = True

    def left_ns(self, newest_ns: int | None) -> int | None:
        """Return when the reader left its loop; None if it is in it, came back, or reads on in another way.

        `newest_ns` is the time of the newest unread chunk, if any: one later than the end of the loop was read by
        another reader.
        """
        if self._left_ns is None and self._loop is not None and self._loop() is None:
            # Collected together with its stream, and this thread ran between the two callbacks.
            self._left_ns = self._clock_ns()
        if self._left_ns is None:
            return None
        if newest_ns is not None and newest_ns > self._left_ns:
            self._left_ns = self._loop = None
            return None
        # It runs because it is read or because it is being closed; only the next event shows which.
        inner = None if self._inner is None else self._inner()
        runs = getattr(inner, "gi_running", False) or getattr(inner, "ag_running", False)
        return None if runs else self._left_ns

    def closed_by_reader(self, frame: FrameType | None) -> bool:
        """Return whether the response that is being closed in `frame` is closed by the stream's own reader.

        The reader does so at the end of the body and on errors; it then knows how the stream ended and reports that
        next. Any other caller is the application.
        """
        inner = None if self._inner is None else self._inner()
        reading = getattr(inner, "gi_frame", None) or getattr(inner, "ag_frame", None)
        for _ in range(FRAMES):
            if frame is None:
                return False
            if frame is reading:
                return True
            if frame.f_code.co_name in BODY_ITERATORS:
                self.body_ended = True
            frame = frame.f_back
        return False
