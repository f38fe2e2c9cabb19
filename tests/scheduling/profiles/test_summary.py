"""What is shown of a profile: the sizes, the cache's limit, and the most decodes of a TPOT against a search of all."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from support.scheduling.profiles import table

from otel_llm.scheduling.profiles import load_profile
from otel_llm.scheduling.profiles.profile_page import (
    Most,
    batches_of,
    chunks_of,
    contexts_of,
    decodes_ns,
    most_decodes,
    prefills_ns,
    render,
)

MS = 1_000_000


def test_sizes_end_at_the_engine_s_limits() -> None:
    profile = load_profile("h200-llama-3.1-8b")
    assert batches_of(profile) == [1, 8, 32, 64, 128, 256, 512]
    assert chunks_of(profile) == [128, 512, 2048, 8192]
    small = replace(profile, max_batch=100, max_batched_tokens=100, kv_tokens=300)
    assert batches_of(small) == [1, 8, 32, 64, 100]
    assert chunks_of(small) == [100]
    assert contexts_of(small) == [300]


def test_batches_beyond_the_cache_are_missing() -> None:
    profile = table({(1, 100, 0, 0): 1000, (1, 200, 0, 0): 1100, (4, 400, 0, 0): 1300, (4, 800, 0, 0): 1700})
    small = replace(profile, kv_tokens=800)
    assert decodes_ns(small, [1, 2, 4, 8], 200) == [1100, 1300, 1700, None]
    assert prefills_ns(small, [1, 2], 5) == [1000, 1000]


@pytest.mark.parametrize("name", ["h200-llama-3.1-8b", "h200-paper-era"])
@pytest.mark.parametrize("context", [512, 3000, 8192])
@pytest.mark.parametrize("tpot_ms", [1, 15, 16, 20, 30, 50])
def test_the_most_decodes_are_those_of_a_search_of_all(name: str, context: int, tpot_ms: int) -> None:
    profile = load_profile(name)
    most = min(profile.max_batch, profile.kv_tokens // context)
    holding = [
        size
        for size in range(1, most + 1)
        if profile.iteration_ns(size, size * context) + profile.step_overhead_ns <= tpot_ms * MS
    ]
    limit = "TPOT" if most not in holding else "batch" if most == profile.max_batch else "KV"
    assert most_decodes(profile, context, tpot_ms * MS) == Most(max(holding, default=0), limit)


def test_the_page_has_the_figures_and_runs_no_name_as_markup() -> None:
    profile = replace(load_profile("h200-llama-3.1-8b"), name="<b>x</b>", source="</script><script>alert(1)</script>")
    page = render(profile)
    found = re.search(r"<script type='application/json' id='figures'>(.*?)</script>", page, re.DOTALL)
    assert found is not None
    figures = json.loads(found[1])
    assert figures.keys() == {"decodes", "prefills"}
    lines = {one["name"]: one for one in figures["decodes"]["data"]}
    assert list(lines) == ["512 tokens", "1,024 tokens", "2,048 tokens", "4,096 tokens", "8,192 tokens"]
    assert (lines["8,192 tokens"]["x"][0], lines["8,192 tokens"]["x"][-1]) == (1, 109)  # 900,000 / 8,192
    assert lines["512 tokens"]["y"][-1] == pytest.approx(profile.iteration_ns(512, 512 * 512) / MS)
    assert "<b>x</b>" not in page
    assert "<script>alert" not in page
