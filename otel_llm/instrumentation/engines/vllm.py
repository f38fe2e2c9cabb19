"""vLLM: each token at the time its engine made it.

`register` is an entry point of the group `vllm.general_plugins`, which vLLM calls in each of its processes, sometimes
twice. The hooks are in the API server, on the one function that all outputs of the engine pass; requests that are not
streamed are skipped. vLLM has no hook for this, so four methods of `OutputProcessor` are replaced: only if they have
the known parameters, and otherwise none is, with one warning.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import wrapt

from otel_llm import semconv
from otel_llm.export import host_log
from otel_llm.export.clock import monotonic_ns, wall_ns, wall_s
from otel_llm.export.host_log import OWN_CHARS, shown
from otel_llm.export.records import CONTENT
from otel_llm.instrumentation.core import server_context
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.core.suppressing import is_nested
from otel_llm.instrumentation.engines.engine_request import EngineReader
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.process.patches import Patches
from otel_llm.instrumentation.request import propagation, request_builder
from otel_llm.instrumentation.request.wishes import Wishes
from otel_llm.instrumentation.segments.outcomes import ERROR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from otel_llm.export.records import AttributeValue
    from otel_llm.instrumentation.core.server_context import ServerContext

FOREIGN_NS: Final = 10_000_000_000
"""An engine's clock that is ahead of ours, or behind by more than this, is another machine's: then ours counts."""

QUEUED, SCHEDULED, PREEMPTED = 1, 2, 3  # vllm.v1.engine.EngineCoreEventType
ABORTED, FAILED = 2, 3  # vllm.v1.engine.FinishReason


class Group:
    """The engine requests that make up one recording of our own: one, or one for each choice."""

    __slots__ = ("_reader", "_unfinished", "recording")

    def __init__(self, recording: Recording, reader: EngineReader, choices: int) -> None:
        self.recording = recording
        self._reader = reader
        self._unfinished = choices

    def ended(self, stream: Stream, at_ns: int, reason: int | None) -> None:
        """Note that one of them ended; the recording ends with the last, or with the first bad end.

        `reason` is vLLM's finish reason, None if a stop string ended it.
        """
        recording = self.recording
        self._unfinished -= 1
        self._reader.count(stream.tokens)
        recording.attributes(stream.facts())
        if reason == ABORTED:
            recording.closed()
        elif reason == FAILED:
            recording.ended(ERROR, "engine_error")
        elif self._unfinished <= 0:
            recording.exhausted()
        else:
            recording.append((at_ns, ((stream.choice, CONTENT, 0, True),)))


class Stream:
    """One request of the engine: one choice of a recording.

    `group` is None if the middleware decides how the request ends.
    """

    __slots__ = (
        "_first",
        "_occupancy",
        "_queued",
        "_scheduled",
        "_steps",
        "_watch",
        "choice",
        "fresh",
        "group",
        "kinds",
        "last",
        "mixed",
        "preemptions",
        "recording",
        "tokens",
    )

    def __init__(
        self, watch: Watch, recording: Recording, choice: int, kinds: dict[int, int], group: Group | None
    ) -> None:
        self._watch = watch
        self.recording = recording
        self.choice = choice
        self.kinds = kinds
        self.group = group
        self.fresh = True  # before its first token
        self.tokens = 0
        self.preemptions = 0
        self._queued = self._scheduled = self._first = 0.0  # the engine's clock, s; 0 before each
        self._steps = self._occupancy = self.mixed = 0  # the watch's sums at its begin
        self.last: tuple[int, int, int] | None = None  # and at its end

    def began(self, timestamp: float, size: int, mixed: int) -> None:
        """Note the step of the first token, one of `size` outputs."""
        self.fresh = False
        self._first = timestamp
        watch = self._watch
        self._steps, self._occupancy, self.mixed = watch.steps - 1, watch.occupancy - size, mixed

    def events(self, events: Iterable[Any]) -> None:
        """Note the scheduler's events of the request since its last output."""
        for event in events:
            if event.type == QUEUED:
                self._queued = event.timestamp
            elif event.type == SCHEDULED and not self._scheduled:
                self._scheduled = event.timestamp
            elif event.type == PREEMPTED:
                self.preemptions += 1

    def close(self) -> None:
        """Note that the engine has finished it: later steps do not count."""
        watch = self._watch
        self.last = (watch.steps, watch.occupancy, watch.mixed)

    def facts(self) -> dict[str, AttributeValue]:
        """Return its facts for the request span."""
        facts: dict[str, AttributeValue] = {semconv.ENGINE_PREEMPTIONS: self.preemptions}
        if self._queued and self._scheduled:
            facts[semconv.GEN_AI_LATENCY_QUEUE] = max(self._scheduled - self._queued, 0.0)
        if self._scheduled and self._first:
            facts[semconv.GEN_AI_LATENCY_PREFILL] = max(self._first - self._scheduled, 0.0)
        if not self.fresh:
            watch = self._watch
            steps, occupancy, mixed = self.last or (watch.steps, watch.occupancy, watch.mixed)
            facts[semconv.ENGINE_STEPS] = steps - self._steps
            facts[semconv.ENGINE_FIRST_STEP] = self._steps + 1
            facts[semconv.ENGINE_MIXED_STEPS] = mixed - self.mixed
            if steps > self._steps:
                facts[semconv.ENGINE_BATCH_MEAN] = round((occupancy - self._occupancy) / (steps - self._steps), 2)
        return facts


