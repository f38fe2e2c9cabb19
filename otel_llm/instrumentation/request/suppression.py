"""Whether telemetry is suppressed for a request, and whether the application meant that.

`suppress_instrumentation()` is one switch of OpenTelemetry for two wishes: an application's, to record nothing, and an
instrumentation's, whose span covers what it calls. The application's is in force where the application calls.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from otel_llm.instrumentation.core.request_span import stands_for_inference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.instrumentation.process.runtime import Runtime

_requested: Final[ContextVar[bool]] = ContextVar("otel_llm_requested", default=False)
"""Whether the application called while nothing was suppressed."""


@contextlib.contextmanager
def requesting() -> Iterator[None]:
    """Make the application's call inside: what is suppressed further down, another instrumentation suppresses."""
    token = _requested.set(is_instrumentation_enabled())
    try:
        yield
    finally:
        # A dropped coroutine is closed in the context of the garbage collector.
        with contextlib.suppress(ValueError):
            _requested.reset(token)


def is_suppressed(running: Runtime, stack: str) -> bool:
    """Return whether the next streamed reply of a stack must not be recorded; the first one is said.

    Under an open span of the inference itself, its instrumentation suppresses: our segments hang from that span.
    """
    if is_instrumentation_enabled() or _requested.get() or stands_for_inference(trace.get_current_span()):
        return False
    running.unrecorded.suppressed(stack)
    return True
