"""Summaries of benchmark tools: averages and percentiles, without a time of any request.

They are recognised to name the file that an audit needs, and the setting of the tool that writes it. In a folder they
stand beside that file and are passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.formats.recordings.recording_format import read_head
from otel_llm.formats.records import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from otel_llm.formats.assemble.resolved import Assembled
    from otel_llm.formats.io.skipped import Skipped
    from otel_llm.formats.recordings.recording_format import Head


class _Summary(NamedTuple):
    """One kind of summary: its name, its JSON keys or the words of its first line as CSV, and the remedy."""

    what: str
    keys: frozenset[str]
    remedy: str
    words: tuple[bytes, ...] = ()


_AIPERF: Final = (
    "give profile_export.jsonl or profile_export_raw.jsonl (`aiperf profile --export-level records` or `raw`)"
)
_INFERENCE_PERF: Final = (
    "give per_request_lifecycle_metrics.json, which inference-perf writes with "
    "`report: {request_lifecycle: {per_request: true}}` in its config"
)
_GENAI_PERF: Final = "give profile_export.json (`genai-perf profile --streaming` with --service-kind openai)"
_VLLM: Final = "run `vllm bench serve` with --save-result --save-detailed, and give its result JSON"
_SWEEP: Final = (
    "run `vllm bench sweep serve` with --save-detailed in its --bench-cmd, and give one `run=N.json` or summary.json"
)
_SGLANG: Final = "run `python -m sglang.bench_serving` with --output-details, and give its JSON lines"
_GUIDELLM: Final = "give benchmarks.json (`guidellm run --output kind=json`)"
_TABLE: Final = (
    "of AIPerf give profile_export.jsonl (`aiperf profile --export-level records`), of genai-perf profile_export.json"
)

_SUMMARIES: Final = (
    _Summary("AIPerf's summary", frozenset({"aiperf_version", "schema_version"}), _AIPERF),
    _Summary("AIPerf's sweep", frozenset({"aggregation_type", "num_profile_runs"}), _AIPERF),
    _Summary("AIPerf's replies", frozenset({"schema_version", "data[].session_num"}), _AIPERF),
    _Summary("inference-perf's summary", frozenset({"load_summary", "successes"}), _INFERENCE_PERF),
    _Summary("genai-perf's summary", frozenset({"input_config", "request_latency"}), _GENAI_PERF),
    _Summary("vLLM's offline throughput", frozenset({"elapsed_time", "num_requests", "requests_per_second"}), _VLLM),
    _Summary("vLLM's offline latency", frozenset({"avg_latency", "latencies", "percentiles"}), _VLLM),
    _Summary("vLLM's figures for a dashboard", frozenset({"benchmark.name", "metric.benchmark_values"}), _VLLM),
    _Summary("SGLang's result of one batch", frozenset({"run_name", "batch_size", "input_len"}), _SGLANG),
    _Summary("vLLM's sweep", frozenset(), _SWEEP, (b"model_id", b"mean_ttft_ms")),
    _Summary("GuideLLM's table", frozenset(), _GUIDELLM, (b"Run Info,", b"Benchmark,")),
    _Summary("a benchmark's table of metrics", frozenset(), _TABLE, (b"Metric,", b"avg,", b"p99")),
)


def sniff(head: Head) -> bool:
    """Tell whether a file is a summary of a benchmark."""
    return _find(head) is not None


def read(path: Path, chunks: Iterable[bytes], skipped: Skipped) -> Iterator[Assembled]:
    """Refuse a summary; one in a folder is counted as a file without a recording.

    Raises:
        InputError: it was given by its name; the text says which file to give.
    """
    found = _find(read_head(chunks)[0])
    assert found is not None  # noqa: S101 - `sniff` was true
    refusal = f"{path}: {found.what}, which has no request's times; {found.remedy}"
    if path not in skipped.chosen:
        raise InputError(refusal)
    skipped.add("unknown_file", refusal)
    yield from ()


def _find(head: Head) -> _Summary | None:
    if head.keys:
        return next((one for one in _SUMMARIES if one.keys and head.own_keys >= one.keys), None)
    line = head.text.partition(b"\n")[0]
    return next((one for one in _SUMMARIES if one.words and all(word in line for word in one.words)), None)
