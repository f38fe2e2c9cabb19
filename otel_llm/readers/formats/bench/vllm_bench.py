"""Result files of `vllm bench serve --save-result --save-detailed`: one JSON object a run, parallel arrays.

Form: vLLM 0.32 and 0.33, `vllm/benchmarks/serve.py` and `lib/endpoint_request_func.py`. Times are seconds of a
monotonic clock of unknown origin. A request's gaps are those between chunks of the stream, whose numbers of tokens are
not stored, so a chunk is known to be one token only where there are as many of them as tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_llm.readers.formats.bench.measured import (
    NS_PER_S,
    EntryError,
    MeasuredRequest,
    chunk_arrivals,
    count,
    entries_of,
    nanoseconds,
    run_streams,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from otel_llm.readers.assemble.resolved import Assembled
    from otel_llm.readers.formats.form import Head
    from otel_llm.readers.io.skipped import Skipped

FORM: Final = "vllm-bench"
_SETTINGS: Final = frozenset({"model_id", "tokenizer_id", "num_prompts"})
_LISTS: Final = frozenset({"itls"})
_COLUMNS: Final = (
    *("start_times", "ttfts", "itls", "input_lens", "output_lens", "latencies", "queue_times", "errors"),
    "server_queue_times",
)
_NO_TIMES: Final = (
    "no {missing}: without --save-detailed vLLM keeps no request's times; run `vllm bench serve` again with "
    "--save-result --save-detailed"
)
_NO_STARTS: Final = "no start_times: written by a vLLM of before 2026, which does not say when a request was sent"


def sniff(head: Head) -> bool:
    """Tell whether a file is a result of `vllm bench serve`, detailed or not."""
    return head.keys >= _SETTINGS and not head.keys.isdisjoint({"backend", "endpoint_type"})


def read(path: Path, chunks: Iterable[bytes], skipped: Skipped) -> Iterator[Assembled]:
    """Yield the requests of every run in a file (`--append-result` writes one a line), in order of dispatch.

    Raises:
        InputError: no run of the file has the times of its requests.
    """
    yield from run_streams(
        path,
        chunks,
        skipped,
        _LISTS,
        entries=_requests,
        build=_stream,
        clock="clock_unanchored",
        failures="failed",
    )


def _requests(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parallel arrays of a run as one object a request."""
    missing = [name for name in ("ttfts", "input_lens", "errors") if not isinstance(run.get(name), list)]
    if missing:
        raise EntryError(_NO_TIMES.format(missing=", ".join(missing)))
    starts = run.get("start_times")
    if not isinstance(starts, list):
        raise EntryError(_NO_STARTS)
    return entries_of(run, _COLUMNS, len(starts))


def _stream(run: Mapping[str, Any], index: int, entry: Mapping[str, Any]) -> Assembled:
    send_ns = nanoseconds(entry["start_times"], "start_times")
    times_ns = chunk_arrivals(send_ns, entry["ttfts"], entry["itls"], ("ttfts", "itls"))
    error = entry["errors"]
    if not isinstance(error, str):
        raise EntryError("errors is no text")
    failed = error != "" or not times_ns
    queued_ns = 0 if entry["queue_times"] is None else nanoseconds(entry["queue_times"], "queue_times")
    latency = entry["latencies"]
    # A failed request's latency is always 0.
    end_ns = None if failed else times_ns[-1]
    if end_ns is not None and latency is not None:
        end_ns = max(end_ns, send_ns + nanoseconds(latency, "latencies"))
    server_queue = entry["server_queue_times"]
    request = MeasuredRequest(
        FORM,
        index,
        send_ns=send_ns,
        commit_ns=send_ns - queued_ns,
        end_ns=end_ns,
        outcome="error" if failed else "completed",
        model=text(run.get("model_id")),
        input_tokens=count(entry["input_lens"]),
        output_tokens=count(entry["output_lens"]),
        operation=_operation(run),
    )
    return request.timed(
        times_ns,
        "chunk",
        queue_s=None if server_queue is None else nanoseconds(server_queue, "server_queue_times") / NS_PER_S,
    )


def _operation(run: Mapping[str, Any]) -> str | None:
    backend = text(run.get("backend")) or text(run.get("endpoint_type")) or ""
    if "chat" in backend:
        return "chat"
    return "text_completion" if backend in ("openai", "vllm") else None
