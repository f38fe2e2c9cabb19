"""SGLang: the outputs of its engine, batch by batch, by SGLang's own hook registry.

`register` is an entry point of the group `sglang.srt.plugins`: SGLang calls it in each of its processes. The hooks are
in the process that serves HTTP, where a request has its `rid`, and every batch of outputs has the number of tokens of
each request so far. A batch costs a clock reading and an append for each request in it.

Only streamed requests are recorded: the tokens of others are returned in lumps, and no reader waits for them.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
import sys
from typing import TYPE_CHECKING, Any, Final

from otel_llm import semconv
from otel_llm.export import host_log
from otel_llm.export.clock import perf_counter_s
from otel_llm.export.host_log import OWN_CHARS, shown
from otel_llm.instrumentation.engines import engine_request as engine
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.request import propagation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_llm.instrumentation.engines.engine_request import Generation

NAME: Final = "otel-llm-sglang"
MANAGER: Final = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
TARGETS: Final[dict[str, tuple[str, ...]]] = {
    "_init_req_state": ("self", "obj", "request"),
    "_handle_batch_output": ("self", "recv_obj"),
    "_handle_abort_req": ("self", "recv_obj"),
    "_release_req_states_on_failure": ("self", "request_states"),
    "abort_request": ("self", "rid", "abort_all"),
}
"""The hooked methods, with the parameters that the hooks rely on; checked before anything is hooked."""
ABORT: Final = "abort"
NOT_THE_SERVER: Final = 400
"""An abort with an HTTP status of at least this is the engine's own; without one a client asked for it."""


class _Request:
    """A request between its first mention and its last token."""

    __slots__ = ("generation", "reasoning", "tokens")

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.tokens = 0
        self.reasoning = 0


class Plugin:
    """The hooks, and the requests that they follow. Their failure is one warning, never the engine's.

    All run in the event loop of SGLang's HTTP process.
    """

    def __init__(self) -> None:
        self.requests: dict[str, _Request] = {}

    def committed(self, _: object, manager: Any, obj: Any, request: Any = None) -> None:
        """AFTER `_init_req_state`: a user waits from now on."""
        try:
            if not getattr(obj, "stream", False) or runtime.disabled():
                return
            rids = [obj.rid] if isinstance(obj.rid, str) else list(obj.rid)
            if _samples(manager, rids) > 1:  # one reply in several: SGLang gives each an id of its own, and these none
                return
            running = runtime.running() or runtime.start(runtime.configured)
            context = propagation.extract(_headers(obj, request))
            for rid in rids:
                generation = engine.begin(
                    running,
                    operation="chat",
                    model=getattr(manager, "served_model_name", None),
                    request_id=rid,
                    stream=True,
                    context=context,
                    commit_ns=_received_ns(running.clock_ns(), obj),
                    shared=len(rids) > 1,
                )
                if generation is not None:
                    self.requests[rid] = _Request(generation)
        except Exception as bug:  # noqa: BLE001
            runtime.warn(bug)

    async def batch(self, original: Callable[..., Any], manager: Any, recv_obj: Any) -> Any:
        """AROUND `_handle_batch_output`: first the times, then SGLang's work, then the facts it unpacked."""
        touched = self.made(recv_obj)
        try:
            return await original(manager, recv_obj)
        finally:
            self.ended(recv_obj, touched)

    def made(self, recv_obj: Any) -> list[tuple[int, str, _Request]]:
        """Note the tokens of a batch of outputs; return its followed requests."""
        touched: list[tuple[int, str, _Request]] = []
        try:
            if not self.requests or (counts := getattr(recv_obj, "completion_tokens", None)) is None:
                return touched
            running = runtime.running()
            if running is None:
                self.requests.clear()
                return touched
            now_ns = running.clock_ns()
            thoughts = recv_obj.reasoning_tokens
            for i, rid in enumerate(recv_obj.rids):
                request = self.requests.get(rid)
                if request is None:
                    continue
                touched.append((i, rid, request))
                new = counts[i] - request.tokens
                if new <= 0:
                    continue
                request.tokens += new
                reasoning = 0
                if thoughts and thoughts[i] > request.reasoning:
                    reasoning = min(thoughts[i] - request.reasoning, new)
                    request.reasoning = thoughts[i]
                request.generation.tokens(now_ns, new, reasoning=reasoning)
        except Exception as bug:  # noqa: BLE001
            runtime.warn(bug)
        return touched

    def ended(self, recv_obj: Any, touched: list[tuple[int, str, _Request]]) -> None:
        """Note which requests of a batch are complete, and the scheduler's facts on them."""
        try:
            for i, rid, request in touched:
                reason = recv_obj.finished_reasons[i]
                if reason is None:
                    continue
                self.requests.pop(rid, None)
                request.generation.prompt(recv_obj.prompt_tokens[i])
                request.generation.facts(dict(_facts(recv_obj, i)))
                self._finish(request.generation, reason)
        except Exception as bug:  # noqa: BLE001
            runtime.warn(bug)

    def aborted(self, _: object, manager: Any, recv_obj: Any) -> None:  # noqa: ARG002
        """AFTER `_handle_abort_req`: the scheduler dropped a request."""
        try:
            request = self.requests.pop(recv_obj.rid, None)
            if request is not None:
                self._finish(request.generation, getattr(recv_obj, "finished_reason", None) or {"type": ABORT})
        except Exception as bug:  # noqa: BLE001
            runtime.warn(bug)

    def released(self, manager: Any, request_states: Any) -> None:  # noqa: ARG002
        """BEFORE `_release_req_states_on_failure`, which runs while the failure of a request's handler is handled.

        Before it, since it aborts running requests: that would look as if the client had left.
        """
        try:
            error = sys.exc_info()[1]
            for rid in list(request_states):
                request = self.requests.pop(rid, None)
                if request is None:
                    continue
                if error is None:
                    request.generation.cancelled()
                else:
                    request.generation.failed(error)
        except Exception as bug:  # noqa: BLE001
            runtime.warn(bug)

    def abandoned(self, _: object, manager: Any, rid: str = "", abort_all: bool = False) -> None:  # noqa: ARG002
        """AFTER `abort_request`: the client no longer wants the reply; its remaining output is not read."""
        try:
            for gone in list(self.requests) if abort_all else [rid]:
                request = self.requests.pop(gone, None)
                if request is not None:
                    request.generation.cancelled()
        except Exception as bug:  # noqa: BLE001
            runtime.warn(bug)

    @staticmethod
    def _finish(generation: Generation, reason: Any) -> None:
        kind = reason.get("type") if isinstance(reason, dict) else str(reason)
        status = reason.get("status_code") if isinstance(reason, dict) else None
        if kind != ABORT:
            generation.finished(0, reason=kind)
        elif status is not None and int(status) >= NOT_THE_SERVER:
            generation.failed(str(int(status)))  # as the HTTP conventions name an error
        else:
            generation.cancelled()


