"""`profile_export.json` of genai-perf and perf_analyzer: experiments with their requests and replies.

Format: genai-perf 0.0.16, perf_analyzer git 263c5f6. Wall clock, ns. The stamps are those of network reads, which hold
several server-sent events or a part of one: an event's time is that of the read that completed it. Requests that failed
or did not end are not in the file, so their number is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_llm.formats.io.json_values import END, items
from otel_llm.formats.recordings.bench.measured import (
    EntryError,
    MeasuredRequest,
    count,
    json_of,
    member,
    nanoseconds,
    operation_of,
    stated_load,
    text,
)
from otel_llm.formats.recordings.bench.replies import read_events, read_whole
from otel_llm.formats.records import InputError
from otel_llm.instrumentation.parse.sse import SseParser

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from otel_llm.formats.assemble.resolved import Assembled
    from otel_llm.formats.io.skipped import Skipped
    from otel_llm.formats.recordings.bench.replies import Reply
    from otel_llm.formats.recordings.recording_format import Head

FORM: Final = "genai-perf"
_REQUESTS: Final = "experiments[].requests"
_ENTERED: Final = frozenset({"", "experiments", "experiments[]", _REQUESTS})


def sniff(head: Head) -> bool:
    """Tell whether a file has genai-perf's requests."""
    return head.keys >= {"experiments[].experiment", _REQUESTS}


def read(path: Path, chunks: Iterable[bytes], skipped: Skipped) -> Iterator[Assembled]:
    """Yield the requests of all experiments of a file, one by one.

    Raises:
        InputError: its requests have no times of replies.
    """
    number, readable, refusal = 0, 0, ""
    load_req_s = None
    for item in items(path, chunks, skipped, _ENTERED):
        if item.path == "experiments[].experiment":
            rated = member(item.value, "mode") == "request_rate"
            load_req_s = stated_load(member(item.value, "value")) if rated else None
        elif item.path == "experiments[]" and item.value is END:
            skipped.end_run(path, load_req_s)
        if item.path != f"{_REQUESTS}[]":
            continue
        number += 1
        if not skipped.wants_run(path):
            readable += 1
            continue
        try:
            streams = _streams(number, item.value)
        except EntryError as error:
            refusal = refusal or str(error)
            skipped.bad(path, f"request {number} at byte {item.offset}", error)
            continue
        readable += 1
        # The tool drops failed requests, so these are not all there were.
        skipped.anomaly("failures_not_kept")
        yield from streams
    if refusal and not readable:
        raise InputError(f"{path}: {refusal}; run `genai-perf profile --streaming` with --service-kind openai")


def _streams(number: int, entry: Any) -> list[Assembled]:
    send_ns = nanoseconds(member(entry, "timestamp"), "timestamp", 1)
    stamps, outputs = member(entry, "response_timestamps"), member(entry, "response_outputs")
    if not isinstance(stamps, list) or not isinstance(outputs, list) or len(stamps) != len(outputs) or not stamps:
        raise EntryError("no time for each of its response_outputs")
    reads = [
        (nanoseconds(stamp, "response_timestamps", 1), _body(output))
        for stamp, output in zip(stamps, outputs, strict=True)
    ]
    payload = json_of(member(entry, "request_inputs", "payload"))
    request = MeasuredRequest(
        FORM,
        number if count(entry.get("sequence_id")) is None else f"{number}/{entry['sequence_id']}",
        send_ns=send_ns,
        commit_ns=send_ns,
        end_ns=max(at_ns for at_ns, _ in reads),
        outcome="completed",
        model=text(member(payload, "model")),
        operation=operation_of(payload),
    )
    return _reply(reads).assembled(request)


def _reply(reads: list[tuple[int, str]]) -> Reply:
    parser = SseParser()
    events: list[tuple[int, bytes]] = []
    before = ""
    for (before_ns, _), (at_ns, body) in zip([reads[0], *reads], reads, strict=False):
        if body.startswith("data:") and before.endswith(("}", "]")):  # an event without its blank line
            events += [(before_ns, event) for event in parser.feed(b"\n\n")]
        events += [(at_ns, event) for event in parser.feed(body.encode("utf-8", "replace"))]
        before = body or before
    events += [(reads[-1][0], event) for event in parser.end()]
    whole = "".join(body for _, body in reads)
    if not events and whole.lstrip().startswith("{"):
        return read_whole(reads[-1][0], whole)
    return read_events(events)


def _body(output: Any) -> str:
    body = member(output, "response")
    if not isinstance(body, str):
        raise EntryError("a response_outputs entry without the text of the response: not an OpenAI endpoint's")
    return body
