"""A real vLLM with the middleware and the plugin: what its clients saw, and what it saw of them.

OTEL_LLM_VLLM_REQUESTS sets how many requests are made; more than the default is for a run by hand.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.integration.vllm_server import VllmServer
from support.patience import WAIT_S
from support.spans import records_of

import otel_llm
from otel_llm.formats.assemble.assembler import Assembler
from otel_llm.formats.assemble.resolved import Assembled

REQUESTS = int(os.environ.get("OTEL_LLM_VLLM_REQUESTS", "60"))
AT_ONCE = 8
LONG = 450
QUESTION: Any = [{"role": "user", "content": "def f(x):"}]

pytestmark = pytest.mark.alone


@pytest.fixture
def both(recording_vllm: tuple[VllmServer, VllmServer]) -> VllmServer:
    return recording_vllm[0]


@pytest.fixture
def alone(recording_vllm: tuple[VllmServer, VllmServer]) -> VllmServer:
    return recording_vllm[1]


@dataclass
class EngineRequest:
    """One request of a client: what it did, and what the server told it."""

    way: str
    trace: str = ""
    usage: int | None = None
    read: int = 0


async def complete(client: Any, asked: EngineRequest, choices: random.Random) -> None:
    options = {"include_usage": True, "continuous_usage_stats": choices.random() < 0.5}
    stream = await client.chat.completions.create(
        model="tiny",
        messages=QUESTION,
        stream=True,
        max_tokens=choices.choice((1, 2, 17, 60, 150)),
        stream_options=options,
        extra_body={"ignore_eos": choices.random() < 0.8},
    )
    async for chunk in stream:
        asked.read += bool(chunk.choices)
        if chunk.usage is not None:
            asked.usage = chunk.usage.completion_tokens


async def cancel(client: Any, asked: EngineRequest, choices: random.Random) -> None:
    stream = await client.chat.completions.create(
        model="tiny", messages=QUESTION, stream=True, max_tokens=LONG, extra_body={"ignore_eos": True}
    )
    leave_at = choices.choice((1, 3, 9))
    async for chunk in stream:
        asked.read += bool(chunk.choices and chunk.choices[0].delta.content)
        if asked.read >= leave_at:
            break
    await stream.close()


async def load(server: VllmServer, count: int) -> list[EngineRequest]:
    choices = random.Random(5)
    turn = asyncio.Semaphore(AT_ONCE)
    async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=WAIT_S) as client:

        async def one(way: str) -> EngineRequest:
            asked = EngineRequest(way)
            async with turn:
                if way == "complete":
                    await complete(client, asked, choices)
                elif way == "cancel":
                    await cancel(client, asked, choices)
                else:
                    asked.trace = f"{choices.getrandbits(128) | 1:032x}"
                    await asyncio.to_thread(
                        server.leave_after,
                        f"00-{asked.trace}-{1:016x}-01",
                        choices.choice((0, 1, 5)),
                        messages=QUESTION,
                        max_tokens=LONG,
                        ignore_eos=True,
                    )
            return asked

        ways = ["complete"] * (count - 2 * (count // 5)) + ["cancel"] * (count // 5) + ["leave"] * (count // 5)
        choices.shuffle(ways)
        return await asyncio.gather(*(one(way) for way in ways))


def test_client_rows_and_server_rows(both: VllmServer) -> None:
    others = {row.resolved.key for row in both.rows()}  # of tests before this one, whose server it is too
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter)
    try:
        asked = asyncio.run(load(both, REQUESTS))
        assert otel_llm.flush(WAIT_S)
    finally:
        otel_llm.uninstrument()
    assembler = Assembler()
    assembler.add(records_of(exporter.get_finished_spans()))
    clients = {row.resolved.trace_id.hex(): row for row in assembler.finish()}
    rows = [row for row in both.settled(REQUESTS + len(others)) if row.resolved.key not in others]
    servers = {row.resolved.trace_id.hex(): row for row in rows}
    assert len(rows) == len(servers) == REQUESTS, "one row a request"
    assert {row.resolved.measured_at for row in rows} == {"server"}
    assert {row.resolved.token_basis for row in rows if row.times_ns} == {"exact"}
    assert {row.resolved.coverage for row in rows} == {1.0}

    # The clients' rows are those of the same traces, but for clients that record nothing.
    left = {one.trace for one in asked if one.way == "leave"}
    assert set(servers) - set(clients) == left
    assert set(clients) < set(servers)
    for trace in left:
        assert servers[trace].resolved.outcome == "cancelled" or whole(servers[trace])
    for trace, row in clients.items():
        server = servers[trace]
        if row.resolved.outcome != "cancelled" or not whole(server):
            assert server.resolved.outcome == row.resolved.outcome, (row.resolved.outcome, row.tokens)
        assert server.resolved.queue_s is not None or not server.times_ns
        if row.resolved.outcome == "completed" and row.resolved.token_basis == "exact":
            assert row.tokens == server.tokens
        elif row.resolved.outcome == "cancelled" and row.resolved.token_basis != "estimated":
            assert server.tokens >= row.tokens
    assert Counter(row.resolved.outcome for row in clients.values())["cancelled"] == REQUESTS // 5

    # Tokens as the server counts them itself, for each request that lived to hear of it.
    told = sorted(one.usage for one in asked if one.usage is not None)
    stayed = {trace for trace, row in clients.items() if row.resolved.outcome == "completed"}
    assert sorted(servers[trace].tokens for trace in stayed) == told
    assert len(told) == REQUESTS - 2 * (REQUESTS // 5)
    # How many were left before the server had sent all is a matter of how busy the machine is.
    assert any(row.resolved.outcome == "cancelled" for row in rows)


def whole(server: Assembled) -> bool:
    """Return whether all of a long reply was sent, as it may be before its slow reader is seen to leave."""
    return (server.resolved.outcome, server.tokens) == ("completed", LONG)


def test_what_the_engine_says(both: VllmServer) -> None:
    with openai.OpenAI(base_url=both.url, api_key="none", max_retries=0) as client:
        trace = f"{0xABC:032x}"
        stream = client.chat.completions.create(
            model="tiny",
            messages=QUESTION,
            stream=True,
            max_tokens=40,
            extra_body={"ignore_eos": True},
            extra_headers={"traceparent": f"00-{trace}-{1:016x}-01", "x-slo-class": "code", "X-Request-Id": "mine"},
        )
        for _ in stream:
            pass
    row = of_trace(both, trace)
    assert (row.resolved.outcome, row.tokens, row.resolved.declared_class) == ("completed", 40, "code")
    assert row.resolved.model == "tiny"
    assert row.resolved.input_tokens
    assert row.resolved.instance
    attributes = both.request_spans()[trace]
    assert "mine" in attributes["gen_ai.request.id"]
    assert attributes["gen_ai.provider.name"] == "vllm"
    assert 0 <= attributes["gen_ai.latency.time_in_queue"] < 60
    assert attributes["gen_ai.latency.time_in_model_prefill"] > 0
    assert attributes["otel_llm.engine.preemptions"] == 0
    assert attributes["otel_llm.engine.steps"] == 40
    assert attributes["otel_llm.engine.steps.first"] > 0
    assert attributes["otel_llm.engine.steps.mixed"] == 0
    assert attributes["otel_llm.engine.batch.mean"] == 1.0
    assert attributes["gen_ai.usage.output_tokens"] == 40


def test_choices_and_prompts(both: VllmServer) -> None:
    trace = f"{0xDEF:032x}"
    with openai.OpenAI(base_url=both.url, api_key="none", max_retries=0) as client:
        stream = client.completions.create(
            model="tiny",
            prompt=["def f(x):", "class A:"],
            n=2,
            stream=True,
            max_tokens=12,
            extra_body={"ignore_eos": True},
            extra_headers={"traceparent": f"00-{trace}-{1:016x}-01"},
        )
        for _ in stream:
            pass
    rows = both.settled(4, trace)
    assert [(row.resolved.choice, row.tokens, row.resolved.outcome) for row in rows] == [
        (choice, 12, "completed") for choice in range(4)
    ]


def test_a_refusal_and_a_whole_answer(both: VllmServer) -> None:
    before = len(both.rows())
    trace = f"{0x123:032x}"
    headers = {"traceparent": f"00-{trace}-{1:016x}-01"}
    with openai.OpenAI(base_url=both.url, api_key="none", max_retries=0) as client:
        client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=5)
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(
                model="tiny", messages=QUESTION, stream=True, max_tokens=99_999, extra_headers=headers
            )
    row = of_trace(both, trace)
    assert (row.resolved.outcome, row.times_ns) == ("error", [])
    assert len(both.rows()) == before + 1


def test_the_plugin_alone(alone: VllmServer) -> None:
    """Without the middleware: the same tokens; what a client did is known by what became of its engine request."""
    done, left, many, whole_answer = (f"{i:032x}" for i in (1, 2, 3, 4))
    with openai.OpenAI(base_url=alone.url, api_key="none", max_retries=0) as client:
        for trace, more in ((done, {}), (many, {"n": 3})):
            for _ in client.chat.completions.create(
                model="tiny",
                messages=QUESTION,
                stream=True,
                max_tokens=30,
                extra_body={"ignore_eos": True, **more},
                extra_headers={"traceparent": f"00-{trace}-{1:016x}-01"},
            ):
                pass
        headers = {"traceparent": f"00-{whole_answer}-{1:016x}-01"}
        client.chat.completions.create(model="tiny", messages=QUESTION, max_tokens=5, extra_headers=headers)
    alone.leave_after(f"00-{left}-{1:016x}-01", 2, messages=QUESTION, max_tokens=LONG, ignore_eos=True)
    for trace, count in ((done, 1), (many, 3), (left, 1)):
        alone.settled(count, trace)
    counts = Counter(row.resolved.trace_id.hex() for row in alone.rows())
    assert [counts[trace] for trace in (done, many, left, whole_answer)] == [1, 3, 1, 0], "a whole answer has no row"
    row = of_trace(alone, done)
    assert (row.resolved.outcome, row.tokens, row.resolved.token_basis) == ("completed", 30, "exact")
    assert (row.resolved.measured_at, row.resolved.model) == ("server", "tiny")
    assert row.resolved.queue_s is not None
    row = of_trace(alone, left)
    assert row.resolved.outcome == "cancelled" or whole(row)
    choices = alone.settled(3, many)
    assert [(row.resolved.choice, row.tokens, row.resolved.outcome) for row in choices] == [
        (choice, 30, "completed") for choice in range(3)
    ]


def of_trace(server: VllmServer, trace: str) -> Assembled:
    """Return the one row of a trace, once it has ended."""
    [row] = server.settled(1, trace)
    return row
