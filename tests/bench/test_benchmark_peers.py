"""The comparison with other load tools: figures of a file by hand, what the truth refuses, what counts as carried."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from support.formats.bench_files import vllm_run
from support.patience import WAIT_S

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from bench_load.truth_comparison import OURS, Row, truth_of, truth_server
from bench_peers_parts.clients import ClientError
from bench_peers_parts.figures import Figures, own_of_vllm, recorded
from bench_peers_parts.one_core import Measurement, carried
from bench_peers_parts.same_server import agreement

WRITES = {"a": [0, 20, 40], "b": [10, 30, 50], "c": [20, 40, 60]}
"""When each token of a reply was written, ms."""


def ns(times_ms: dict[str, list[int]], later_ms: int = 0) -> dict[str, list[int]]:
    return {prompt: [(one + later_ms) * 10**6 for one in times] for prompt, times in times_ms.items()}


def test_reads_after_their_writes_are_believed() -> None:
    Measurement.check("peer", "abc", ns(WRITES), ns(WRITES, 1))


@pytest.mark.parametrize(
    "reads",
    [
        WRITES | {"a": WRITES["b"], "b": WRITES["a"]},  # matched to the prompts of each other
        WRITES | {"c": WRITES["c"][:-1]},
        {"a": WRITES["a"], "b": WRITES["b"]},
    ],
)
def test_replies_of_other_prompts_and_torn_ones_are_refused(reads: dict[str, list[int]]) -> None:
    with pytest.raises(ClientError):
        Measurement.check("peer", "abc", ns(WRITES), ns(reads, 1))


def row(streams: int, chunks_s: float, late: float, tbt: float = 0.0) -> Row:
    return Row(OURS, streams, chunks_s, "-", 0.0, late, 0.0, tbt, 0.0, 0.0)


def test_a_load_is_carried_if_most_sweeps_kept_reads_and_gaps_within_the_bound() -> None:
    rows = [row(10, 500, 0.5), row(10, 510, 2), row(10, 520, 0.9)]
    rows += [row(20, 1000, 0.1), row(20, 1000, 3), row(20, 1000, 0.1, tbt=4)]
    assert carried(rows, OURS, 1.0) == 510
    assert carried(rows, OURS, 3.0) == 1000
    assert carried(rows, OURS, 0.01) == 0


def test_figures_of_a_result_file_are_those_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    run = vllm_run(
        [],
        num_prompts=2,
        input_lens=[5, 5],
        output_lens=[3, 3],
        start_times=[10.0, 10.5],
        queue_times=[0.0, 0.1],
        ttfts=[0.2, 0.4],
        itls=[[0.01, 0.03], [0.02, 0.02]],
        latencies=[0.24, 0.44],
        errors=["", ""],
        generated_texts=["x", "x"],
        median_ttft_ms=300.0, p99_ttft_ms=398.0, median_itl_ms=20.0, p99_itl_ms=29.7,
        median_tpot_ms=20.0, output_throughput=6.0,
    )  # fmt: skip
    path.write_text(json.dumps(run))
    read = recorded(path)
    # From the commit the second first token takes 0.1 s more; from 10.0 to 10.94 s there are six tokens.
    ours = (350.0, 497.0, 20.0, 29.7, 20.0, 6 / 0.94)
    assert read.figures() == pytest.approx(ours)
    assert own_of_vllm(path) == pytest.approx((300.0, 398.0, 20.0, 29.7, 20.0, 6.0))
    assert read.off_ms(rate=2.0) == pytest.approx(100.0)


def test_figures_agree_where_the_ranges_of_the_rounds_overlap() -> None:
    ours = [Figures(1, 1, 1, 1, 1, 100), Figures(2, 2, 2, 2, 2, 102)]
    theirs = [Figures(2, 3, 1, 1, 1, 90), Figures(3, 4, 1, 1, 1, 99)]
    reported = agreement("peer", theirs, ours)
    assert reported.startswith("- peer: all agree with ours but TTFT p99 (+133.3%), tokens/s (-6.4%)")


def asked(port: int, path: str, body: dict[str, Any] | None = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{port}{path}", data), timeout=WAIT_S
    ) as answer:
        found: bytes = answer.read()
    return found


@pytest.mark.system
def test_the_server_that_keeps_the_truth_takes_what_the_clients_send() -> None:
    with truth_server(1000.0, min(os.sched_getaffinity(0))) as port:
        assert json.loads(asked(port, "/v1/models"))["data"][0]["id"] == "bench"
        parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
        for content, limit in (("plain", "max_tokens"), (parts, "max_completion_tokens")):
            body = {"messages": [{"role": "user", "content": content}], limit: 4, "ignore_eos": True}
            assert asked(port, "/v1/chat/completions", body).count(b'"content":"word "') == 4
        truth = truth_of(port)
        assert {prompt: len(times) for prompt, times in truth.items()} == {"plain": 4, "one two": 4}
        assert all(times == sorted(times) for times in truth.values())
        assert truth_of(port) == {}
