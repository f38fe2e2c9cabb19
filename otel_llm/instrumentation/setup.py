"""Switch the recorder of this process on and off."""

from __future__ import annotations

import functools
import logging
import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from otel_llm.export import host_log
from otel_llm.instrumentation.process import runtime

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

STACKS: Final[dict[str, tuple[str, str, str]]] = {
    "openai": ("openai", "otel_llm.instrumentation.stacks.openai", "OpenAIInstrumentor"),
    "anthropic": ("anthropic", "otel_llm.instrumentation.stacks.anthropic", "AnthropicInstrumentor"),
    "litellm": ("litellm", "otel_llm.instrumentation.stacks.litellm", "LiteLLMInstrumentor"),
    "httpx": ("httpx", "otel_llm.instrumentation.stacks.httpx", "HttpxInstrumentor"),
    "httpx2": ("httpx2", "otel_llm.instrumentation.stacks.httpx", "Httpx2Instrumentor"),
    "aiohttp": ("aiohttp", "otel_llm.instrumentation.stacks.aiohttp", "AiohttpInstrumentor"),
    "http-client": ("http.client", "otel_llm.instrumentation.stacks.http_client", "HttpClientInstrumentor"),
    "botocore": ("botocore", "otel_llm.instrumentation.stacks.botocore", "BotocoreInstrumentor"),
    "aiobotocore": ("aiobotocore", "otel_llm.instrumentation.stacks.botocore", "AiobotocoreInstrumentor"),
    "lm15": ("lm15", "otel_llm.instrumentation.stacks.lm15", "Lm15Instrumentor"),
    "dspy": ("dspy", "otel_llm.instrumentation.stacks.lm15", "DspyInstrumentor"),
    "transformers": ("transformers", "otel_llm.instrumentation.engines.transformers", "TransformersInstrumentor"),
}
"""By name: the package that must be installed, our module, its instrumentor; servers load their own plugins.

The instrumentation's name, for `OTEL_PYTHON_DISABLED_INSTRUMENTATIONS`, is `otel-llm-` and the stack's.
"""
USER: Final = "otel_llm.instrument"
_ALL: Final = "*"
_OFF: Final = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"


def instrument(**settings: Any) -> None:
    """Start the runtime and hook the installed stacks, see `otel_llm.instrument`."""
    if runtime.disabled():
        host_log.say(logging.INFO, "OTEL_SDK_DISABLED is true: otel_llm records nothing")
        return
    if runtime.running() is not None:
        host_log.warning("otel_llm is instrumented already; call uninstrument() first to change its settings")
    runtime.join(USER, functools.partial(runtime.configured, **settings))
    for instrumentor in _instrumentors(_off()):
        if not instrumentor.is_instrumented_by_opentelemetry:
            _quietly(instrumentor.instrument)


def uninstrument() -> None:
    """Unhook and stop, see `otel_llm.uninstrument`."""
    if runtime.running() is None:
        return
    for instrumentor in _instrumentors(frozenset()):
        if instrumentor.is_instrumented_by_opentelemetry:
            _quietly(instrumentor.uninstrument)
    runtime.stop()


def flush(timeout_s: float) -> bool:
    """Send the recorded data so far, see `otel_llm.flush`."""
    running = runtime.running()
    return True if running is None else running.flush(timeout_s)


def _quietly(switch: Callable[[], object]) -> None:
    try:
        switch()
    except Exception as error:  # noqa: BLE001  one stack that fails must not harm the application or the other stacks
        host_log.warning("otel_llm could not switch one of its stacks: %s", error)


def _off() -> frozenset[str]:
    """Return the names that the environment switches off."""
    return frozenset(name.strip() for name in os.environ.get(_OFF, "").split(","))


def _instrumentors(off: frozenset[str]) -> list[BaseInstrumentor]:
    """Return the instrumentors of the installed stacks that are not off; imports no package of a host's."""
    found = []
    for stack, (package, module, name) in STACKS.items():
        if _ALL in off or f"otel-llm-{stack}" in off or find_spec(package) is None:
            continue
        try:
            found.append(getattr(import_module(module), name)())
        except Exception as error:  # noqa: BLE001  one stack that fails must not stop the others
            host_log.warning("otel_llm cannot record %s: %s", stack, error)
    return found
