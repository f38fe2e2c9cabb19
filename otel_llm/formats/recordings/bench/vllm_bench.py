"""Result files of `vllm bench serve --save-result --save-detailed`: one JSON object a run, parallel arrays.

Format: vLLM 0.32 and 0.33, `vllm/benchmarks/serve.py` and `lib/endpoint_request_func.py`. Times are seconds of a
monotonic clock of unknown origin. Before 2026 there were no `start_times`: each request then begins at 0 of an axis of
its own. `vllm bench sweep serve` writes an array of runs beside them. A request's gaps are those between chunks of the
stream, whose numbers of tokens are not stored, so a chunk is known to be one token only if there are as many of them
as tokens. A chunk of a chat without text counts there: a reply whose `output_lens` is 0 has no token, whatever came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_llm.formats.recordings.bench.measured import (
    EntryError,
    MeasuredRequest,
    chunk_arrivals,
    count,
    entries_of,
    lasted,
    nanoseconds,
    run_streams,
    text,
)
from otel_llm.slo.token_events import TokenEvents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from otel_llm.formats.assemble.resolved import Assembled
    from otel_llm.formats.io.skipped import Skipped
    from otel_llm.formats.recordings.recording_format import Head

FORM: Final = "vllm-bench"
_SETTINGS: Final = frozenset({"model_id", "tokenizer_id", "num_prompts"})
_LISTS: Final = frozenset({"itls"})
_COLUMNS: Final = (
    *("start_times", "ttfts", "itls", "input_lens", "output_lens", "latencies", "queue_times", "errors"),
    *("server_queue_times", "server_ttfts"),
)
_NO_TIMES: Final = (
    "no {missing}: without --save-detailed vLLM keeps no request's times; run `vllm bench serve` again with "
    "--save-result --save-detailed"
)


def sniff(head: Head) -> bool:
    """Tell whether a file is a result of `vllm bench serve`, detailed or not."""
    return head.own_keys >= _SETTINGS and not head.own_keys.isdisjoint({"backend", "endpoint_type"})


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
        clock=lambda run: "clock_unanchored" if _has_starts(run) else "no_start_times",
        failures="failed",
    )


def _requests(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parallel arrays of a run as one object a request."""
    ttfts = run.get("ttfts")
    missing = [name for name in ("ttfts", "input_lens", "errors") if not isinstance(run.get(name), list)]
    if missing or not isinstance(ttfts, list):
        raise EntryError(_NO_TIMES.format(missing=", ".join(missing)))
    return entries_of(run, _COLUMNS, len(run["start_times"] if _has_starts(run) else ttfts))


def _has_starts(run: Mapping[str, Any]) -> bool:
    return isinstance(run.get("start_times"), list)


def _stream(run: Mapping[str, Any], index: int, entry: Mapping[str, Any]) -> Assembled:
    queued_ns = 0 if entry["queue_times"] is None else nanoseconds(entry["queue_times"], "queue_times")
    timed = _has_starts(run)
    send_ns = nanoseconds(entry["start_times"], "start_times") if timed else queued_ns
    times_ns = chunk_arrivals(send_ns, entry["ttfts"], entry["itls"], ("ttfts", "itls"))
    error = entry["errors"]
    if not isinstance(error, str):
        raise EntryError("errors is no text")
    failed = error != "" or not times_ns
    latency = entry["latencies"]
    # A failed request's latency is always 0.
    end_ns = None if failed else times_ns[-1]
    if end_ns is not None and latency is not None:
        end_ns = max(end_ns, send_ns + nanoseconds(latency, "latencies"))
    tokens = count(entry["output_lens"])
    if tokens == 0 and not failed:
        times_ns = []
    request = MeasuredRequest(
        FORM,
        index if timed else f"{run.get('duration')}/{index}",
        send_ns=send_ns if timed else None,
        commit_ns=send_ns - queued_ns,
        end_ns=end_ns,
        outcome="error" if failed else "completed",
        model=text(run.get("model_id")),
        input_tokens=count(entry["input_lens"]),
        output_tokens=tokens,
        operation=_operation(run),
        queue_s=lasted(entry["server_queue_times"]),
        prefill_s=lasted(entry["server_ttfts"]),  # from the engine's scheduling of the request to its first token
    )
    return request.timed(TokenEvents(times_ns), "chunk")


def _operation(run: Mapping[str, Any]) -> str | None:
    backend = text(run.get("backend")) or text(run.get("endpoint_type")) or ""
    if "chat" in backend:
        return "chat"
    return "text_completion" if backend in ("openai", "vllm") else None
