"""Hugging Face transformers: `generate(streamer=...)` and continuous batching, each token as the model makes it.

`generate` gets the caller's streamer in a transparent wrapper that takes the time of every `put`. Continuous batching
has one thread in which the tokens of all requests are made; they are seen one by one, whether or not the caller asked
for a stream. Nothing of transformers is imported before the application does so itself.
"""

from __future__ import annotations

import contextvars
import functools
from typing import TYPE_CHECKING, Any, Final

import wrapt
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from otel_llm.export import host_log
from otel_llm.export.host_log import OWN_CHARS, shown
from otel_llm.instrumentation.engines.transformers_batching import (
    begin,
    hook_batches,
    hook_manager,
    hook_states,
    must_have,
)
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.process.patches import Patches
from otel_llm.instrumentation.server.asgi import StreamMiddleware

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import ModuleType

    from otel_llm.instrumentation.engines.engine_request import Generation

    Transparent = wrapt.ObjectProxy[Any]
else:
    Transparent = wrapt.ObjectProxy

USER: Final = "otel-llm-transformers"
LEFT: Final = "_GenerationCancelled"
"""Raised out of `generate` by `transformers serve` when its client has left."""


class TransformersInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """The hooks that record the token times of `generate(streamer=...)` and of continuous batching."""

    _patches: Patches | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages that must be installed for the hooks."""
        return ("transformers >= 5.0, < 6",)

    def _instrument(self, **kwargs: Any) -> None:
        if runtime.disabled():
            return
        runtime.join(USER, functools.partial(runtime.configured, **kwargs))
        patches = self._patches = Patches()
        for module, hook in HOOKS.items():
            wrapt.register_post_import_hook(functools.partial(_imported, self, patches, hook), module)

    def _uninstrument(self, **kwargs: Any) -> None:  # noqa: ARG002
        if self._patches is not None:
            self._patches.undo()
            self._patches = None
        runtime.leave(USER)


def _imported(
    instrumentor: TransformersInstrumentor, patches: Patches, hook: Callable[[Patches, Any], None], module: ModuleType
) -> None:
    """Hook an imported module; post-import hooks cannot be removed, so an old one does nothing."""
    if instrumentor._patches is not patches:
        return
    try:
        hook(patches, module)
    except Exception as error:  # noqa: BLE001
        words = "otel_llm does not know this version of transformers and records nothing of %s: %s"
        host_log.warning(words, module.__name__, shown(error, OWN_CHARS))


# A single request, with a streamer.


class RecordedStreamer(Transparent):
    """A caller's streamer, transparently wrapped; the first `put` is the prompt, as in `generate`."""

    def __init__(self, streamer: Any, generation: Generation, clock_ns: Callable[[], int]) -> None:
        super().__init__(streamer)
        self._self_generation = generation
        self._self_clock_ns = clock_ns
        self._self_prompt = True

    def put(self, value: Any) -> Any:
        """Pass tokens on, after noting their time."""
        now_ns = self._self_clock_ns()
        try:
            if self._self_prompt:
                self._self_prompt = False
                self._self_generation.prompt(value.numel())
            else:
                self._self_generation.tokens(now_ns, value.numel())
        except Exception as bug:  # noqa: BLE001
            runtime.warn(bug)
        return self.__wrapped__.put(value)


def _hook_generate(patches: Patches, module: Any) -> None:
    patches.replace(module.GenerationMixin, "generate", _generate)


def _generate(original: Callable[..., Any]) -> Callable[..., Any]:
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        streamer, running = kwargs.get("streamer"), runtime.running()
        if streamer is None or running is None or isinstance(streamer, RecordedStreamer):
            return original(self, *args, **kwargs)
        generation = begin(self, stream=True, request_id=None)
        if generation is None:
            return original(self, *args, **kwargs)
        kwargs["streamer"] = RecordedStreamer(streamer, generation, running.clock_ns)
        try:
            made = original(self, *args, **kwargs)
        except BaseException as error:
            if type(error).__name__ == LEFT:
                generation.cancelled()
            else:
                generation.failed(error)
            raise
        generation.finished(running.clock_ns())
        return made

    return generate


# `transformers serve` is an ASGI application, which gets our middleware: only that sees a client leave. Generation runs
# on a thread of its own, which must know the request that it works on.


def _hook_server(patches: Patches, module: Any) -> None:
    must_have(module, "build_server")
    patches.replace(module, "build_server", _build_server)


def _build_server(original: Callable[..., Any]) -> Callable[..., Any]:
    def build_server(*args: Any, **kwargs: Any) -> Any:
        app = original(*args, **kwargs)
        try:
            app.add_middleware(StreamMiddleware, provider="transformers")
        except Exception as bug:  # noqa: BLE001
            runtime.warn(bug)
        return app

    return build_server


def _hook_serving(patches: Patches, module: Any) -> None:
    thread = module.InferenceThread
    must_have(thread, "submit", "async_submit")
    patches.replace(thread, "submit", _with_context)
    patches.replace(thread, "async_submit", _with_context)


def _with_context(original: Callable[..., Any]) -> Callable[..., Any]:
    def submit(self: Any, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(self, contextvars.copy_context().run, fn, *args, **kwargs)

    return submit


HOOKS: Final[dict[str, Callable[[Patches, Any], None]]] = {
    "transformers.generation.utils": _hook_generate,
    "transformers.generation.continuous_batching.continuous_api": hook_manager,
    "transformers.generation.continuous_batching.requests": hook_states,
    "transformers.generation.continuous_batching.input_outputs": hook_batches,
    "transformers.cli.serving.utils": _hook_serving,
    "transformers.cli.serving.server": _hook_server,
}
"""The hooks to make once the application has imported the module."""
