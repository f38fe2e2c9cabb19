"""SGLang's plugin on SGLang's own registry and tokenizer manager, out of its wheel; its scheduler is a stand-in."""

from __future__ import annotations

import asyncio
import logging
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation.recorded import Recorded, Stream
from support.instrumentation.sglang_wheel import AbortReq, GenerateReqInput, installed, running, unpacked
from support.logs import ours

import otel_llm
from otel_llm import semconv
from otel_llm.instrumentation.engines import sglang

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
HEADERS = [(b"traceparent", f"00-{TRACE}-{PARENT}-01".encode()), (b"x-slo-class", b"voice")]


@pytest.fixture(scope="session")
def wheel(request: pytest.FixtureRequest) -> Path:
    assert request.config.cache is not None
    return unpacked(Path(request.config.cache.mkdir("sglang")))


@pytest.fixture
def module(wheel: Path) -> Iterator[types.ModuleType]:
    with installed(wheel) as module:
        yield module


@pytest.fixture
def hooked(module: types.ModuleType, recorder: Recorded, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """SGLang with our plugin, found and loaded by SGLang itself."""
    from sglang.srt import plugins

    monkeypatch.setenv("SGLANG_PLUGINS", sglang.NAME)
    plugins.load_plugins()
    return module


def serve(module: types.ModuleType, talk: Callable[[Any], Awaitable[None]]) -> None:
    """Run a conversation with a tokenizer manager."""

    async def main() -> None:
        manager = running(module)
        try:
            await talk(manager)
        finally:
            manager.loop.cancel()
            await asyncio.gather(manager.loop, return_exceptions=True)

    asyncio.run(main())


async def read(responses: AsyncIterator[Any]) -> list[Any]:
    return [response async for response in responses]


def asked(rid: str, **more: Any) -> GenerateReqInput:
    return GenerateReqInput(rid, **more)


async def begun(manager: Any, request: GenerateReqInput, http: Any = None) -> asyncio.Task[list[Any]]:
    """Send a request; return, once it is scheduled, the task that reads its reply."""
    reading = asyncio.create_task(read(manager.generate_request(request, http)))
    while request.input_error is None and request.rid not in manager.scheduled:
        await asyncio.sleep(0)
    return reading


def test_every_token_of_every_batch_is_counted_once(hooked: types.ModuleType, recorder: Recorded) -> None:
    async def talk(manager: Any) -> None:
        one, two = await begun(manager, asked("one")), await begun(manager, asked("two"))
        await manager.send(("one", 1, None), queue_s=0.25)
        await manager.send(("one", 2, None), ("two", 3, None))
        await manager.send(("two", 3, None))  # nothing new
        await manager.send(("one", 6, "length"), ("two", 4, "stop"), queue_s=0.25)
        assert [response["meta_info"]["completion_tokens"] for response in await one] == [1, 2, 6]
        await two

    serve(hooked, talk)
    first, second = recorder.streams()
    for stream, tokens, distinct in ((first, 6, 3), (second, 4, 2)):
        stream.check()
        assert stream.last[semconv.TOKENS] == tokens
        assert stream.last[semconv.TOKEN_BASIS] == "exact"
        assert stream.outcome == "completed"
        assert len(set(stream.times_ns)) == len(stream.times_ns) == distinct
        assert stream.last[semconv.GEN_AI_USAGE_INPUT_TOKENS] == 3
    requests = recorder.requests()
    spans = {str((span.attributes or {})["gen_ai.request.id"]): dict(span.attributes or {}) for span in requests}
    assert spans["one"][semconv.GEN_AI_RESPONSE_FINISH_REASONS] == ("length",)
    assert spans["two"][semconv.GEN_AI_RESPONSE_FINISH_REASONS] == ("stop",)
    assert spans["one"][semconv.GEN_AI_LATENCY_QUEUE] == 0.25
    assert spans["one"][semconv.GEN_AI_REQUEST_MODEL] == "tiny"
    assert spans["one"][semconv.MEASURED_AT] == "server"


def test_the_queue_is_not_said_where_sglang_does_not_say_it(hooked: types.ModuleType, recorder: Recorded) -> None:
    async def talk(manager: Any) -> None:
        one = await begun(manager, asked("one"))
        await manager.send(("one", 1, "stop"))
        await one

    serve(hooked, talk)
    [request] = recorder.requests()
    assert semconv.GEN_AI_LATENCY_QUEUE not in (request.attributes or {})


def test_thoughts_are_told_from_the_answer(hooked: types.ModuleType, recorder: Recorded) -> None:
    async def talk(manager: Any) -> None:
        one = await begun(manager, asked("one"))
        await manager.send(("one", 2, None), reasoning=2)
        await manager.send(("one", 5, None), reasoning=3)
        await manager.send(("one", 6, "stop"), reasoning=3)
        await one

    serve(hooked, talk)
    events = [event for segment in recorder.stream().segments for event in segment.events]
    told = [
        (
            (event.attributes or {}).get(semconv.TOKEN_KIND, "content"),
            (event.attributes or {}).get(semconv.TOKEN_COUNT, 1),
        )
        for event in events
    ]
    assert told == [("reasoning", 2), ("reasoning", 1), ("content", 2), ("content", 1)]


def test_the_request_joins_the_trace_and_the_class_of_its_headers(hooked: types.ModuleType, recorder: Recorded) -> None:
    http = types.SimpleNamespace(headers=types.SimpleNamespace(raw=HEADERS))

    async def talk(manager: Any) -> None:
        one = await begun(manager, asked("one"), http)
        await manager.send(("one", 1, "stop"))
        await one

    serve(hooked, talk)
    [request] = recorder.requests()
    assert request.parent is not None
    assert (f"{request.parent.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE, PARENT)
    first = dict(recorder.stream().segments[0].attributes or {})
    assert first[semconv.SLO_CLASS] == "voice"
    assert first[semconv.GEN_AI_REQUEST_ID] == "one"  # by it the request can be aborted while it runs


def test_a_trace_that_came_without_http_is_joined_as_well(hooked: types.ModuleType, recorder: Recorded) -> None:
    async def talk(manager: Any) -> None:
        given = {name.decode(): value.decode() for name, value in HEADERS}
        one = await begun(manager, asked("one", external_trace_header=given))
        await manager.send(("one", 1, "stop"))
        await one

    serve(hooked, talk)
    [request] = recorder.requests()
    assert request.parent is not None
    assert f"{request.parent.trace_id:032x}" == TRACE


async def _cancel(manager: Any, reading: asyncio.Task[list[Any]]) -> None:
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert [message.rid for message in manager.aborted] == ["one"]


async def _abort(manager: Any, reading: asyncio.Task[list[Any]]) -> None:
    manager.abort_request("one")
    await manager.send(("one", 9, "abort"))  # was on its way; has no reader
    await reading


async def _abort_all(manager: Any, reading: asyncio.Task[list[Any]]) -> None:
    manager.abort_request(abort_all=True)
    await manager.say(AbortReq("one"))
    await reading


async def _dropped(manager: Any, reading: asyncio.Task[list[Any]]) -> None:
    await manager.say(AbortReq("one", finished_reason={"type": "abort", "status_code": 503, "message": "full"}))
    await reading


async def _failed(manager: Any, reading: asyncio.Task[list[Any]]) -> None:
    await manager.send(("one", 2, {"type": "abort", "status_code": 500, "message": "out of memory"}))
    await reading


@pytest.mark.parametrize(
    ("end", "outcome", "error"),
    [
        (_cancel, "cancelled", None),
        (_abort, "cancelled", None),
        (_abort_all, "cancelled", None),
        (_dropped, "error", "503"),
        (_failed, "error", "500"),
    ],
)
def test_a_stream_that_dies_is_accounted_for(
    hooked: types.ModuleType,
    recorder: Recorded,
    end: Callable[[Any, asyncio.Task[list[Any]]], Awaitable[None]],
    outcome: str,
    error: str | None,
) -> None:
    async def talk(manager: Any) -> None:
        reading = await begun(manager, asked("one"))
        await manager.send(("one", 2, None))
        await end(manager, reading)

    serve(hooked, talk)
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == (outcome, 2)
    [request] = recorder.requests()
    assert (request.attributes or {}).get(semconv.ERROR_TYPE) == error


def test_a_client_that_sglang_finds_gone_is_cancelled(hooked: types.ModuleType, recorder: Recorded) -> None:
    async def gone() -> bool:
        return True

    http = types.SimpleNamespace(headers=types.SimpleNamespace(raw=[]), is_disconnected=gone)

    async def talk(manager: Any) -> None:
        reading = await begun(manager, asked("one"), http)
        await manager.send(("one", 2, None))
        with pytest.raises(ValueError, match="disconnected"):
            await reading

    serve(hooked, talk)
    assert recorder.stream().outcome == "cancelled"


def test_a_request_that_is_refused_before_the_scheduler_is_an_error(
    hooked: types.ModuleType, recorder: Recorded
) -> None:
    async def talk(manager: Any) -> None:
        with pytest.raises(ValueError, match="too long"):
            await (await begun(manager, asked("one", input_error="too long")))

    serve(hooked, talk)
    assert recorder.stream().outcome == "error"
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.ERROR_TYPE] == "ValueError"


def test_several_prompts_are_several_requests_and_several_samples_none(
    hooked: types.ModuleType, recorder: Recorded
) -> None:
    async def talk(manager: Any) -> None:
        for rids, n in ((["a", "b"], 1), (["c"], 2)):
            request = GenerateReqInput(rids, sampling_params={"n": n})
            reading = asyncio.create_task(read(manager.generate_request(request)))
            while not set(rids) <= set(manager.scheduled):
                await asyncio.sleep(0)
            await manager.send(*[(rid, 1, "stop") for rid in rids])
            await reading
        whole = await begun(manager, asked("d", stream=False))
        await manager.send(("d", 5, "stop"))
        await whole

    serve(hooked, talk)
    assert sorted(str((span.attributes or {})["gen_ai.request.id"]) for span in recorder.requests()) == ["a", "b"]


def test_nothing_is_kept_of_requests_that_ended(
    module: types.ModuleType, recorder: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    plugins: list[sglang.Plugin] = []

    class Kept(sglang.Plugin):
        def __init__(self) -> None:
            super().__init__()
            plugins.append(self)

    monkeypatch.setattr(sglang, "Plugin", Kept)
    sglang.register()
    HookRegistry.apply_hooks()

    async def talk(manager: Any) -> None:
        for end in (_cancel, _abort, _abort_all, _dropped, _failed):
            manager.aborted.clear()
            manager.scheduled.clear()
            await end(manager, await begun(manager, asked("one")))
            manager.rid_to_state.clear()

    serve(module, talk)
    assert [stream.outcome for stream in recorder.streams()] == ["cancelled"] * 3 + ["error"] * 2
    assert plugins[0].requests == {}


def test_the_engine_works_on_when_we_fail(
    hooked: types.ModuleType, recorder: Recorded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*_: object, **__: object) -> None:
        raise RuntimeError("ours")

    async def talk(manager: Any) -> None:
        for rid in ("one", "two"):
            reading = await begun(manager, asked(rid))
            monkeypatch.setattr("otel_llm.instrumentation.engines.engine_request.Generation.tokens", bug)
            monkeypatch.setattr("otel_llm.instrumentation.engines.engine_request.Generation.facts", bug)
            await manager.send((rid, 1, None))
            await manager.send((rid, 2, "stop"))
            assert len(await reading) == 2

    with caplog.at_level(logging.WARNING, "otel_llm"):
        serve(hooked, talk)
    assert len(ours(caplog)) == 1


@pytest.mark.parametrize("change", ["gone", "renamed", "no sglang"])
def test_a_hook_that_moved_is_one_warning_and_nothing_is_hooked(
    module: types.ModuleType, recorder: Recorded, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    if change == "gone":
        del module.TokenizerManager._handle_abort_req
    elif change == "renamed":
        module.TokenizerManager._handle_batch_output = lambda self, batch: None
    else:
        del module.TokenizerManager
    before = vars(module).get("TokenizerManager") and dict(vars(module.TokenizerManager))
    with caplog.at_level(logging.WARNING, "otel_llm"):
        sglang.register()
    HookRegistry.apply_hooks()
    assert len(ours(caplog)) == 1
    assert "SGLang" in caplog.text
    assert (vars(module).get("TokenizerManager") and dict(vars(module.TokenizerManager))) == before


@pytest.mark.parametrize(
    ("variable", "value"),
    [("OTEL_SDK_DISABLED", "true"), ("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "openai, otel-llm-sglang")],
)
def test_the_environment_switches_it_off(
    module: types.ModuleType, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    monkeypatch.setenv(variable, value)
    before = dict(vars(module.TokenizerManager))
    sglang.register()
    HookRegistry.apply_hooks()
    assert dict(vars(module.TokenizerManager)) == before


def test_it_starts_by_itself_where_nobody_called_instrument(
    module: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    from otel_llm.instrumentation.process import runtime

    exporter = InMemorySpanExporter()
    configured = runtime.configured
    monkeypatch.setattr(runtime, "configured", lambda: configured(exporter=exporter))
    sglang.register()
    HookRegistry.apply_hooks()
    assert runtime.running() is None, "started before there was a request: every process of SGLang loads plugins"

    async def talk(manager: Any) -> None:
        reading = await begun(manager, asked("one"))
        await manager.send(("one", 1, "stop"))
        await reading

    try:
        serve(module, talk)
        [stream] = Recorded(exporter).streams()
        assert isinstance(stream, Stream)
        assert stream.outcome == "completed"
    finally:
        runtime.stop()
        otel_llm.uninstrument()
