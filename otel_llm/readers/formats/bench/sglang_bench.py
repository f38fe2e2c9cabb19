"""Result files of `python -m sglang.bench_serving --output-details`: JSON lines, one run of the benchmark each.

Form: SGLang 0.5.23, `bench_serving.py`. No start time is stored: each request begins at 0 of an axis of its own, and
neither load nor windows are known. The native backend divides the gap before a chunk by its tokens and repeats it as
many times: a run of equal gaps is one chunk, which arrived at the end of the run. The OpenAI backends' gaps are those
between chunks, whose numbers of tokens are not stored.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from otel_llm.core.limits import MAX_TOKENS
from otel_llm.readers.formats.bench.measured import (
    EntryError,
    MeasuredRequest,
    chunk_arrivals,
    count,
    entries_of,
    member,
    run_streams,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from otel_llm.readers.assemble.resolved import Assembled
    from otel_llm.readers.formats.form import Head
    from otel_llm.readers.io.skipped import Skipped

FORM: Final = "sglang-bench"
_LISTS: Final = frozenset({"itls"})
_COLUMNS: Final = ("ttfts", "itls", "input_lens", "output_lens", "errors")
_NO_TIMES: Final = (
    "no {missing}: without --output-details SGLang keeps no request's times; run `python -m sglang.bench_serving` "
    "again with --output-details"
)


def sniff(head: Head) -> bool:
    """Tell whether a file has results of SGLang's benchmark, detailed or not."""
    own = {"server_info", "total_output_tokens_retokenized", "sharegpt_output_len"}
    return "dataset_name" in head.keys and "model_id" not in head.keys and not head.keys.isdisjoint(own)


def read(path: Path, chunks: Iterable[bytes], skipped: Skipped) -> Iterator[Assembled]:
    """Yield the requests of every run in a file, in order of dispatch, each at 0 of its own axis.

    Raises:
        InputError: no run of the file has the times of its requests.
    """
    yield from run_streams(path, chunks, skipped, _LISTS, entries=_entries, build=_stream, clock="no_start_times")


def _entries(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    ttfts = run.get("ttfts")
    missing = [name for name in ("ttfts", "output_lens", "errors") if not isinstance(run.get(name), list)]
    if missing or not isinstance(ttfts, list):
        raise EntryError(_NO_TIMES.format(missing=", ".join(missing)))
    return entries_of(run, _COLUMNS, len(ttfts))


def _stream(run: Mapping[str, Any], index: int, entry: Mapping[str, Any]) -> Assembled:
    gaps = [] if entry["itls"] is None else entry["itls"]
    error = entry["errors"]
    if not isinstance(error, str):
        raise EntryError("errors is no text")
    times_ns = chunk_arrivals(0, entry["ttfts"], gaps, ("ttfts", "itls"))
    basis = "chunk"
    if times_ns and text(run.get("backend")) == "sglang":
        times_ns, basis = _of_runs(times_ns, gaps, count(entry["output_lens"]) or 0)
    request = MeasuredRequest(
        FORM,
        f"{run.get('duration')}/{index}",
        send_ns=None,
        commit_ns=0,
        # The client's latency ends with the last chunk, as does a completed stream; for others it is not stored.
        end_ns=times_ns[-1] if times_ns and not error else None,
        outcome="error" if error else "completed",
        model=text(member(run.get("server_info"), "model_path")),
        input_tokens=count(entry["input_lens"]),
        output_tokens=count(entry["output_lens"]),
    )
    return request.timed(times_ns, "chunk" if error else basis)


def _of_runs(every_ns: Sequence[int], gaps: Sequence[float], tokens: int) -> tuple[list[int], str]:
    """Return the token times, each run of equal gaps at its end; the first chunk has the remaining tokens."""
    first = tokens - len(gaps)
    known = 0 < first <= MAX_TOKENS
    times_ns = [every_ns[0]] * (first if known else 1)
    at = 0
    for _, run in groupby(gaps):
        size = sum(1 for _ in run)
        at += size
        times_ns += [every_ns[at]] * size
    return times_ns, "exact" if known else "chunk"
