"""AIPerf's `profile_export.jsonl` (a record a request) and `profile_export_raw.jsonl` (its replies, unprocessed).

Format: AIPerf 0.13.0, `common/models/record_models.py`. Wall clock, ns; a request's times come from one reading of its
worker's clocks. The commit is `credit_issued_ns`, when AIPerf decided to send. A record has the gaps between chunks of
content, a raw record every server-sent event: they are counted by the rules of the instrumentation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from otel_llm.formats.io.json_values import json_records
from otel_llm.formats.recordings.bench.measured import (
    EntryError,
    MeasuredRequest,
    arrivals,
    count,
    member,
    nanoseconds,
    operation_of,
    sibling,
    text,
)
from otel_llm.formats.recordings.bench.replies import read_events, read_whole
from otel_llm.slo.classes import CONTENT, REASONING
from otel_llm.slo.token_events import TokenEvents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from otel_llm.formats.assemble.resolved import Assembled
    from otel_llm.formats.io.skipped import Skipped
    from otel_llm.formats.recordings.bench.replies import Reply
    from otel_llm.formats.recordings.recording_format import Head

FORM: Final = "aiperf"
_UNITS_NS: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "sec": 1_000_000_000}
_NOT_MEASURED: Final = "warmup"


def sniff(head: Head) -> bool:
    """Tell whether a file has AIPerf's records or raw records."""
    return "metadata.request_start_ns" in head.own_keys


def read(path: Path, chunks: Iterable[bytes], skipped: Skipped) -> Iterator[Assembled]:
    """Yield the requests of a file one by one.

    Those of the warm-up are left out and counted, and those beyond the model's context that the run did not count.
    If a folder has both files, the raw records are read and the records, which say less of the same requests, are not.
    """
    if path in skipped.chosen and _raw_beside(path) in skipped.chosen:
        skipped.counts["repeated_file"] += 1
        return
    model = _only_model(path)
    for place, record in json_records(path, chunks, skipped):
        metadata = member(record, "metadata")
        if not isinstance(metadata, dict) or "request_start_ns" not in metadata:
            skipped.bad(path, place, "no metadata.request_start_ns: no record of AIPerf's")
            continue
        if _NOT_MEASURED in (metadata.get("benchmark_phase"), metadata.get("phase_kind")):
            skipped.counts["warmup"] += 1
            continue
        if metadata.get("context_overflow_skip") is True:
            skipped.counts["context_overflow"] += 1
            continue
        try:
            streams = _raw(record, metadata) if "start_perf_ns" in record else [_record(record, metadata, model)]
        except EntryError as error:
            skipped.bad(path, place, error)
            continue
        yield from streams
        if any(one.resolved.foreign is not None for one in streams):
            skipped.anomaly("token_times_not_kept")


def _raw_beside(path: Path) -> Path:
    name, ending, packed = path.name.partition(".jsonl")
    return path.with_name(f"{name}_raw{ending}{packed}")


def _record(record: Mapping[str, Any], metadata: Mapping[str, Any], model: str | None) -> Assembled:
    """Return the stream of a line of `profile_export.jsonl`."""
    metrics = record.get("metrics")
    asked = count(member(metrics, "usage_prompt_tokens", "value"))
    if asked is None:
        asked = count(member(metrics, "input_sequence_length", "value"))
    send_ns, request = _request(record, metadata)
    request = replace(request, model=model, input_tokens=asked)
    ttft = member(metrics, "time_to_first_token")
    if ttft is None:
        # An error's record has none, even after some tokens; a reply that was not streamed has none either.
        return request.untimed()
    first_ns = nanoseconds(member(ttft, "value"), "time_to_first_token", _unit_ns(ttft))
    gaps = member(metrics, "inter_chunk_latency")
    times_ns = [send_ns + first_ns]
    if gaps is not None:
        names = ("time_to_first_token", "inter_chunk_latency")
        after = arrivals(0, 0, member(gaps, "value"), names, _unit_ns(gaps))
        times_ns = [times_ns[0] + gap_ns for gap_ns in after]
    request = replace(
        request,
        output_tokens=count(member(metrics, "usage_completion_tokens", "value")),
        reasoning_tokens=count(member(metrics, "usage_reasoning_tokens", "value")),
    )
    shown = member(metrics, "time_to_first_output_token")
    kinds = None
    if shown is not None:
        # The chunks before the first of output were reasoning; for later ones the record does not say.
        shown_ns = send_ns + nanoseconds(member(shown, "value"), "time_to_first_output_token", _unit_ns(shown))
        kinds = bytes(REASONING if time_ns < shown_ns else CONTENT for time_ns in times_ns)
    return request.timed(TokenEvents(times_ns, kinds), "chunk")


