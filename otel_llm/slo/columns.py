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
    "start_unix_nano",
    "tokens",
    "tokens_read",
    "tokens_recorded",
    "token_basis",
    "coverage",
    "ttft_s",
    "ttfo_s",
    "e2e_s",
    "queue_s",
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

JUDGED_COLUMNS: Final = REQUEST_COLUMNS[REQUEST_COLUMNS.index("normalized_latency_s") :]
"""The columns that are null for a request with missing tokens: it cannot be judged (coverage below 1)."""

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
    "ttft_p50_s",
    "ttft_p99_s",
    "fluid_token_rate",
)
"""A class at one place of measurement in the summary, with its figures."""
