"""`request_level_metrics.json` of Etalon: one JSON object of parallel arrays.

Format: Etalon git d5f18de (2024-08), `etalon/metrics/request_level_metrics.py`. Seconds between readings of a monotonic
clock; no start times, no ids, no errors. `tbt` has a gap for each token: a chunk of n tokens is its gap and n - 1
zeros, counted by a tokenizer at the client's. The model stands in `config.json` beside the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_llm.formats.recordings.bench.measured import (
    EntryError,
    MeasuredRequest,
    chunk_arrivals,
    count,
    entries_of,
    member,
    nanoseconds,
    runs,
    sibling,
    text,
)
from otel_llm.formats.records import InputError
from otel_llm.slo.token_events import TokenEvents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from otel_llm.formats.assemble.resolved import Assembled
    from otel_llm.formats.io.skipped import Skipped
    from otel_llm.formats.recordings.recording_format import Head

FORM: Final = "etalon"
_KEYS: Final = frozenset(
    {
        *("num_prompt_tokens", "num_output_tokens", "num_total_tokens", "tpot", "ttft", "tbt", "end_to_end_latency"),
        *("normalized_end_to_end_latency", "output_throughput", "deadline_miss_rate", "min_tbt_deadline_to_meet"),
    }
)
_COLUMNS: Final = ("ttft", "tbt", "end_to_end_latency", "num_prompt_tokens")


def sniff(head: Head) -> bool:
    """Tell whether a file is Etalon's: of a large one only the first array is seen, which no other tool writes so."""
    return "num_prompt_tokens" in head.keys and head.keys <= _KEYS


def read(path: Path, chunks: Iterable[bytes], skipped: Skipped) -> Iterator[Assembled]:
    """Yield the requests, each at 0 of its own axis, in the order in which they ended.

    Outcomes are not stored: a request without a token is taken for an error, any other for completed and counted as
    `outcome_unknown`.

    Raises:
        InputError: the file has no times of tokens.
    """
    config = sibling(path, "config.json")
    model = text(member(config, "model")) or text(member(config, "client_config", "model"))
    for run in runs(path, chunks, skipped, frozenset({"tbt"})):
        ttfts = run.get("ttft")
        if not isinstance(ttfts, list):
            raise InputError(f"{path}: no ttft: give request_level_metrics.json of Etalon's output folder")
        try:
            entries = entries_of(run, _COLUMNS, len(ttfts))
        except EntryError as error:
            raise InputError(f"{path}: {error}") from None
        for index, entry in enumerate(entries):
            try:
                one = _stream(index, entry, model)
            except EntryError as error:
                skipped.bad(path, f"request {index}", error)
                continue
            skipped.anomaly("no_start_times")
            skipped.anomaly("end_unknown" if one.resolved.end_ns is None else "outcome_unknown")
            yield one


def _stream(index: int, entry: Mapping[str, Any], model: str | None) -> Assembled:
    times_ns = chunk_arrivals(0, entry["ttft"], entry["tbt"], ("ttft", "tbt"))
    latency = entry["end_to_end_latency"]
    end_ns = None
    if times_ns:
        end_ns = max(times_ns[-1], 0 if latency is None else nanoseconds(latency, "end_to_end_latency"))
    request = MeasuredRequest(
        FORM,
        f"{index}/{latency}",
        send_ns=None,
        commit_ns=0,
        end_ns=end_ns,
        outcome="completed" if times_ns else "error",
        model=model,
        input_tokens=count(entry["num_prompt_tokens"]),
    )
    return request.timed(TokenEvents(times_ns), "estimated")