class Watch:
    """The followed requests of one OutputProcessor, by the engine's request id, and sums over its steps.

    `failed` once something of ours went wrong: then nothing is followed any more. Steps are counted from the present
    in unix us, so that after a restart their numbers are higher than those before it: a step takes longer than 1 us.
    """

    __slots__ = (
        "_clock_ns",
        "_decoded",
        "_mixed_now",
        "_prefilled",
        "_timestamp",
        "failed",
        "groups",
        "mixed",
        "occupancy",
        "steps",
        "streams",
    )

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self.streams: dict[str, Stream] = {}
        self.groups: dict[str, Group] = {}
        self.failed = False
        self.steps = wall_ns() // 1000
        self.occupancy = 0
        self.mixed = 0
        self._timestamp: float | None = None
        self._prefilled = self._decoded = self._mixed_now = False

    def step(self, outputs: list[Any], timestamp: float | None) -> None:
        """Apply a step of the engine, which may come in several slices of one timestamp (s)."""
        now_ns = self._clock_ns()
        at_ns = now_ns if timestamp is None else int(timestamp * 1e9)
        if not 0 <= now_ns - at_ns <= FOREIGN_NS:
            at_ns = now_ns
        size = len(outputs)
        if timestamp is None or timestamp != self._timestamp:
            self._timestamp = timestamp
            self.steps += 1
            self._prefilled = self._decoded = self._mixed_now = False
        self.occupancy += size
        mixed = self.mixed
        streams = self.streams
        prefills = 0
        for output in outputs:
            if output.prefill_stats is not None:
                prefills += 1
            stream = streams.get(output.request_id)
            if stream is None:
                continue
            count = len(output.new_token_ids)
            if output.events is not None:
                stream.events(output.events)
            if stream.fresh:
                stream.began(at_ns / 1e9 if timestamp is None else timestamp, size, mixed)
            stream.tokens += count
            kind = stream.kinds.get(stream.choice, CONTENT)
            if count == 1 and kind == CONTENT and not stream.choice:
                stream.recording.append(at_ns)
            elif count:
                stream.recording.append((at_ns, ((stream.choice, kind, count, False),)))
            if output.finish_reason is not None:
                self.ended(output.request_id, at_ns, int(output.finish_reason))
        self._prefilled |= prefills > 0
        self._decoded |= prefills < size
        if self._prefilled and self._decoded and not self._mixed_now:
            self._mixed_now = True
            self.mixed += 1

    def ended(self, request_id: str, at_ns: int, reason: int | None) -> None:
        """Note that a request ended; an unknown one changes nothing."""
        stream = self.streams.pop(request_id, None)
        if stream is None:
            return
        stream.close()
        if stream.group is not None:
            stream.group.ended(stream, at_ns, reason)

    def aborted(self, request_ids: Iterable[str]) -> None:
        """Note that requests were removed from the engine: their clients no longer want them."""
        for request_id in request_ids:
            self.ended(request_id, self._clock_ns(), ABORTED)

    def died(self, error: BaseException) -> None:
        """Note that the engine failed under all of its requests."""
        streams, self.streams, self.groups = self.streams, {}, {}
        for stream in streams.values():
            stream.close()
            if stream.group is not None:
                stream.recording.attributes(stream.facts())
                stream.recording.failed(error)

    def broken(self, bug: BaseException) -> None:
        """Follow nothing any more: a failure of ours is one warning, never the engine's."""
        streams, self.streams, self.groups = self.streams, {}, {}
        self.failed = True
        runtime.warn(bug)
        for stream in streams.values():
            stream.recording.give_up()


