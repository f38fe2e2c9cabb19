"""`per_request_lifecycle_metrics.json` of inference-perf: one JSON array, an element a request (or JSON lines of them).

Format: inference-perf v0.7, with the places of v0.4 and v0.5. Seconds of a monotonic clock of unknown origin. When a
request was due is measured there and not written: the commit is the sending. `chunk_times` are those of chunks with
content; `output_token_times` repeats a chunk's time once for each token that the client's own tokenizer finds in it.
v0.4 has a time for each server-sent event, framing included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_llm.core.limits import MAX_TOKENS
from otel_llm.formats.io.json_values import json_records
from otel_llm.formats.recordings.bench.measured import (
    EntryError,
    MeasuredRequest,
    count,
    json_of,
    member,
    nanoseconds,
    operation_of,
    text,
)
from otel_llm.formats.recordings.bench.replies import read_events
from otel_llm.instrumentation.parse.sse import SseParser
from otel_llm.slo.token_events import NO_EVENTS, TokenEvents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from otel_llm.formats.assemble.resolved import Assembled
    from otel_llm.formats.io.skipped import Skipped
    from otel_llm.formats.recordings.recording_format import Head

FORM: Final = "inference-perf"
_KEYS: Final = frozenset({"start_time", "end_time", "request"})
_NO_TIMES: Final = "no times of tokens: the API was not streamed, or inference-perf is older than v0.2"
_METRICS: Final = ("response_metrics", "response_info")
"""The members of `info` with the tokens of a reply: from v0.6 on, and in v0.5."""


def sniff(head: Head) -> bool:
    """Tell whether a file has inference-perf's requests."""
    return head.own_keys >= _KEYS


def read(path: Path, chunks: Iterable[bytes], skipped: Skipped) -> Iterator[Assembled]:
    """Yield the requests of a file one by one."""
    for number, (place, entry) in enumerate(json_records(path, chunks, skipped)):
        try:
            one, oddities = _stream(number, entry)
        except EntryError as error:
            where = f"line {place}" if isinstance(place, int) else place
            skipped.bad(path, f"request {number} at {where}", error)
            continue
        skipped.anomaly("clock_unanchored")
        for name in oddities:
            skipped.anomaly(name)
        yield one


def _stream(number: int, entry: Any) -> tuple[Assembled, list[str]]:
    if not isinstance(entry, dict):
        raise EntryError("no object")
    send_ns = nanoseconds(entry.get("start_time"), "start_time")
    end_ns = nanoseconds(entry.get("end_time"), "end_time")
    body = json_of(entry.get("request"))
    info = entry.get("info")
    asked = count(member(info, "input_tokens"))
    if asked is None:
        asked = count(member(info, "request_metrics", "text", "input_tokens"))
    failed = entry.get("error") is not None
    events, basis, oddities = (NO_EVENTS, "", []) if failed else _tokens(entry, body, end_ns)
    stated = [count(member(info, name, "server_usage", "completion_tokens")) for name in _METRICS]
    request = MeasuredRequest(
        FORM,
        number,
        send_ns=send_ns,
        commit_ns=send_ns,
        end_ns=max([end_ns, *events.times_ns]),
        outcome="error" if failed else "completed",
        model=text(member(body, "model")),
        input_tokens=asked,
        output_tokens=next((total for total in stated if total is not None), None),
        operation=operation_of(body),
    )
    if failed:
        # The earlier chunks are in the body, their times are dropped.
        return request.untimed(), ["token_times_not_kept"]
    return request.timed(events, basis), oddities


def _tokens(entry: Mapping[str, Any], request: Any, end_ns: int) -> tuple[TokenEvents, str, list[str]]:
    """Return the token times of a reply, how they were counted, and the anomalies."""
    info = entry.get("info")
    for name in _METRICS:
        metrics = member(info, name)
        if isinstance(metrics, dict):
            chunks, tokens = metrics.get("chunk_times"), metrics.get("output_token_times")
            counted = count(member(metrics, "server_usage", "completion_tokens"))
            if isinstance(chunks, list) and chunks:
                chunk_times_ns = _times(chunks, "chunk_times")
                if counted == len(chunks):
                    return TokenEvents(chunk_times_ns), "chunk", []
                if (running := _counted(chunk_times_ns, metrics.get("response_chunks"), counted)) is not None:
                    return running, "exact", []
                if isinstance(tokens, list) and tokens and tokens != chunks:
                    return TokenEvents(_times(tokens, "output_token_times")), "estimated", []
                return TokenEvents(chunk_times_ns), "chunk", []
            if isinstance(tokens, list) and tokens:
                return TokenEvents(_times(tokens, "output_token_times")), "estimated", []
            return _whole(request, metrics, counted, end_ns)
    stamps = member(info, "output_token_times")  # up to v0.4
    if isinstance(stamps, list) and stamps:
        return _of_events(_times(stamps, "output_token_times"), entry.get("response"))
    return _whole(request, info, None, end_ns)


def _whole(request: Any, metrics: Any, counted: int | None, end_ns: int) -> tuple[TokenEvents, str, list[str]]:
    """Return the tokens of an unstreamed reply: all at its end."""
    if member(request, "stream") is True or not isinstance(request, dict):
        raise EntryError(_NO_TIMES)
    tokens = count(member(metrics, "output_tokens")) if counted is None else counted
    if tokens is None or tokens > MAX_TOKENS:
        raise EntryError("a reply in one piece that does not say how many tokens it has")
    events = TokenEvents([end_ns], None, [tokens]) if tokens else NO_EVENTS
    return events, "estimated" if counted is None else "exact", []


def _of_events(stamps_ns: list[int], body: Any) -> tuple[TokenEvents, str, list[str]]:
    """Return the tokens among the events of a stream whose body is there; all events if it is not."""
    events: list[bytes] = []
    if isinstance(body, str):
        parser = SseParser()
        events = [*parser.feed(body.encode("utf-8", "replace")), *parser.end()]
    if len(events) == len(stamps_ns):
        streams = read_events(zip(stamps_ns, events, strict=True)).streams
        if len(streams) == 1:
            return streams[0].events._replace(kinds=None), streams[0].token_basis, []
    return TokenEvents(stamps_ns), "chunk", ["framing_counted"]


def _counted(chunk_times_ns: list[int], chunks: Any, counted: int | None) -> TokenEvents | None:
    """Return the token events of chunks that each hold the server's running count; None for any others."""
    if not isinstance(chunks, list) or len(chunks) != len(chunk_times_ns):
        return None
    events = [chunk.encode("utf-8", "replace") if isinstance(chunk, str) else b"" for chunk in chunks]
    try:
        streams = read_events(zip(chunk_times_ns, events, strict=True)).streams
    except EntryError:
        return None
    first = streams[0]
    # Otherwise there are several choices, or the server did not count in each chunk.
    alone = (len(streams), first.token_basis, first.tokens) == (1, "exact", counted)
    return first.events._replace(kinds=None) if alone else None


def _times(values: list[Any], name: str) -> list[int]:
    return [nanoseconds(value, name) for value in values]
