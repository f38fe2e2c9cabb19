"""The vLLM plugin if no vLLM is: what it makes of the engine's outputs, and what it does to a vLLM it does not know.

The real one is in `tests/integration/test_vllm_served.py`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from support.instrumentation.recorded import Recorded
from support.logs import ours

from otel_llm import semconv
from otel_llm.instrumentation.engines import vllm
from otel_llm.instrumentation.process import runtime

Kind = enum.Enum("Kind", ["DELTA", "FINAL_ONLY"])


@dataclass
class Output:
    """The fields of vLLM's `EngineCoreOutput` that the plugin looks at."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: int | None = None
    events: list[Any] | None = None
    prefill_stats: object = None

    __struct_fields__ = ("request_id", "new_token_ids", "finish_reason", "events", "prefill_stats")


@dataclass
class EngineRequest:
    """The fields of vLLM's `EngineCoreRequest` that the plugin looks at."""

    request_id: str
    kind: Kind = Kind.DELTA
    prompt_token_ids: list[int] = field(default_factory=lambda: [1, 2, 3])
    trace_headers: dict[str, str] | None = None
    arrival_time: float = 0.0

    @property
    def external_req_id(self) -> str:
        return f"chatcmpl-{self.request_id}"

    @property
    def sampling_params(self) -> Any:
        return SimpleNamespace(output_kind=self.kind)


class Processor:
    """A class with the methods of vLLM's `OutputProcessor`; `stops` are ended by a stop string in the next step."""

    def __init__(self) -> None:
        self.stops: list[str] = []
        self.seen: list[Any] = []

    def process_outputs(
        self,
        engine_core_outputs: Any,
        engine_core_timestamp: Any = None,
        iteration_stats: Any = None,
        *,
        more: Any = None,
    ) -> Any:
        self.seen.append((engine_core_outputs, engine_core_timestamp, iteration_stats, more))
        stops, self.stops = self.stops, []
        return SimpleNamespace(reqs_to_abort=stops)

    def add_request(
        self, request: Any, prompt: Any, parent_req: Any = None, request_index: int = 0, queue: Any = None
    ) -> None:
        self.seen.append(request)

    def abort_requests(self, request_ids: Any, internal: bool) -> list[str]:
        return list(request_ids)

    def propagate_error(self, e: Exception) -> None:
        self.seen.append(e)


class Engine:
    """A class with the methods of vLLM's `AsyncLLM`."""

    def __init__(self, vllm_config: Any) -> None:
        self.model_config = SimpleNamespace(served_model_name="tiny")
        self.processor = Processor()

    async def add_request(self, request_id: str, prompt: Any, params: Any, *, trace_headers: Any = None) -> None:
        self.processor.add_request(params, prompt, None, 0, object())


@pytest.fixture
def processor(recorder: Recorded) -> Any:
    patches = vllm.patch_processor(SimpleNamespace(OutputProcessor=Processor, EngineCoreOutput=Output))
    yield Processor()
    patches.undo()


def now_s() -> float:
    running = runtime.running()
    assert running is not None
    return running.clock_ns() / 1e9


def step(processor: Any, *outputs: Output, at_s: float | None = None) -> Any:
    return processor.process_outputs(list(outputs), now_s() if at_s is None else at_s, "stats", more="more")


def events(**times_s: float) -> list[Any]:
    types = {"queued": 1, "scheduled": 2, "preempted": 3}
    return [SimpleNamespace(type=types[name], timestamp=at_s) for name, at_s in times_s.items()]


def add(processor: Any, *ids: str) -> None:
    for request_id in ids:
        processor.add_request(EngineRequest(request_id, arrival_time=time.time()), "", None, 0, object())


def facts(recorder: Recorded) -> dict[str, dict[str, Any]]:
    spans = [dict(span.attributes or {}) for span in recorder.requests()]
    return {str(span["gen_ai.request.id"]).removeprefix("chatcmpl-"): span for span in spans}