NAME: Final = "otel-llm-vllm"
PROCESSOR_MODULE: Final = "vllm.v1.engine.output_processor"
ENGINE_MODULE: Final = "vllm.v1.engine.async_llm"
PROCESSOR_METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "process_outputs": ("self", "engine_core_outputs", "engine_core_timestamp"),
    "add_request": ("self", "request", "prompt", "parent_req", "request_index", "queue"),
    "abort_requests": ("self", "request_ids", "internal"),
    "propagate_error": ("self", "e"),
}
ENGINE_METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "__init__": ("self", "vllm_config"),
    "add_request": ("self", "request_id", "prompt", "params"),
}
"""The replaced methods, and the first parameters that they must have."""
OUTPUT_FIELDS: Final = frozenset({"request_id", "new_token_ids", "finish_reason", "events", "prefill_stats"})
WATCH: Final = "_otel_llm_watch"
LONGEST_WAY_S: Final = 60.0
"""A request that claims to have arrived longer ago than this, or later than now, arrived now: the clock was set."""

_PROMPT: Final = re.compile(r"-(\d{1,4})$")
_requested: Final[ContextVar[tuple[str | None, Mapping[str, str] | None] | None]] = ContextVar(
    "otel_llm_vllm_asked", default=None
)
"""Model and trace headers of the added request: vLLM drops the latter without `--otlp-traces-endpoint`."""
_patches: Final[list[Patches]] = []
awaited: Final[list[str]] = []
"""The modules whose import is waited for, once `register` was called where vLLM is wanted."""


def register() -> None:
    """Hook vLLM as soon as its modules are there; may be called any number of times."""
    if awaited or runtime.disabled() or _unwanted():
        return
    awaited.append(PROCESSOR_MODULE)
    wrapt.register_post_import_hook(hooked(patch_processor), PROCESSOR_MODULE)
    wrapt.register_post_import_hook(hooked(patch_engine), ENGINE_MODULE)


def unregister() -> None:
    """Remove the hooks; requests under way are recorded no further."""
    while _patches:
        _patches.pop().undo()


