"""The table of the formats of recording, and which of them a file holds by its first bytes.

The docstring of `otel_llm/formats/recordings` lists the steps to add a format.
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
from otel_llm.formats.recordings.recording_format import Format, Head, read_head

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def known_formats() -> tuple[Format, ...]:
    """Return all formats, in the order in which they are tried: the first whose `sniff` is true is read."""
    return (
        Format("OTLP records", otlp_files.sniff_records, otlp_files.read_records),
        Format("Parquet", parquet_files.sniff, parquet_files.read),
        Format("Jaeger JSON", jaeger.sniff, jaeger.read),
        Format("ClickHouse rows", clickhouse.sniff, clickhouse.read),
        Format("OTLP JSON", otlp_files.sniff_json, otlp_files.read_json),
        Format("OTLP message", otlp_files.sniff_message, otlp_files.read_message),
        Format("result of vLLM's benchmark", vllm_bench.sniff, vllm_bench.read, has_runs=True),
        Format("result of SGLang's benchmark", sglang_bench.sniff, sglang_bench.read, has_runs=True),
        Format("requests of AIPerf", aiperf.sniff, aiperf.read),
        Format("requests of inference-perf", inference_perf.sniff, inference_perf.read),
        Format("requests of genai-perf", genai_perf.sniff, genai_perf.read, has_runs=True),
        Format("requests of Etalon", etalon.sniff, etalon.read),
        Format("report of GuideLLM", guidellm.sniff, guidellm.read, has_runs=True),
        Format("summary of a benchmark", summaries.sniff, summaries.read),
        Format("CSV of token times", csv_times.sniff, csv_times.read),
    )


def format_of(path: Path) -> Format | None:
    """Return the format of a file; None if it is of no known format.

    Raises:
        InputError: it cannot be read.
    """
    return find_format(open_head(path, Skipped())[0])


def find_format(head: Head) -> Format | None:
    """Return the format for a file's head; None if it is of no known format."""
    return next((file_format for file_format in known_formats() if file_format.sniff(head)), None)


def open_head(path: Path, skipped: Skipped) -> tuple[Head, Iterator[bytes]]:
    """Return the first bytes of a file and all of its bytes, decompressed; broken compression is counted.

    Raises:
        InputError: it cannot be read.
    """

    def lost(reason: str, offset: int) -> None:
        skipped.add(reason, f"{path}: {reason} of the compressed file at byte {offset}")

    most_expansion = None if is_journal(path) else MOST_EXPANSION
    chunks = open_chunks(path, Counter(), lost, most_expansion=most_expansion)
    return read_head(chunks)