def _raw(record: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[Assembled]:
    """Return the streams of a line of `profile_export_raw.jsonl`, one for each choice."""
    payload, responses = record.get("payload"), record.get("responses") or []
    send_ns, request = _request(record, metadata)
    request = replace(request, model=text(member(payload, "model")), operation=operation_of(payload))
    if not isinstance(responses, list):
        raise EntryError("responses is no list")
    if request.outcome == "cancelled" and not responses:
        # AIPerf drops the chunks before a cancellation.
        return [request.untimed()]
    origin_ns = send_ns - nanoseconds(record["start_perf_ns"], "start_perf_ns", 1)
    return _reply(responses, origin_ns).assembled(request)


def _reply(responses: list[Any], origin_ns: int) -> Reply:
    events: list[tuple[int, bytes]] = []
    for response in responses:
        at_ns = origin_ns + nanoseconds(member(response, "perf_ns"), "perf_ns", 1)
        packets = response.get("packets")
        body = response.get("text")
        if isinstance(packets, list):
            for packet in packets:
                value = member(packet, "value")
                if member(packet, "name") == "data" and isinstance(value, str):
                    events.append((at_ns, value.encode("utf-8", "replace")))
        elif isinstance(body, str) and len(responses) == 1:
            return read_whole(at_ns, body)
        else:
            raise EntryError("a response with neither packets nor the text of a whole reply")
    return read_events(events)


def _request(record: Mapping[str, Any], metadata: Mapping[str, Any]) -> tuple[int, MeasuredRequest]:
    """Return when a request was sent (unix ns), and the statements that records and raw records share."""
    send_ns = nanoseconds(metadata["request_start_ns"], "request_start_ns", 1)
    commit = metadata.get("credit_issued_ns")
    cancelled = metadata.get("was_cancelled") is True
    end = metadata.get("cancellation_time_ns") if cancelled else None
    if end is None:
        end = metadata.get("request_end_ns")
    return send_ns, MeasuredRequest(
        FORM,
        _own_id(metadata),
        send_ns=send_ns,
        commit_ns=send_ns if commit is None else nanoseconds(commit, "credit_issued_ns", 1),
        end_ns=None if end is None else nanoseconds(end, "request_end_ns", 1),
        outcome="cancelled" if cancelled else "completed" if record.get("error") is None else "error",
    )


def _own_id(metadata: Mapping[str, Any]) -> str:
    """Return the identity of a request, the same in records and raw records of one run."""
    own = text(metadata.get("x_request_id"))
    return own if own is not None else f"{metadata.get('session_num')}/{metadata.get('turn_index')}"


def _unit_ns(metric: Any) -> int:
    unit = member(metric, "unit")
    if not isinstance(unit, str) or unit not in _UNITS_NS:
        raise EntryError(f"a unit of time that is none: {unit!r:.20}")
    return _UNITS_NS[unit]


def _only_model(path: Path) -> str | None:
    """Return the model in the run's summary beside the file, None if it names several or is missing."""
    name = path.name.partition(".jsonl")[0]
    models = member(sibling(path, f"{name}_aiperf.json"), "input_config", "models", "items")
    if isinstance(models, list) and len(models) == 1:
        return text(member(models[0], "name"))
    return None
