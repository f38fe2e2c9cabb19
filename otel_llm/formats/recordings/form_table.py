"""The table of the forms of recording, and which of them a file holds by its first bytes.

The docstring of `otel_llm/formats/recordings` lists the steps to add a form.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from otel_llm.formats.io.bytestream import MOST_EXPANSION, open_chunks
from otel_llm.formats.io.journal_format import is_journal
from otel_llm.formats.io.skipped import Skipped
from otel_llm.formats.recordings import clickhouse, csv_times, jaeger, otlp_files, parquet_files
from otel_llm.formats.recordings.bench import (
    aiperf,
    etalon,
    genai_perf,
    guidellm,
    inference_perf,
    sglang_bench,
    summaries,
    vllm_bench,
)
from otel_llm.formats.recordings.form import Form, Head, look

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def known_forms() -> tuple[Form, ...]:
    """Return all forms, in the order in which they are tried: the first whose `sniff` is true is read."""
    return (
        Form("OTLP records", otlp_files.sniff_records, otlp_files.read_records),
        Form("Parquet", parquet_files.sniff, parquet_files.read),
        Form("Jaeger JSON", jaeger.sniff, jaeger.read),
        Form("ClickHouse rows", clickhouse.sniff, clickhouse.read),
        Form("OTLP JSON", otlp_files.sniff_json, otlp_files.read_json),
        Form("OTLP message", otlp_files.sniff_message, otlp_files.read_message),
        Form("result of vLLM's benchmark", vllm_bench.sniff, vllm_bench.read, has_runs=True),
        Form("result of SGLang's benchmark", sglang_bench.sniff, sglang_bench.read, has_runs=True),
        Form("requests of AIPerf", aiperf.sniff, aiperf.read),
        Form("requests of inference-perf", inference_perf.sniff, inference_perf.read),
        Form("requests of genai-perf", genai_perf.sniff, genai_perf.read, has_runs=True),
        Form("requests of Etalon", etalon.sniff, etalon.read),
        Form("report of GuideLLM", guidellm.sniff, guidellm.read, has_runs=True),
        Form("summary of a benchmark", summaries.sniff, summaries.read),
        Form("CSV of token times", csv_times.sniff, csv_times.read),
    )


def form_of(path: Path) -> Form | None:
    """Return the form of a file; None if it is of no known form.

    Raises:
        InputError: it cannot be read.
    """
    return find_form(open_head(path, Skipped())[0])


def find_form(head: Head) -> Form | None:
    """Return the form for a file's head; None if it is of no known form."""
    return next((form for form in known_forms() if form.sniff(head)), None)


def open_head(path: Path, skipped: Skipped) -> tuple[Head, Iterator[bytes]]:
    """Return the first bytes of a file and all of its bytes, decompressed; broken compression is counted.

    Raises:
        InputError: it cannot be read.
    """

    def lost(reason: str, offset: int) -> None:
        skipped.add(reason, f"{path}: {reason} of the compressed file at byte {offset}")

    most_expansion = None if is_journal(path) else MOST_EXPANSION
    chunks = open_chunks(path, Counter(), lost, most_expansion=most_expansion)
    return look(chunks)
