"""Switching the recorder of this process on and off."""

from __future__ import annotations

import functools
import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from otel_llm.instrumentation import runtime

if TYPE_CHECKING:
    from otel_llm.instrumentation.openai import OpenAIInstrumentor

_log: Final = logging.getLogger("otel_llm")


def instrument(**settings: Any) -> None:
    """Start the runtime and hook what is installed, see `otel_llm.instrument`."""
    if runtime.disabled():
        _log.info("OTEL_SDK_DISABLED is true: otel_llm records nothing")
        return
    if runtime.running() is not None:
        _log.warning("otel_llm is instrumented already; call uninstrument() first to change its settings")
    runtime.start(functools.partial(runtime.configured, **settings))
    if (instrumentor := _openai()) is not None and not instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.instrument()


def uninstrument() -> None:
    """Unhook and stop, see `otel_llm.uninstrument`."""
    if runtime.running() is None:
        return
    if (instrumentor := _openai()) is not None and instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()
    runtime.stop()


def flush(timeout_s: float) -> bool:
    """Send what was recorded so far, see `otel_llm.flush`."""
    running = runtime.running()
    return True if running is None else running.flush(timeout_s)


def _openai() -> OpenAIInstrumentor | None:
    if find_spec("openai") is None:
        return None
    from otel_llm.instrumentation.openai import OpenAIInstrumentor

    return OpenAIInstrumentor()
