"""Whether a stream's reader is still there: loops that were left, streams that were dropped, responses being closed."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

FRAMES: Final = 64
"""How far up the stack the reader is looked for when a response is closed."""
BODY_ITERATORS: Final = frozenset({"iter_raw", "aiter_raw"})
"""The functions of httpx and httpx2 that close a response because its body has ended."""


class ReaderLiveness:
    """Watches one stream by weak references, and so never keeps it alive.

    `opened_ns` is when there was a stream to read; `collected` whether it is gone; `body_ended` whether the body of the
    response was read to its end. Times are those of the clock given, monotonic ns.
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
        """Watch a stream that gets its chunks from `inner`, a generator where there is one to ask whether it runs."""
        self.opened_ns = self._clock_ns()
        self._stream = weakref.ref(stream, self._on_collected)
        with contextlib.suppress(TypeError):  # no weak reference to it: then it cannot be asked
            self._inner = weakref.ref(inner)

    def enter(self, loop: object) -> None:
        """Watch a loop over the stream: that it is dropped is all that one ever sees of a `break`."""
        self._left_ns = None
        self._loop = weakref.ref(loop, self._on_left)

    def end(self) -> None:
        """Watch no longer; the callbacks would keep this object and those it knows alive."""
        self._stream = self._loop = None

    # These two run where the last reference goes, perhaps inside the garbage collector: no lock, no queue, no wake-up.

    def _on_left(self, _: object) -> None:
        if self._left_ns is None:
            self._left_ns = self._clock_ns()

    def _on_collected(self, _: object) -> None:
        self.collected = True

    def left_ns(self, newest_ns: int | None) -> int | None:
        """Return when the reader left its loop; None where it is, came back, or reads on in another way.

        `newest_ns` is when the newest chunk came that was not yet looked at, if any: one that came later than the loop
        was left was read by somebody.
        """
        if self._left_ns is None and self._loop is not None and self._loop() is None:
            # Collected together with its stream, and this thread came between the two callbacks.
            self._left_ns = self._clock_ns()
        if self._left_ns is None:
            return None
        if newest_ns is not None and newest_ns > self._left_ns:
            self._left_ns = self._loop = None
            return None
        # It runs because somebody reads, or because it is being closed: which of the two, only what comes next tells.
        inner = None if self._inner is None else self._inner()
        runs = getattr(inner, "gi_running", False) or getattr(inner, "ag_running", False)
        return None if runs else self._left_ns

    def closed_by_reader(self, frame: FrameType | None) -> bool:
        """Return whether the response that is being closed in `frame` is closed by the stream's own reader.

        It does so at the end of the body and on errors, and then knows how the stream ended and says so next; anybody
        else is the application.
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
