"""The figures of a run: as a client states them itself, and by the audit of its result file; times in ms."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from otel_llm.audit.load import load

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


class Figures(NamedTuple):
    """TTFT and the gaps between chunks (ITL, ours: TBT), p50 and p99; the median TPOT; output tokens/s."""

    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    tpot_p50: float
    throughput: float


@dataclass(frozen=True)
class Stream:
    """One request of a result file: ns on the file's clock."""

    commit_ns: int
    times_ns: list[int]
    outcome: str
    input_tokens: int | None


class Recorded(NamedTuple):
    """A result file as the audit reads it: the streams in order of commit, and the throughput, tokens/s."""

    streams: list[Stream]
    throughput: float

    def figures(self) -> Figures:
        """Return the figures by the audit's definitions: TTFT begins with the commit; every gap counts."""
        whole = [one for one in self.streams if one.outcome == "completed" and len(one.times_ns) > 1]
        ttft = [one.times_ns[0] - one.commit_ns for one in whole]
        gaps = np.concatenate([np.diff(one.times_ns) for one in whole])
        tpot = [(one.times_ns[-1] - one.times_ns[0]) / (len(one.times_ns) - 1) for one in whole]
        of_ttft, of_gaps = (np.percentile(one, (50, 99)) / 1e6 for one in (ttft, gaps))
        return Figures(*map(float, (*of_ttft, *of_gaps, np.median(tpot) / 1e6, self.throughput)))

    def off_ms(self, rate: float) -> float:
        """Return how far the commits are from a constant rate at most, beside the first."""
        at_ns = np.array([one.commit_ns for one in self.streams])
        return float(np.abs(at_ns - at_ns[0] - np.arange(len(at_ns)) * 1e9 / rate).max()) / 1e6


def recorded(path: Path) -> Recorded:
    """Read a result file or a recording by the audit."""
    batches: list[pa.RecordBatch] = []
    audit = load(path, windows=False, class_name="chat", observe=batches.append)
    names = ("commit_ns", "times_ns", "outcome", "input_tokens")
    rows = [row for batch in batches for row in batch.select(names).to_pylist()]
    streams = sorted((Stream(**row) for row in rows), key=lambda one: one.commit_ns)
    (places,) = audit.summary()["classes"].values()
    (figures,) = places.values()
    return Recorded(streams, float(figures["throughput_tok_s"]))


def own_of_vllm(result: Path) -> Figures:
    """Return what `vllm bench serve` prints and saves."""
    reported: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    names = "median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms", "median_tpot_ms", "output_throughput"
    return Figures(*(float(reported[name]) for name in names))


def own_of_aiperf(results: Path) -> Figures:
    """Return what AIPerf prints and saves: its `inter_chunk_latency` is the gaps', its ITL is TPOT."""
    reported: dict[str, Any] = json.loads((results / "profile_export_aiperf.json").read_text(encoding="utf-8"))
    first, gaps, tpot = (
        reported[name] for name in ("time_to_first_token", "inter_chunk_latency", "inter_token_latency")
    )
    throughput = reported["output_token_throughput"]["avg"]
    return Figures(first["p50"], first["p99"], gaps["p50"], gaps["p99"], tpot["p50"], throughput)
