"""Benchmark tools against a paced server: the figures that each gives of its run, and the audit's of its recording."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.bench_tools.figures import by_rules_of, check, check_latencies
from support.bench_tools.paced import ASKED_TOKENS, REQUESTS, PacedServer, reply
from support.bench_tools.tools import aiperf, guidellm, inference_perf, sglang_bench, vllm_bench
from support.formats.bench_read import judged, read

TOGETHER = pytest.mark.parametrize("together", [1, 3])
"""How many tokens the server sends in a chunk."""


@TOGETHER
def test_vllm(tmp_path: Path, together: int) -> None:
    with PacedServer(together) as server:
        check(vllm_bench(tmp_path, server.url))


@TOGETHER
def test_sglang(tmp_path: Path, together: int) -> None:
    with PacedServer(together) as server:
        check(sglang_bench(tmp_path, server.url))


def test_sglangs_lengths_are_not_always_counts(tmp_path: Path) -> None:
    with PacedServer() as server:
        run = sglang_bench(tmp_path, server.url, "sglang-oai")
    streams, _ = read(run.recording.read_bytes(), run.recording)
    check_latencies(run, by_rules_of(run, streams))
    # It states the length that it asked for, as the server states no usage; the replies are of other lengths.
    assert {*json.loads(run.recording.read_text())["output_lens"]} == {ASKED_TOKENS}
    sent = sorted(len(reply(number + 1).tokens) for number in range(REQUESTS))
    assert sorted(row["tokens"] for row in judged(streams)) == sent


@TOGETHER
def test_aiperf(tmp_path: Path, together: int) -> None:
    with PacedServer(together) as server:
        check(aiperf(tmp_path, server.url))


@TOGETHER
def test_inference_perf(tmp_path: Path, together: int) -> None:
    with PacedServer(together) as server:
        check(inference_perf(tmp_path, server.url))


def test_guidellm(tmp_path: Path) -> None:
    with PacedServer() as server:
        check(guidellm(tmp_path, server.url))
