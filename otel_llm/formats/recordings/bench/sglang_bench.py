"""Result files of `python -m sglang.bench_serving --output-details`: JSON lines, one run of the benchmark each.

Format: SGLang 0.5.23, `bench_serving.py`. No start time is stored: each request begins at 0 of an axis of its own, and
neither load nor windows are known. The native backend divides the gap before a chunk by its tokens and repeats it as
many times: a run of equal gaps is one chunk, which arrived at the end of the run. The gaps of all other backends are
those between chunks, whose numbers of tokens are not stored. `output_lens` is the server's count at the native backend,
and the length asked for at `trt` and `truss`. At the others it is the server's count if the server states its usage in
the chunks, else the length asked for, and the file does not say which.
"""

from __future__ import annotations

from array import array
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from otel_llm.core.limits import MAX_TOKENS
from otel_llm.formats.recordings.bench.measured import (
    EntryError,
    MeasuredRequest,
    chunk_arrivals,
    count,
    entries_of,
    member,
    run_streams,
    text,
)
from otel_llm.slo.token_events import TokenEvents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from otel_llm.formats.assemble.resolved import Assembled
    from otel_llm.formats.io.skipped import Skipped
    from otel_llm.formats.recordings.recording_format import Head

FORM: Final = "sglang-bench"
_NATIVE: Final = frozenset({"sglang", "sglang-native"})
"""The backends of `ASYNC_REQUEST_FUNCS` that call `/generate`."""
_ASKED_ONLY: Final = frozenset({"trt", "truss"})
_CHUNKS_ARE_TOKENS: Final = 0.05
"""As far as the client's tokenizer may be from the number of chunks if each holds one token, as a share."""
_LISTS: Final = frozenset({"itls"})
_COLUMNS: Final = ("ttfts", "itls", "input_lens", "output_lens", "errors")
_NO_TIMES: Final = (
    "no {missing}: without --output-details SGLang keeps no request's times; run `python -m sglang.bench_serving` "
    "again with --output-details"
)


def sniff(head: Head) -> bool:
    """Tell whether a file has results of SGLang's benchmark, detailed or not."""
    own = {"server_info", "total_output_tokens_retokenized", "sharegpt_output_len"}
    keys = head.own_keys
    return "dataset_name" in keys and "model_id" not in keys and not keys.isdisjoint(own)


def read(path: Path, chunks: Iterable[bytes], skipped: Skipped) -> Iterator[Assembled]:
    """Yield the requests of every run in a file, in order of dispatch, each at 0 of its own axis.

    Raises:
        InputError: no run of the file has the times of its requests.
    """
    yield from run_streams(
        path, chunks, skipped, _LISTS, entries=_entries, build=_stream, clock=lambda _: "no_start_times"
    )


def _entries(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    ttfts = run.get("ttfts")
    missing = [name for name in ("ttfts", "output_lens", "errors") if not isinstance(run.get(name), list)]
    if missing or not isinstance(ttfts, list):
        raise EntryError(_NO_TIMES.format(missing=", ".join(missing)))
    entries = entries_of(run, _COLUMNS, len(ttfts))
    return entries if _lengths_are_counts(run, entries) else [{**entry, "output_lens": None} for entry in entries]


def _lengths_are_counts(run: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether `output_lens` are taken for counts of tokens.

    They are not if the chunks agree better with what the client's own tokenizer found in all replies.
    """
    backend = text(run.get("backend"))
    if backend in _NATIVE:
        return True
    if backend in _ASKED_ONLY:
        return False
    found = count(run.get("total_output_tokens_retokenized"))
    lengths = [count(entry["output_lens"]) for entry in entries if entry["errors"] == ""]
    gaps = [entry["itls"] for entry in entries if entry["errors"] == "" and entry["ttfts"]]
    if not found or None in lengths or not all(isinstance(one, list | array) for one in gaps):
        return True
    of_chunks = abs(sum(1 + len(one) for one in gaps) - found)
    of_lengths = abs(sum(length or 0 for length in lengths) - found)
    return of_chunks >= of_lengths or of_chunks > _CHUNKS_ARE_TOKENS * found


def _stream(run: Mapping[str, Any], index: int, entry: Mapping[str, Any]) -> Assembled:
    gaps = [] if entry["itls"] is None else entry["itls"]
    error = entry["errors"]
    if not isinstance(error, str):
        raise EntryError("errors is no text")
    times_ns = chunk_arrivals(0, entry["ttfts"], gaps, ("ttfts", "itls"))
    events, basis = TokenEvents(times_ns), "chunk"
    if times_ns and text(run.get("backend")) in _NATIVE:
        events, basis = _of_runs(times_ns, gaps, count(entry["output_lens"]) or 0)
    request = MeasuredRequest(
        FORM,
        f"{run.get('duration')}/{index}",
        send_ns=None,
        commit_ns=0,
        # The client's latency ends with the last chunk, as does a completed stream; for others it is not stored.
        end_ns=events.times_ns[-1] if times_ns and not error else None,
        outcome="error" if error else "completed",
        model=text(member(run.get("server_info"), "model_path")),
        input_tokens=count(entry["input_lens"]),
        output_tokens=count(entry["output_lens"]),
    )
    return request.timed(events, "chunk" if error else basis)


def _of_runs(every_ns: Sequence[int], gaps: Sequence[float], tokens: int) -> tuple[TokenEvents, str]:
    """Return the token events, each run of equal gaps at its end; the first chunk has the remaining tokens."""
    first = tokens - len(gaps)
    known = 0 < first <= MAX_TOKENS
    times_ns, counts = [every_ns[0]], [first if known else 1]
    at = 0
    for _, run in groupby(gaps):
        size = sum(1 for _ in run)
        at += size
        times_ns.append(every_ns[at])
        counts.append(size)
    return TokenEvents(times_ns, None, counts), "exact" if known else "chunk"