def test_tokens_at_the_engines_times(processor: Any, recorder: Recorded) -> None:
    add(processor, "a")
    base_s = now_s()
    times_s = [base_s + i * 1e-6 for i in range(3)]
    step(processor, Output("a", [5], events=events(queued=1.0, scheduled=1.5), prefill_stats=1), at_s=times_s[0])
    step(processor, Output("a", [6, 7]), at_s=times_s[1])
    step(processor, Output("a", [8], finish_reason=1), at_s=times_s[2])
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS], stream.last[semconv.TOKEN_BASIS]) == ("completed", 4, "exact")
    told = [event for segment in stream.segments for event in segment.events]
    assert [(event.attributes or {}).get(semconv.TOKEN_COUNT) for event in told] == [None, 2, None]
    assert [round((event.timestamp - told[0].timestamp) / 1000) for event in told] == [0, 1, 2]
    span = facts(recorder)["a"]
    assert span[semconv.GEN_AI_LATENCY_QUEUE] == 0.5
    assert span[semconv.GEN_AI_LATENCY_PREFILL] == pytest.approx(times_s[0] - 1.5)
    assert span[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] == 4
    assert span[semconv.GEN_AI_USAGE_INPUT_TOKENS] == 3


def test_what_the_steps_were_like(processor: Any, recorder: Recorded) -> None:
    add(processor, "a", "b")
    step(processor, Output("a", [1], prefill_stats=1))
    step(processor, Output("a", [1]), Output("b", [1], prefill_stats=1))
    at_s = now_s()
    step(processor, Output("a", [1], events=events(preempted=2.0, scheduled=3.0)), at_s=at_s)
    step(processor, Output("b", [1]), at_s=at_s)  # the other slice of the same step
    step(processor, Output("a", [1], finish_reason=0), Output("x", [1]), Output("y", [1]))
    step(processor, Output("b", [1], finish_reason=1))
    a, b = facts(recorder)["a"], facts(recorder)["b"]
    names = (
        semconv.ENGINE_STEPS,
        semconv.ENGINE_MIXED_STEPS,
        semconv.ENGINE_BATCH_MEAN,
        semconv.ENGINE_PREEMPTIONS,
    )
    assert [a[name] for name in names] == [4, 1, 2.0, 1]
    assert [b[name] for name in names] == [4, 1, 2.0, 0]
    assert b[semconv.ENGINE_FIRST_STEP] - a[semconv.ENGINE_FIRST_STEP] == 1


@pytest.mark.parametrize(
    ("reason", "outcome"), [(0, "completed"), (1, "completed"), (2, "cancelled"), (3, "error"), (4, "completed")]
)
def test_how_the_engine_ends_a_request(processor: Any, recorder: Recorded, reason: int, outcome: str) -> None:
    add(processor, "a")
    step(processor, Output("a", [1], finish_reason=reason))
    assert recorder.stream().outcome == outcome


def test_other_ends(processor: Any, recorder: Recorded) -> None:
    add(processor, "stopped", "aborted", "died")
    step(processor, *(Output(one, [1]) for one in ("stopped", "aborted", "died")))
    processor.stops = ["stopped"]
    step(processor, Output("stopped", [1]))
    assert processor.abort_requests(["aborted", "nobody"], internal=True) == ["aborted", "nobody"]
    error = RuntimeError("engine")
    processor.propagate_error(error)
    assert processor.seen[-1] is error
    outcomes = {name: span[semconv.OUTCOME] for name, span in facts(recorder).items()}
    assert outcomes == {"stopped": "completed", "aborted": "cancelled", "died": "error"}


def test_choices_are_streams_of_one_request(processor: Any, recorder: Recorded) -> None:
    parent = SimpleNamespace(request_id="p", n=2)
    for index in (0, 1):
        processor.add_request(EngineRequest(f"{index}_p"), "", parent, index, object())
    step(processor, Output("0_p", [1]), Output("1_p", [1]))
    step(processor, Output("0_p", [1], finish_reason=1), Output("1_p", [1]))
    step(processor, Output("1_p", [1], finish_reason=1))
    assert [(stream.outcome, stream.last[semconv.TOKENS]) for stream in recorder.streams()] == [
        ("completed", 2),
        ("completed", 3),
    ]
    assert len(recorder.requests()) == 1


