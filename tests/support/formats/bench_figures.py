"""The figures that benchmark tools give of their own runs, beside what our rows say of the same requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_llm.formats.assemble.resolved import Assembled

APART_S = 1e-8
"""Times are rounded to ns here, and are sums of floats there."""


def sends_ns(run: dict[str, Any]) -> list[int]:
    return [round(start * 1e9) for start in run["start_times"]]


def check_vllm(run: dict[str, Any], streams: Sequence[Assembled]) -> None:
    """Compare vLLM's TTFT, ITL and latency with ours, per request and in the means and percentiles that it prints.

    Its TTFT begins with the sending, ours with the commit: between them is the time in the client's queue. Its ITL is
    our TBT between chunks; its percentiles are interpolated, its aggregates those of requests without an error.
    """
    good = [index for index, error in enumerate(run["errors"]) if not error]
    ttfts, gaps = [], []
    for index, (one, sent_ns) in enumerate(zip(streams, sends_ns(run), strict=True)):
        commit_ns = one.resolved.commit_ns
        assert commit_ns is not None
        assert (sent_ns - commit_ns) / 1e9 == pytest.approx(run["queue_times"][index], abs=APART_S)
        if index not in good:
            assert one.resolved.outcome == "error"
            continue
        assert one.resolved.outcome == "completed"
        assert one.resolved.end_ns is not None
        ttfts.append((one.events.expanded()[0][0] - sent_ns) / 1e9)
        mine = [(after - before) / 1e9 for before, after in pairwise(one.events.expanded()[0])]
        gaps += mine
        assert ttfts[-1] == pytest.approx(run["ttfts"][index], abs=APART_S)
        assert mine == pytest.approx(run["itls"][index], abs=APART_S)
        assert (one.resolved.end_ns - sent_ns) / 1e9 == pytest.approx(run["latencies"][index], abs=APART_S)
    assert run["completed"] == len(good)
    compared = [("ttft", ttfts), ("itl", gaps)]
    exact = [one.events.expanded()[0] for one in streams if one.resolved.token_basis == "exact"]
    if len(exact) == len(good):
        compared.append(("tpot", [(times[-1] - times[0]) / 1e9 / (len(times) - 1) for times in exact]))
    for name, values in compared:
        assert np.mean(values) * 1e3 == pytest.approx(run[f"mean_{name}_ms"], abs=1e-4)
        assert np.percentile(values, 50) * 1e3 == pytest.approx(run[f"median_{name}_ms"], abs=1e-4)
        assert np.percentile(values, 99) * 1e3 == pytest.approx(run[f"p99_{name}_ms"], abs=1e-4)


def check_aiperf(folder: Path, records: Sequence[Assembled], raw: Sequence[Assembled]) -> None:
    """Compare AIPerf's TTFT, inter-chunk latency and request latency with ours, read from its records and raw records.

    Its TTFT begins with the sending, ours with the credit; its chunks are those with text or thoughts.
    """
    lines = [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]
    by_id = {one.resolved.key: one for one in raw}
    assert len(lines) == len(records) == len(raw)
    ttfts, gaps = [], []
    for line, one in zip(lines, records, strict=True):
        other = by_id[one.resolved.key]
        metadata, metrics = line["metadata"], line["metrics"]
        assert one.resolved.commit_ns == other.resolved.commit_ns == metadata["credit_issued_ns"]
        assert one.resolved.end_ns == other.resolved.end_ns == metadata["request_end_ns"]
        assert one.resolved.outcome == other.resolved.outcome
        if "error" in line:
            assert one.resolved.outcome == "error"
            continue
        assert one.resolved.input_tokens == other.resolved.input_tokens == metrics["usage_prompt_tokens"]["value"]
        assert other.tokens == metrics["usage_completion_tokens"]["value"]
        assert other.resolved.token_basis in {"exact", "chunk"}
        # The same instants, but that the raw records say how many tokens each chunk had: as many in each of a reply.
        # Chunks that AIPerf read at once have one instant.
        assert one.events.expanded()[0] == other.events.expanded()[0][:: other.tokens // one.tokens]
        sent_ns = metadata["request_start_ns"]
        ttfts.append((one.events.expanded()[0][0] - sent_ns) / 1e6)
        gaps += [(after - before) / 1e6 for before, after in pairwise(one.events.expanded()[0])]
        assert ttfts[-1] == pytest.approx(metrics["time_to_first_token"]["value"], abs=1e-5)
        assert (one.events.expanded()[0][-1] - sent_ns) / 1e6 == pytest.approx(
            metrics["request_latency"]["value"], abs=1e-5
        )
        apart_ms = (other.events.expanded()[0][-1] - other.events.expanded()[0][0]) / 1e6 / (other.tokens - 1)
        assert apart_ms == pytest.approx(metrics["inter_token_latency"]["value"], abs=1e-5)
        thoughts = 0 if other.kinds is None else sum(kind == 1 for kind in other.kinds)
        shown_ns = other.events.expanded()[0][thoughts]
        before = bytes(int(time_ns < shown_ns) for time_ns in one.events.expanded()[0])
        assert one.kinds == (before if any(before) else None)
        shown_ms = (shown_ns - sent_ns) / 1e6
        assert shown_ms == pytest.approx(metrics["time_to_first_output_token"]["value"], abs=1e-5)
    summary = json.loads((folder / "profile_export_aiperf.json").read_text())
    for name, values in (("time_to_first_token", ttfts), ("inter_chunk_latency", gaps)):
        assert np.mean(values) == pytest.approx(summary[name]["avg"], abs=1e-4)
        assert np.percentile(values, 50) == pytest.approx(summary[name]["p50"], abs=1e-4)
        assert np.percentile(values, 99) == pytest.approx(summary[name]["p99"], abs=1e-4)
