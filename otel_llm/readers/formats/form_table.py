"""The forms of recording that the audit reads, each told by its first bytes.

A form is a module with two functions: `looks(head)` says whether a file holds it, `read(path, chunks, skipped)` yields
what it holds: export requests for spans, `Assembled` streams for what is not spans. To add one, add it to
`known_forms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from otel_llm.readers.formats import clickhouse, csv_times, jaeger, parquet_files
from otel_llm.readers.formats.bench import (
    aiperf,
    etalon,
    genai_perf,
    guidellm,
    inference_perf,
    sglang_bench,
    vllm_bench,
)
from otel_llm.readers.io.json_walk import key_paths
from otel_llm.readers.otlp import otlp_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from otel_llm.readers.assemble.requests import Assembled
    from otel_llm.readers.io.skipped import RawRecord, Received, Skipped

LOOK_BYTES: Final = 256 * 2**10
"""How much of a file is looked at to tell its form: benchmark tools write their settings before the times."""


@dataclass(frozen=True)
class Head:
    """The first bytes of a file, decompressed: LOOK_BYTES of it, or all there is."""

    raw: bytes

    @cached_property
    def text(self) -> bytes:
        """Return the bytes without a byte order mark and leading blanks."""
        return self.raw.removeprefix(b"\xef\xbb\xbf").lstrip()

    @cached_property
    def keys(self) -> frozenset[str]:
        """Return where keys stand in the first JSON value, six brackets deep: `data`, `data[].traceID`.

        None if it is no JSON. A file's first line is its first value; an array's elements are `[]`: `[].start_time`.
        The look is bounded: a key behind LOOK_BYTES is not seen.
        """
        return key_paths(self.text) if self.text[:1] in (b"{", b"[") else frozenset()


class Looks(Protocol):
    """Say whether a file that begins so holds the form."""

    def __call__(self, head: Head, /) -> bool: ...  # noqa: D102


class Read(Protocol):
    """Yield what a file of the form holds.

    `path` names it in messages (`-` is standard input); `chunks` are its bytes, decompressed, from the first on.
    A broken part is counted in `skipped` and costs itself; `InputError` says that nothing of the file can be read.
    """

    def __call__(  # noqa: D102
        self, path: Path, chunks: Iterable[bytes], skipped: Skipped, /
    ) -> Iterator[RawRecord | Received | Assembled]: ...


class Form(NamedTuple):
    """A form of recording: its name in messages, and its two functions."""

    name: str
    looks: Looks
    read: Read


def known_forms() -> tuple[Form, ...]:
    """Return all forms, in the order in which they are tried: the first that a file looks like is read."""
    return (
        Form("OTLP records", otlp_files.looks_records, otlp_files.read_records),
        Form("Parquet", parquet_files.looks, parquet_files.read),
        Form("Jaeger JSON", jaeger.looks, jaeger.read),
        Form("ClickHouse rows", clickhouse.looks, clickhouse.read),
        Form("OTLP JSON", otlp_files.looks_json, otlp_files.read_json),
        Form("OTLP message", otlp_files.looks_message, otlp_files.read_message),
        Form("result of vLLM's benchmark", vllm_bench.looks, vllm_bench.read),
        Form("result of SGLang's benchmark", sglang_bench.looks, sglang_bench.read),
        Form("requests of AIPerf", aiperf.looks, aiperf.read),
        Form("requests of inference-perf", inference_perf.looks, inference_perf.read),
        Form("requests of genai-perf", genai_perf.looks, genai_perf.read),
        Form("requests of Etalon", etalon.looks, etalon.read),
        Form("report of GuideLLM", guidellm.looks, guidellm.read),
        Form("CSV of token times", csv_times.looks, csv_times.read),
    )
