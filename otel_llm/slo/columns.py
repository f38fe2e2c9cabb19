"""The columns of `--requests` and `--windows`, in the order in which they are written."""

from __future__ import annotations

from typing import Final

VERDICT_COLUMNS: Final = (
    "tokens",
    "tokens_read",
    "ttft_s",
    "ttfo_s",
    "e2e_s",
    "normalized_latency_s",
    "tpot_s",
    "tbt_p50_s",
    "tbt_p99_s",
    "tbt_max_s",
    "idle_s",
    "idle_decode_s",
    "stalls",
    "deadlines",
    "deadline_misses",
    "fluidity_index",
    "fluidity_line",
    "met",
    "benefit",
)
"""The columns that are computed from a request's times (the rest of a row is identity)."""

REQUEST_COLUMNS: Final = (
    "trace_id",
    "span_id",
    "choice",
    "slo_class",
    "model",
    "instance",
    "measured_at",
    "outcome",
    "finish_reason",
    "start_unix_nano",
    "input_tokens",
    "tokens",
    "tokens_read",
    "tokens_recorded",
    "token_basis",
    "coverage",
    "ttft_s",
    "ttfo_s",
    "e2e_s",
    "queue_s",
    "prefill_s",
    "relay_lag_s",
    "normalized_latency_s",
    "tpot_s",
    "tbt_p50_s",
    "tbt_p99_s",
    "tbt_max_s",
    "idle_s",
    "idle_decode_s",
    "stalls",
    "deadlines",
    "deadline_misses",
    "fluidity_index",
    "fluidity_line",
    "met",
    "benefit",
    "tenant",
)

WINDOW_COLUMNS: Final = (
    "window_start_unix_nano",
    "window_s",
    "slo_class",
    "model",
    "instance",
    "measured_at",
    "requests_started",
    "requests_ended",
    "met_true",
    "met_false",
    "met_null",
    "incomplete",
    "aborted",
    "tokens_read",
    "throughput_tok_s",
    "goodput_tok_s",
    "smooth_goodput_tok_s",
    "idle_s_sum",
    "fluidity_p50",
    "idle_p50_s",
    "idle_p99_s",
)

LATENCIES: Final = ("ttft", "itl", "tpot", "e2e")
"""The latencies of the summary: first token, gaps between tokens, time of a further token, whole reply."""
STATISTICS: Final = ("mean", "p50", "p90", "p99")
"""The statistics of each latency."""
LATENCY_FIGURES: Final = tuple(f"{one}_{statistic}_s" for one in LATENCIES for statistic in STATISTICS)

CLASS_COLUMNS: Final = (
    "slo_class",
    "measured_at",
    "requests",
    "tokens",
    "incomplete",
    "undetermined",
    "aborted_share",
    "attainment",
    "throughput_tok_s",
    "throughput_req_s",
    "goodput_tok_s",
    "goodput_req_s",
    "smooth_goodput_tok_s",
    "fluidity_p50",
    "fluidity_ok_share",
    "idle_p50_s",
    "idle_p99_s",
    "ttfo_p50_s",
    "ttfo_p99_s",
    *LATENCY_FIGURES,
    "fluid_token_rate",
)
"""A class at one place of measurement in the summary, with its figures."""
