"""Hugging Face transformers: `generate(streamer=...)` and continuous batching, each token as the model makes it.

`generate` gets the caller's streamer in a transparent wrapper that takes the time of every `put`. Continuous batching
has one thread in which the tokens of all requests are made; they are seen one by one, whether or not the caller asked
for a stream. `add_request` is the commit; the `RequestState` that is made inside it gives the request's id before the
thread can see it. Nothing of transformers is imported before the application does so itself.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from typing import TYPE_CHECKING, Any, Final

import wrapt
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from otel_llm import semconv
from otel_llm.export import host_log
from otel_llm.export.clock import wall_ns
from otel_llm.export.host_log import OWN_CHARS, shown
from otel_llm.instrumentation.engines import engine_request as engine
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.process.patches import Patches
from otel_llm.instrumentation.request.suppression import is_suppressed
from otel_llm.instrumentation.server.asgi import StreamMiddleware

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from types import ModuleType

    from otel_llm.instrumentation.engines.engine_request import Generation

    Transparent = wrapt.ObjectProxy[Any]
else:
    Transparent = wrapt.ObjectProxy

OPERATION: Final = "text_completion"
CHILD: Final = "__child#"
"""The text between a request's id and the number of one more of its sequences."""
PASSED_OVER: Final = frozenset({"FINISHED", "PENDING"})
"""The states of requests that an asynchronous batch still holds, whose tokens are thrown away."""


def begin(model: Any, *, stream: bool, request_id: str | None, **more: Any) -> Generation | None:
    """Return the generation of a request that a model received now, None if it is not recorded."""
    running = runtime.running()
    if running is None or is_suppressed(running, "transformers"):
        return None
    try:
        name = getattr(getattr(model, "config", None), "name_or_path", None) or type(model).__name__
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)
        return None
    return engine.begin(running, operation=OPERATION, model=name, request_id=request_id, stream=stream, **more)


class _Steps:
    """The steps of one manager that gave tokens, `count`; the tokens of all of them, and `size`, those of the newest.

    They are numbered from the present in unix us, so that the numbers of a later life are higher.
    """

    __slots__ = ("count", "size", "tokens")

    def __init__(self) -> None:
        self.count = wall_ns() // 1000
        self.tokens = self.size = 0

    def begin(self, batch: Iterable[Any]) -> None:
        """Count the step whose requests are about to get their tokens."""
        size = sum(one.has_new_token and one.state.status.name not in PASSED_OVER for one in batch)
        self.count += size > 0
        self.tokens += size
        self.size = size


class _Batched:
    """A request of continuous batching; `before`: the steps and their tokens before its first one, None until then."""

    __slots__ = ("before", "generation", "preemptions")

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.preemptions = 0
        self.before: tuple[int, int] | None = None

    def first(self, state: Any, now_ns: int, steps: _Steps) -> None:
        """Note the step of the first token."""
        self.before = steps.count - 1, steps.tokens - steps.size
        scheduled_s = state.lifespan[0]
        queue_s, prefill_s = scheduled_s - state.created_time, max(now_ns / 1e9 - scheduled_s, 0.0)
        self.generation.facts({semconv.GEN_AI_LATENCY_QUEUE: queue_s, semconv.GEN_AI_LATENCY_PREFILL: prefill_s})

    def last(self, steps: _Steps) -> None:
        """Note the step of the last token."""
        if self.before is None or not steps.size:  # a version of transformers whose steps are not seen
            return
        count, tokens = steps.count - self.before[0], steps.tokens - self.before[1]
        facts = {semconv.ENGINE_STEPS: count, semconv.ENGINE_FIRST_STEP: self.before[0] + 1}
        self.generation.facts(facts | {semconv.ENGINE_BATCH_MEAN: round(tokens / count, 2)})


_pending: Final[contextvars.ContextVar[tuple[dict[str, _Batched], _Batched] | None]] = contextvars.ContextVar(
    "otel_llm_pending_batched", default=None
)
_thread: Final = threading.local()
REQUESTS: Final = "_otel_llm_requests"
"""The one added attribute of a manager and of its router of outputs: their requests by id."""


def hook_manager(patches: Patches, module: Any) -> None:
    """Hook the calls for requests (add, cancel, fail) and the thread that serves them."""
    manager, router = module.ContinuousBatchingManager, module.OutputRouter
    must_have(manager, "add_request", "cancel_request", "_run_generation_loop")
    must_have(router, "fail_and_deliver")
    patches.replace(manager, "add_request", _add_request)
    patches.replace(manager, "cancel_request", _cancel_request)
    patches.replace(manager, "_run_generation_loop", _run)
    patches.replace(router, "fail_and_deliver", _fail)


def hook_batches(patches: Patches, module: Any) -> None:
    """Hook the hand-over of a batch's tokens, once a step."""
    inputs_and_outputs = module.ContinuousBatchingIOs
    must_have(inputs_and_outputs, "prepare_batch_update")
    patches.replace(inputs_and_outputs, "prepare_batch_update", _begin_step)


def hook_states(patches: Patches, module: Any) -> None:
    """Hook the states of requests."""
    state = module.RequestState
    must_have(state, "__post_init__", "update_and_check_completion", "create_equivalent_initial_request")
    patches.replace(state, "__post_init__", _made_state)
    patches.replace(state, "update_and_check_completion", _update)
    patches.replace(state, "create_equivalent_initial_request", _preempt)


