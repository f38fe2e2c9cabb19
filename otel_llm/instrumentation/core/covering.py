"""Whether an instrumentation further up records a request already, so that no hook below records it again."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.instrumentation.recording import Recording

covered: Final[ContextVar[Recording | bool]] = ContextVar("otel_llm_covered", default=False)
"""Whether the request is recorded already, or by which recording, whose trace it is to carry; set and reset in one
frame around its call."""


def carrier() -> Recording | None:
    """Return the recording whose trace goes into the headers of the request that leaves next, None where none is."""
    recording = covered.get()
    return None if isinstance(recording, bool) else recording


@contextlib.contextmanager
def covering(recording: Recording | None = None) -> Iterator[None]:
    """Keep hooks further down from recording the request that is made inside; it carries the trace of `recording`."""
    token = covered.set(recording or True)
    try:
        yield
    finally:
        # A coroutine that is thrown away unfinished is closed in whatever context the garbage collector runs.
        with contextlib.suppress(ValueError):
            covered.reset(token)