def test_what_is_no_streamed_request_of_a_server_passes_by(processor: Any, recorder: Recorded) -> None:
    processor.add_request(EngineRequest("whole", kind=Kind.FINAL_ONLY), "", None, 0, object())
    processor.add_request(EngineRequest("offline"), "", None, 0, None)
    step(processor, Output("whole", [1], finish_reason=1), Output("offline", [1]))
    assert recorder.spans() == ()


def test_an_engine_on_another_machine(processor: Any, recorder: Recorded) -> None:
    add(processor, "a")
    step(processor, Output("a", [1], finish_reason=1), at_s=now_s() + 5000)
    [token] = recorder.stream().times_ns
    assert abs(token - time.time_ns()) < 60e9


def test_calls_pass_through(processor: Any) -> None:
    outputs = [Output("a", [1])]
    assert processor.process_outputs(outputs, 1.0, "stats", more=2).reqs_to_abort == []
    assert processor.seen[-1] == (outputs, 1.0, "stats", 2)
    assert processor.seen[-1][0] is outputs


def test_trace_headers_reach_a_request_that_vllm_strips_of_them(processor: Any, recorder: Recorded) -> None:
    patches = vllm.patch_engine(SimpleNamespace(AsyncLLM=Engine))
    try:
        engine = Engine(None)
        headers = {"traceparent": f"00-{7:032x}-{9:016x}-01"}
        asyncio.run(engine.add_request("a", "", EngineRequest("a"), trace_headers=headers))
        step(engine.processor, Output("a", [1], finish_reason=1))
    finally:
        patches.undo()
    [request] = recorder.requests()
    assert request.context is not None
    assert request.parent is not None
    assert (request.context.trace_id, request.parent.span_id) == (7, 9)
    assert dict(request.attributes or {})[semconv.GEN_AI_REQUEST_MODEL] == "tiny"


def test_a_bug_of_ours_is_one_warning(
    processor: Any, recorder: Recorded, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(processor, "a")
    with caplog.at_level(logging.WARNING, "otel_llm"):
        for _ in range(3):
            assert step(processor, Output("a", None)).reqs_to_abort == []  # type: ignore[arg-type]
            add(processor, "b")
    assert len(ours(caplog)) == 1


class Moved:
    """An `OutputProcessor` of a vLLM to come."""

    def process_outputs(self, batch: Any) -> None: ...

    add_request = Processor.add_request
    abort_requests = Processor.abort_requests
    propagate_error = Processor.propagate_error


@pytest.mark.parametrize(
    "module",
    [
        SimpleNamespace(OutputProcessor=Moved, EngineCoreOutput=Output),
        SimpleNamespace(OutputProcessor=Processor, EngineCoreOutput=SimpleNamespace(__struct_fields__=("request_id",))),
        SimpleNamespace(),
    ],
    ids=["parameters", "fields", "gone"],
)
def test_a_vllm_that_is_not_known_is_left_alone(caplog: pytest.LogCaptureFixture, module: Any) -> None:
    before = {owner: dict(vars(owner)) for owner in (Processor, Moved)}
    with caplog.at_level(logging.WARNING, "otel_llm"):
        vllm.hooked(vllm.patch_processor)(module)
    assert len(ours(caplog)) == 1
    assert {owner: dict(vars(owner)) for owner in (Processor, Moved)} == before


@pytest.mark.parametrize("names", ["otel-llm-vllm", "flask, otel-llm-vllm", "*"])
def test_switched_off_by_the_standard_variables(monkeypatch: pytest.MonkeyPatch, names: str) -> None:
    monkeypatch.setattr(vllm, "awaited", [])
    monkeypatch.setenv("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", names)
    vllm.register()
    monkeypatch.setenv("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    vllm.register()
    assert vllm.awaited == []
