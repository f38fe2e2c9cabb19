"""Result files of real runs, kept under `fixtures`: what the tools say of their requests is what our rows say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.formats.bench_figures import check_aiperf, check_vllm
from support.formats.bench_read import judged, read

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize(("name", "chunks"), [("vllm_completions.json", 24), ("vllm_chat.json", 25)])
def test_vllms_own_figures(name: str, chunks: int) -> None:
    path = FIXTURES / name
    run = json.loads(path.read_text())
    streams, skipped = read(path.read_bytes(), path)
    check_vllm(run, streams)
    # This version counts the chunk that only names the role, and the server sends 24 tokens.
    assert {one.tokens for one in streams} == {chunks}
    assert {one.resolved.token_basis for one in streams} == {"chunk"}
    assert skipped.anomalies == {"anomaly.clock_unanchored": 6}
    assert {row["model"] for row in judged(streams)} == {"tiny"}


def test_aiperfs_own_figures() -> None:
    folder = FIXTURES / "aiperf"
    found = []
    for name in ("profile_export.jsonl", "profile_export_raw.jsonl"):
        streams, skipped = read((folder / name).read_bytes(), folder / name)
        assert not skipped.counts
        found.append(streams)
    check_aiperf(folder, *found)
    bases = [[one.resolved.token_basis for one in streams if one.resolved.outcome != "error"] for streams in found]
    assert sorted(filter(None, bases[0])) == ["chunk"] * 5
    assert set(bases[1]) == {"exact", "chunk"}


def test_inference_perfs_own_figures() -> None:
    folder = FIXTURES / "inference_perf"
    path = folder / "per_request_lifecycle_metrics.json"
    entries = json.loads(path.read_text())
    summary = json.loads((folder / "summary_lifecycle_metrics.json").read_text())["successes"]["latency"]
    streams, skipped = read(path.read_bytes(), path)
    rows = judged(streams)
    assert [row["outcome"] for row in rows] == ["completed"] * 5 + ["error"]
    # With thoughts, which are no chunks to it, counted by its own tokenizer; counted in every chunk; plain.
    assert [row["token_basis"] for row in rows] == ["estimated", "exact", "chunk", "estimated", "exact", None]
    assert [row["tokens"] for row in rows] == [8, 16, 8, 8, 16, None]
    for row, entry in zip(rows[:5], entries, strict=False):
        assert row["e2e_s"] == pytest.approx(entry["end_time"] - entry["start_time"], abs=1e-8)
    for name, ours in (("time_to_first_token", "ttft_s"), ("request_latency", "e2e_s")):
        values = [row[ours] for row in rows[:5]]
        assert np.mean(values) == pytest.approx(summary[name]["mean"], abs=1e-8)
        assert np.median(values) == pytest.approx(summary[name]["median"], abs=1e-8)
    assert skipped.anomalies == {"anomaly.clock_unanchored": 6, "anomaly.token_times_not_kept": 1}


def test_sglangs_own_figures() -> None:
    path = FIXTURES / "sglang.jsonl"
    run = json.loads(path.read_text())
    streams, skipped = read(path.read_bytes(), path)
    rows = judged(streams)
    assert [row["outcome"] for row in rows] == ["completed"] * 4 + ["error"]
    # Chunks of 2, 1, 3, 1 and 1 tokens, as the server sent them to every other request.
    assert [len(set(one.events.expanded()[0])) for one in streams] == [8, 5, 8, 5, 0]
    burst = streams[1].events.expanded()[0]
    assert [burst.count(time_ns) for time_ns in sorted(set(burst))] == [2, 1, 3, 1, 1]
    assert {row["token_basis"] for row in rows[:4]} == {"exact"}
    assert [row["ttft_s"] for row in rows[:4]] == pytest.approx(run["ttfts"][:4], abs=1e-8)
    assert np.mean([row["ttft_s"] for row in rows[:4]]) * 1e3 == pytest.approx(run["mean_ttft_ms"], abs=1e-4)
    # Its ITL is each gap spread over the chunk's tokens: the same sum, from the first chunk to the last.
    for one, spread in zip(streams, run["itls"], strict=True):
        if spread:
            assert (one.events.expanded()[0][-1] - one.events.expanded()[0][0]) / 1e9 == pytest.approx(
                sum(spread), abs=1e-8
            )
    assert skipped.anomalies == {"anomaly.no_start_times": 5, "anomaly.end_unknown": 1}


def test_guidellms_own_figures() -> None:
    path = FIXTURES / "guidellm.json"
    entries = json.loads(path.read_text())["benchmarks"][0]["requests"]["successful"]
    rows = judged(read(path.read_bytes(), path)[0])
    for row, entry in zip(rows, entries, strict=True):
        timings = entry["info"]["timings"]
        waited_s = timings["request_start"] - timings["targeted_start"]
        # Floats of seconds since 1970: a quarter of a microsecond each.
        assert row["ttft_s"] == pytest.approx(entry["time_to_first_token_ms"] / 1e3 + waited_s, abs=2e-6)
        assert row["e2e_s"] == pytest.approx(entry["request_latency"] + waited_s, abs=2e-6)
        assert (row["tokens"], row["idle_s"], row["met"], row["model"]) == (None, None, None, "tiny")
