"""Tables of a fleet's requests and windows, drawn by chance: as many as a report is asked to bear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from otel_llm.audit.tables import frame
from otel_llm.slo.metrics import REQUESTS, WINDOWS

T0_NS = 1_790_000_000_000_000_000
TYPES = {"text": "string", "integer": "Int64", "real": "Float64", "truth": "boolean"}


def table(columns: dict[str, Any], kinds: dict[str, Any], rows: int) -> pd.DataFrame:
    """Return a table of these columns in their nullable types; a column not given is null."""
    return pd.DataFrame(
        {
            name: pd.Series(columns.get(name, [None] * rows), dtype=TYPES[kind], index=range(rows))
            for name, kind in kinds.items()
        }
    )


def requests_of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return a table of requests from what matters of each; the rest is null."""
    blank: dict[str, Any] = dict.fromkeys(REQUESTS)
    given = [blank | {"slo_class": "chat", "measured_at": "client"} | row for row in rows]
    return frame(given, REQUESTS)


def windows_of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return a table of windows of 10 s from what matters of each; counts and sums not given are 0."""
    blank: dict[str, Any] = dict.fromkeys(WINDOWS, 0)
    identity = {"slo_class": "chat", "model": "m", "instance": "i", "measured_at": "client", "window_s": 10.0}
    return frame([blank | identity | row for row in rows], WINDOWS)


def fleet(
    count: int, *, instances: int = 8, window_s: float = 10.0, over_s: float = 3600.0, seed: int = 7
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the tables of `count` requests to a fleet whose readers wait more when it is busy."""
    rng = np.random.default_rng(seed)
    # Two waves an hour; the last instance gets thrice its share from the middle on.
    start_s = np.sort(over_s * rng.beta(1.6, 1.4, count))
    instance = rng.integers(0, instances, count)
    instance[(rng.random(count) < 0.2) & (start_s > over_s / 2)] = instances - 1
    load = (
        0.5 + 0.5 * np.sin(start_s / over_s * 4 * np.pi) + 1.2 * ((instance == instances - 1) & (start_s > over_s / 2))
    )
    voice = rng.random(count) < 0.3
    tokens = rng.integers(20, 600, count)
    gap_s = 0.012 * (1 + load) * rng.lognormal(0, 0.25, count)
    ttft_s = 0.15 * (1 + 2 * load) * rng.lognormal(0, 0.5, count)
    stall_s = np.where(
        rng.random(count) < 0.08 * (1 + 3 * load), rng.exponential(1 + 2 * load + 16 * np.maximum(0, load - 1.2)), 0.0
    )
    idle_decode_s = np.maximum(0, stall_s - rng.exponential(1.0, count))
    idle_s = np.maximum(0.0, ttft_s + idle_decode_s - 0.2)
    e2e_s = ttft_s + gap_s * tokens + stall_s
    misses = np.ceil(stall_s / 0.05).astype(int)
    met = idle_s <= 1.0
    start_ns = T0_NS + (start_s * 1e9).astype(np.int64)
    names = np.array([f"vllm-{place:02d}" for place in range(instances)])
    requests = table(
        {
            "trace_id": [f"{row:032x}" for row in range(count)],
            "span_id": [f"{row:016x}" for row in range(count)],
            "choice": np.zeros(count, int),
            "slo_class": np.where(voice, "voice", "chat"),
            "model": ["model"] * count,
            "instance": names[instance],
            "measured_at": ["client"] * count,
            "outcome": np.where(rng.random(count) < 0.02, "error", "completed"),
            "start_unix_nano": start_ns,
            "tokens": tokens,
            "tokens_read": tokens,
            "token_basis": np.where(rng.random(count) < 0.9, "exact", "chunk"),
            "coverage": np.ones(count),
            "ttft_s": ttft_s,
            "ttfo_s": ttft_s,
            "e2e_s": np.round(e2e_s, 9),
            "normalized_latency_s": e2e_s / tokens,
            "tpot_s": gap_s + stall_s / tokens,
            "tbt_p50_s": gap_s,
            "tbt_p99_s": gap_s * 2 + np.where(tokens < 100, stall_s, 0),
            "tbt_max_s": np.maximum(gap_s * 3, stall_s),
            "idle_s": idle_s,
            "idle_decode_s": idle_decode_s,
            "stalls": (idle_decode_s > 0).astype(int),
            "deadlines": tokens + misses,
            "deadline_misses": misses,
            "fluidity_index": tokens / (tokens + misses),
            "fluidity_line": tokens / (tokens + misses),
            "met": met,
            "benefit": tokens - 10 * idle_s,
        },
        REQUESTS,
        count,
    )
    return requests, _windows(requests, window_s)


def _windows(requests: pd.DataFrame, window_s: float) -> pd.DataFrame:
    """Return windows that hold each request's figures where it is halfway through."""
    width_ns = round(window_s * 1e9)
    middle = requests["start_unix_nano"] + (requests["e2e_s"] * 5e8).round().astype("Int64")
    group = {"window_start_unix_nano": middle // width_ns * width_ns}
    cells = requests.assign(
        **group,
        met_true=requests["met"].astype("Int64"),
        met_false=(~requests["met"]).astype("Int64"),
        throughput_tok_s=requests["tokens_read"] / window_s,
        goodput_tok_s=requests["tokens_read"].where(requests["met"], 0) / window_s,
        smooth_goodput_tok_s=requests["benefit"] / window_s,
        idle_s_sum=requests["idle_s"],
        requests_started=1,
        requests_ended=1,
    )
    keys = ["window_start_unix_nano", "slo_class", "model", "instance", "measured_at"]
    zeros = dict.fromkeys(("met_null", "incomplete", "aborted"), 0)
    sums = [
        "requests_started", "requests_ended", "met_true", "met_false", "tokens_read", "throughput_tok_s",
        "goodput_tok_s", "smooth_goodput_tok_s", "idle_s_sum",
    ]  # fmt: skip
    summed = cells.groupby(keys, sort=True)[sums].sum().reset_index().assign(window_s=window_s, **zeros)
    return table({name: summed[name] for name in summed.columns}, WINDOWS, len(summed))
