"""Against a real vLLM on the CPU: what we count is what the server says it made."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.integration.vllm_server import VllmServer
from support.spans import records_of

import otel_llm
from otel_llm.formats.assemble.assembler import Assembler
from otel_llm.formats.assemble.resolved import Assembled

pytestmark = pytest.mark.alone


@pytest.fixture
def vllm_url(recording_vllm: tuple[VllmServer, VllmServer]) -> str:
    """The address of the server that sends several tokens in one chunk."""
    return recording_vllm[1].url


def streamed(url: str, **asked: Any) -> tuple[int, Assembled]:
    """Stream one reply; return the server's count and what was recorded."""
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter)
    try:
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            stream = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "def f(x):"}], stream=True, **asked
            )
            completion = None
            for chunk in stream:
                if chunk.usage is not None:
                    completion = chunk.usage.completion_tokens
        otel_llm.flush()
    finally:
        otel_llm.uninstrument()
    assert completion is not None
    assembler = Assembler()
    assembler.add(records_of(exporter.get_finished_spans()))
    (recorded,) = assembler.finish()
    return completion, recorded


def test_the_count_is_the_servers(vllm_url: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    completion, recorded = streamed(
        vllm_url, max_tokens=150, seed=1, extra_body={"stream_options": options, "ignore_eos": True}
    )
    assert completion == 150
    assert recorded.tokens == completion
    assert recorded.resolved.token_basis == "exact"
    assert recorded.resolved.coverage == 1.0
    assert len(set(recorded.times_ns)) < completion, "no chunk carried several tokens"


def test_token_ids_count_as_well(vllm_url: str) -> None:
    completion, recorded = streamed(
        vllm_url,
        max_tokens=120,
        stream_options={"include_usage": True},
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )
    assert (recorded.tokens, recorded.resolved.token_basis) == (completion, "exact")


def test_without_a_count_the_basis_is_labelled(vllm_url: str) -> None:
    _, recorded = streamed(
        vllm_url, max_tokens=60, stream_options={"include_usage": True}, extra_body={"ignore_eos": True}
    )
    assert recorded.resolved.token_basis in {"chunk", "estimated"}  # this model's text is drawn at random