def _samples(manager: Any, rids: list[str]) -> int:
    """Return the number of replies to a prompt, from the parameters that SGLang keeps with a request."""
    requested = 1
    for rid in rids:
        parameters = getattr(manager.rid_to_state[rid].obj, "sampling_params", None)
        if isinstance(parameters, dict):
            requested = max(requested, parameters.get("n") or 1)
    return requested


def _headers(obj: Any, request: Any) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers that may carry a trace: of the HTTP request, of gRPC or of an `Engine` call."""
    if request is not None:
        yield from request.headers.raw
    else:
        for name, value in (getattr(obj, "external_trace_header", None) or {}).items():
            yield str(name).encode("latin-1"), str(value).encode("latin-1")


def _received_ns(now_ns: int, obj: Any) -> int:
    """Return when HTTP passed the request on, which SGLang keeps on the clock of `time.perf_counter` (seconds)."""
    received_s = getattr(obj, "received_time", None)
    return now_ns if not received_s else now_ns - max(0, int((perf_counter_s() - received_s) * 1e9))


def _facts(recv_obj: Any, i: int) -> Iterator[tuple[str, Any]]:
    """Yield the scheduler's facts on an ended request: its queue only if SGLang's metrics are on."""
    if retractions := getattr(recv_obj, "retraction_counts", None):
        yield semconv.ENGINE_PREEMPTIONS, retractions[i]
    stats = getattr(recv_obj, "time_stats", None)
    if isinstance(stats, list):  # SGLang unpacked them
        began_s = getattr(stats[i], "forward_entry_time", 0.0)
        queued_s = getattr(stats[i], "queue_duration_s", None)
        if began_s and queued_s is not None:
            yield semconv.GEN_AI_LATENCY_QUEUE, float(queued_s)


def moved() -> str | None:
    """Return the parts of SGLang that differ from what the hooks expect; None if all fit."""
    try:
        manager = pkgutil.resolve_name(MANAGER)
    except Exception as error:  # noqa: BLE001  its import may raise anything
        return f"{MANAGER} ({type(error).__name__})"
    for name, expected in TARGETS.items():
        method = getattr(manager, name, None)
        if method is None:
            return f"{MANAGER}.{name}"
        parameters = tuple(inspect.signature(method).parameters)
        if parameters[: len(expected)] != expected:
            return f"{MANAGER}.{name}({', '.join(parameters)})"
    return None


def register() -> None:
    """Register the hooks with SGLang; the entry point that it calls. If SGLang changed: one warning, and no hooks."""
    if runtime.disabled() or _off():
        return
    if (what := moved()) is not None:
        words = "otel_llm does not know this version of SGLang and records nothing of it: %s"
        host_log.warning(words, shown(what, OWN_CHARS))
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    plugin = Plugin()
    after: dict[str, Callable[..., Any]] = {
        "_init_req_state": plugin.committed,
        "_handle_abort_req": plugin.aborted,
        "abort_request": plugin.abandoned,
    }
    for name, hook in after.items():
        HookRegistry.register(f"{MANAGER}.{name}", hook, HookType.AFTER)
    HookRegistry.register(f"{MANAGER}._release_req_states_on_failure", plugin.released, HookType.BEFORE)
    HookRegistry.register(f"{MANAGER}._handle_batch_output", plugin.batch, HookType.AROUND)


def _off() -> bool:
    stated = os.environ.get("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "")
    return not {NAME, "*"}.isdisjoint(name.strip() for name in stated.split(","))