def _unwanted() -> bool:
    names = os.environ.get("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "").split(",")
    return any(name.strip() in (NAME, "*") for name in names)


def hooked(patch: Callable[[Any], Patches]) -> Callable[[Any], None]:
    """Return what patches a module once it is imported; a module that `patch` does not know is one warning."""

    def hook(module: Any) -> None:
        try:
            _patches.append(patch(module))
        except Exception as moved:  # noqa: BLE001
            words = "otel_llm does not know this version of vLLM and does not record its engine: %s"
            host_log.warning(words, shown(moved, OWN_CHARS))

    return hook


def _check(owner: type, methods: Mapping[str, tuple[str, ...]]) -> None:
    for name, expected in methods.items():
        parameters = tuple(inspect.signature(getattr(owner, name)).parameters)
        if parameters[: len(expected)] != expected:
            raise TypeError(f"{owner.__name__}.{name} has the parameters {', '.join(parameters)}")


def patch_processor(module: Any) -> Patches:
    """Replace the methods of `OutputProcessor`. Raises TypeError or AttributeError if they are others."""
    _check(module.OutputProcessor, PROCESSOR_METHODS)
    if missing := OUTPUT_FIELDS.difference(module.EngineCoreOutput.__struct_fields__):
        raise TypeError(f"EngineCoreOutput has no {', '.join(sorted(missing))}")
    patches = Patches()
    patches.replace(module.OutputProcessor, "process_outputs", _process_outputs)
    patches.replace(module.OutputProcessor, "add_request", _add_request)
    patches.replace(module.OutputProcessor, "abort_requests", _abort_requests)
    patches.replace(module.OutputProcessor, "propagate_error", _propagate_error)
    return patches


def patch_engine(module: Any) -> Patches:
    """Replace the methods of `AsyncLLM`. Raises TypeError or AttributeError if they are others."""
    _check(module.AsyncLLM, ENGINE_METHODS)
    patches = Patches()
    patches.replace(module.AsyncLLM, "__init__", _engine_init)
    patches.replace(module.AsyncLLM, "add_request", _engine_add_request)
    return patches


# The methods of AsyncLLM.


def _engine_init(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            runtime.start(runtime.configured)
        except Exception as bug:  # noqa: BLE001
            host_log.warning("otel_llm cannot start and records nothing: %s", bug)

    return init


def _engine_add_request(original: Callable[..., Any]) -> Callable[..., Any]:
    async def add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        model = getattr(getattr(self, "model_config", None), "served_model_name", None)
        token = _requested.set((model if isinstance(model, str) else None, kwargs.get("trace_headers")))
        try:
            return await original(self, *args, **kwargs)
        finally:
            with contextlib.suppress(ValueError):  # dropped halfway, and closed in another context
                _requested.reset(token)

    return add_request


# The methods of OutputProcessor.


def _process_outputs(original: Callable[..., Any]) -> Callable[..., Any]:
    def process_outputs(
        self: Any, engine_core_outputs: Any, engine_core_timestamp: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        processed = original(self, engine_core_outputs, engine_core_timestamp, *args, **kwargs)
        # After vLLM's own work, which takes back tokens beyond a stop string.
        watch: Watch | None = self.__dict__.get(WATCH)
        if watch is not None and watch.streams:
            try:
                watch.step(engine_core_outputs, engine_core_timestamp)
                for request_id in processed.reqs_to_abort:
                    watch.ended(request_id, monotonic_ns(), None)
            except Exception as bug:  # noqa: BLE001
                watch.broken(bug)
        return processed

    return process_outputs


def _add_request(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        added = original(self, *args, **kwargs)
        try:
            given = signature.bind(self, *args, **kwargs).arguments
            if given.get("queue") is not None:
                _follow(self, given["request"], given.get("parent_req"), given.get("request_index", 0))
        except Exception as bug:  # noqa: BLE001
            runtime.warn(bug)
        return added

    return add_request


def _abort_requests(original: Callable[..., Any]) -> Callable[..., Any]:
    def abort_requests(self: Any, *args: Any, **kwargs: Any) -> Any:
        aborted = original(self, *args, **kwargs)
        watch: Watch | None = self.__dict__.get(WATCH)
        if watch is not None:
            try:
                watch.aborted(aborted)
            except Exception as bug:  # noqa: BLE001
                watch.broken(bug)
        return aborted

    return abort_requests


def _propagate_error(original: Callable[..., Any]) -> Callable[..., Any]:
    def propagate_error(self: Any, e: Any) -> Any:
        watch: Watch | None = self.__dict__.get(WATCH)
        if watch is not None:
            try:
                watch.died(e)
            except Exception as bug:  # noqa: BLE001
                watch.broken(bug)
        return original(self, e)

    return propagate_error


# An added request.


def _follow(processor: Any, request: Any, parent: Any, index: int) -> None:
    params = request.sampling_params
    if params is None or params.output_kind.name == "FINAL_ONLY":  # pooling, or an answer in one piece
        return
    running = runtime.running()
    if running is None:
        return
    watch: Watch | None = processor.__dict__.get(WATCH)
    if watch is None:
        watch = processor.__dict__[WATCH] = Watch(running.clock_ns)
    if watch.failed or request.request_id in watch.streams:  # the latter: more input for a running request
        return
    choices = 1 if parent is None else parent.n
    group = None
    upstream = server_context.current_server_context()
    if upstream is not None:
        recording = upstream.recording
        if recording is None or recording.done:  # the client wants no stream, or has left
            return
        upstream.adopt()
        upstream.reader.input_tokens = _prompt_tokens(request)
        recording.identify({semconv.GEN_AI_REQUEST_ID: request.external_req_id})
        if upstream.prompts > 1 and (found := _PROMPT.search(request.external_req_id)):
            index += int(found[1]) * choices
        stream = Stream(watch, recording, index, upstream.kinds, None)
        upstream.add_facts(functools.partial(_facts, upstream, stream))
    else:
        if is_nested():
            return
        key = request.request_id if parent is None else parent.request_id
        group = watch.groups.get(key) if index else None
        if group is None:
            reader = EngineReader()
            group = Group(_recording(running, request, choices, reader), reader, choices)
        if parent is not None:
            watch.groups[key] = group
        if index == choices - 1:
            watch.groups.pop(key, None)
        stream = Stream(watch, group.recording, index, {}, group)
    watch.streams[request.request_id] = stream


def _facts(upstream: ServerContext, stream: Stream) -> dict[str, AttributeValue]:
    upstream.reader.output_tokens = (upstream.reader.output_tokens or 0) + stream.tokens
    return stream.facts()


def _recording(running: runtime.Runtime, request: Any, choices: int, reader: EngineReader) -> Recording:
    model, headers = _requested.get() or (None, None)
    headers = headers or request.trace_headers or {}
    context = propagation.extract([(name.encode(), value.encode("latin-1")) for name, value in headers.items()])
    waited_s = wall_s() - request.arrival_time
    committed_request = request_builder.request(
        running,
        context,
        operation="chat",
        model=model,
        gen_ai={
            semconv.GEN_AI_PROVIDER_NAME: "vllm",
            semconv.GEN_AI_USAGE_INPUT_TOKENS: _prompt_tokens(request),
        },
        ours={semconv.GEN_AI_REQUEST_ID: request.external_req_id},  # on segment 0 too: an abort needs the id
        span_only=request_builder.STREAMED,
        commit_ns=running.clock_ns() - (int(waited_s * 1e9) if 0 < waited_s < LONGEST_WAY_S else 0),
        wishes=Wishes(choices),
        server=True,
        stack="vllm",
    )
    recording = Recording(running, committed_request, reader)
    recording.announce(context)
    return recording


def _prompt_tokens(request: Any) -> int | None:
    return None if request.prompt_token_ids is None else len(request.prompt_token_ids)