def must_have(owner: Any, *names: str) -> None:
    """Raise AttributeError if a method to hook is missing."""
    for name in names:
        if not hasattr(owner, name):
            raise AttributeError(f"{owner.__name__}.{name} is gone")


def _requests(manager: Any) -> dict[str, _Batched]:
    """Return a manager's requests; the router that delivers its failures has them as well."""
    requests: dict[str, _Batched] | None = manager.__dict__.get(REQUESTS)
    if requests is None:
        requests = manager.__dict__.setdefault(REQUESTS, {})
        setattr(manager.output_router, REQUESTS, requests)
    return requests


def _add_request(original: Callable[..., Any]) -> Callable[..., Any]:
    def add_request(self: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        batched = None
        if getattr(self, "is_tp_driver", True):
            generation = begin(
                self.model,
                stream=bool(kwargs.get("streaming", False)),
                request_id=kwargs.get("request_id"),
                choices=getattr(self, "num_return_sequences", 1),
                input_tokens=len(input_ids) if hasattr(input_ids, "__len__") else None,
            )
            batched = None if generation is None else _Batched(generation)
        if batched is None:
            return original(self, input_ids, *args, **kwargs)
        requests = _requests(self)
        token = _pending.set((requests, batched))
        try:
            request_id = original(self, input_ids, *args, **kwargs)
        except BaseException as error:
            batched.generation.failed(error)
            for known in [known for known, one in list(requests.items()) if one is batched]:
                del requests[known]
            raise
        finally:
            _pending.reset(token)
        if request_id is None:  # it is stopping, and dropped the request with a warning
            batched.generation.failed("refused")
        return request_id

    return add_request


def _made_state(original: Callable[..., Any]) -> Callable[..., Any]:
    def __post_init__(self: Any) -> None:  # noqa: N807
        original(self)
        if (pending := _pending.get()) is not None:
            requests, batched = pending
            requests[self.request_id] = batched
            batched.generation.facts({semconv.GEN_AI_REQUEST_ID: self.request_id})

    return __post_init__


def _run(original: Callable[..., Any]) -> Callable[..., Any]:
    def _run_generation_loop(self: Any) -> Any:
        _thread.requests, _thread.steps = _requests(self), _Steps()
        try:
            return original(self)
        finally:
            _thread.requests = _thread.steps = None

    return _run_generation_loop


def _begin_step(original: Callable[..., Any]) -> Callable[..., Any]:
    def prepare_batch_update(self: Any) -> Any:
        update = original(self)
        try:
            steps: _Steps | None = getattr(_thread, "steps", None)
            if steps is not None:
                steps.begin(update[0])
        except Exception as bug:  # noqa: BLE001
            runtime.warn(bug)
        return update

    return prepare_batch_update


def _followed(state: Any) -> tuple[_Batched | None, int]:
    """Return the request of a state in this thread's manager, and the index of its sequence."""
    requests: dict[str, _Batched] | None = getattr(_thread, "requests", None)
    if not requests:
        return None, 0
    batched = requests.get(state.request_id)
    if batched is not None:
        return batched, 0
    parent, child, number = state.request_id.rpartition(CHILD)
    return (requests.get(parent), int(number) + 1) if child and number.isdigit() else (None, 0)


def _update(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_and_check_completion(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = len(self.generated_tokens)
        complete = original(self, *args, **kwargs)
        try:
            batched, choice = _followed(self)
            if batched is not None and (running := runtime.running()) is not None:
                now_ns = running.clock_ns()
                generation, steps = batched.generation, _thread.steps
                if batched.before is None:
                    batched.first(self, now_ns, steps)
                if len(self.generated_tokens) > before:
                    generation.tokens(now_ns, 1, choice)
                if complete:
                    if not choice:
                        batched.last(steps)
                    generation.finished(now_ns, choice)
                    if generation.complete:
                        _thread.requests.pop(self.request_id.partition(CHILD)[0], None)
        except Exception as bug:  # noqa: BLE001
            runtime.warn(bug)
        return complete

    return update_and_check_completion


def _preempt(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_equivalent_initial_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        equivalent = original(self, *args, **kwargs)
        try:
            batched, _ = _followed(self)
            if batched is not None and self.generated_tokens:  # else the sequence found no room to begin in
                batched.preemptions += 1
                batched.generation.facts({semconv.ENGINE_PREEMPTIONS: batched.preemptions})
        except Exception as bug:  # noqa: BLE001
            runtime.warn(bug)
        return equivalent

    return create_equivalent_initial_request


def _fail(original: Callable[..., Any]) -> Callable[..., Any]:
    def fail_and_deliver(self: Any, state: Any, error: Exception, *args: Any, **kwargs: Any) -> Any:
        requests = getattr(self, REQUESTS, None) or {}
        batched = requests.pop(state.request_id, None)
        if batched is not None:
            batched.generation.failed(error)
        return original(self, state, error, *args, **kwargs)

    return fail_and_deliver


def _cancel_request(original: Callable[..., Any]) -> Callable[..., Any]:
    def cancel_request(self: Any, request_id: str, *args: Any, **kwargs: Any) -> Any:
        batched = _requests(self).pop(request_id, None)
        if batched is not None:
            batched.generation.cancelled()
        return original(self, request_id, *args, **kwargs)

    return cancel_request


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
