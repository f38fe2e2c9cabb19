"""The expected lengths of prompts and replies: what a relay learns from those that it served."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.relay.fake_engine import FakeEngine
from support.relay.rig import rig

from otel_llm.relay.backends.expected_lengths import (
    MOST_KINDS,
    MOST_MODELS,
    ExpectedLengths,
)
from otel_llm.scheduling.output_lengths import EXPECTED_OUTPUT

CHAT: dict[str, Any] = {"model": "fake", "max_tokens": 12, "messages": [{"role": "user", "content": "tell me " * 400}]}


def test_a_prompt_begins_with_four_bytes_a_token() -> None:
    lengths = ExpectedLengths()
    assert [lengths.prompt("m", size) for size in (0, 3, 4, 4003)] == [0, 0, 1, 1000]


def test_a_ratio_is_learned_for_its_model_only() -> None:
    """800 bytes and 200 tokens to begin with, then 8,000 bytes that are 1,000 tokens: 8,792 bytes are 1,198 tokens."""
    lengths = ExpectedLengths()
    lengths.prompt_known("m", 8000, 1000)
    assert lengths.prompt("m", 4000) == int(4000 * (0.99 * 200 + 1000) / (0.99 * 800 + 8000))
    assert lengths.prompt("other", 4000) == 1000
    assert lengths.prompt(None, 4000) == 1000


@given(st.floats(1.0, 12.0), st.lists(st.integers(10_000, 100_000), min_size=300, max_size=300))
def test_many_prompts_of_one_ratio_are_expected_by_it(ratio: float, sizes: list[int]) -> None:
    lengths = ExpectedLengths()
    for size in sizes:
        lengths.prompt_known("m", size, round(size / ratio))
    assert lengths.prompt("m", 10_000) == pytest.approx(10_000 / ratio, rel=0.01, abs=1)


def test_a_ratio_that_changes_is_learned_anew() -> None:
    lengths = ExpectedLengths()
    for tokens in [1000] * 300 + [4000] * 300:
        lengths.prompt_known("m", 8000, tokens)
    assert lengths.prompt("m", 8000) == pytest.approx(4000, rel=0.05)


def test_nothing_is_learned_from_nothing() -> None:
    lengths = ExpectedLengths()
    lengths.prompt_known("m", 0, 5)
    lengths.prompt_known("m", 5, 0)
    lengths.output_known("chat", "m", 0)
    assert lengths.prompt("m", 400) == 100
    assert lengths.output("chat", "m", None) == EXPECTED_OUTPUT


def test_a_reply_is_expected_as_the_mean_of_its_class_and_model() -> None:
    lengths = ExpectedLengths()
    for tokens in (10, 20, 60):
        lengths.output_known("chat", "m", tokens)
    assert lengths.output("chat", "m", None) == 30
    assert lengths.output("chat", "m", 7) == 7
    assert lengths.output("chat", "m", 0) == 1
    assert lengths.output("chat", "n", 1000) == lengths.output("code", "m", None) == EXPECTED_OUTPUT


def test_names_that_clients_make_up_do_not_fill_the_memory() -> None:
    lengths = ExpectedLengths()
    for number in range(MOST_MODELS + 5):
        lengths.prompt_known(str(number), 80_000, 80_000)
    assert lengths.prompt(str(MOST_MODELS - 1), 100) > 90
    assert lengths.prompt(str(MOST_MODELS), 100) == 25
    for number in range(MOST_KINDS):
        lengths.output_known("chat", str(number), 5)
    lengths.output_known("chat", "late", 7)
    assert lengths.output("chat", "later", None) == 7
    assert lengths.output("chat", "0", None) == 5


@pytest.mark.parametrize("ids", [True, False], ids=["by ids", "by usage"])
def test_estimate_and_truth_stand_in_the_record_and_the_next_estimate_is_nearer(tmp_path: Path, ids: bool) -> None:
    async def go() -> list[tuple[int, int]]:
        engine = FakeEngine()
        engine.kind = "vllm" if ids else "openai"
        async with rig(tmp_path, engine) as running:
            exact = len(engine.model.prompt_ids(CHAT))
            for _ in range(3):
                assert (await running.read({**CHAT, "stream_options": {"include_usage": True}})).done
        requests = [dict(request.attributes or {}) for request in running.recorded.requests()]
        assert [request["gen_ai.usage.input_tokens"] for request in requests] == [exact] * 3
        estimates: list[Any] = [request["otel_llm.relay.input_tokens_estimated"] for request in requests]
        size = len(json.dumps({"stream": True, **CHAT, "stream_options": {"include_usage": True}}))
        assert estimates[0] == size // 4
        segments = [dict(span.attributes or {}) for span in running.exporter.get_finished_spans()]
        first = [one for one in segments if one.get("otel_llm.segment.seq") == 0]
        assert [one["otel_llm.relay.input_tokens_estimated"] for one in first] == estimates
        return [(estimate, exact) for estimate in estimates]

    found = asyncio.run(go())
    errors = [abs(estimate - exact) for estimate, exact in found]
    assert errors[0] > errors[1] > errors[2]


def test_a_prompt_of_ids_needs_no_estimate(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            assert (await running.read({"model": "fake", "max_tokens": 4, "prompt": [5, 6, 7]})).done
        (request,) = running.recorded.requests()
        assert "otel_llm.relay.input_tokens_estimated" not in (request.attributes or {})

    asyncio.run(go())
