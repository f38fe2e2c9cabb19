"""Write two days of exported spans, each in three forms: as the Collector's files, Jaeger and ClickHouse have them.

    python examples/offline-audit/make_days.py FOLDER

On Monday version 1 served; on Tuesday version 2, whose first token and pace are better and whose second replica stalls
early in one reply of five. The same every time.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SEED: Final = 23
REQUESTS: Final = 400
SEGMENT_TOKENS: Final = 20
S: Final = 1_000_000_000
MIDNIGHT_NS: Final = 1_790_553_600 * S
"""Monday 2026-09-28, 00:00 UTC, unix ns."""

Span = dict[str, Any]
"""A span as OTLP's JSON has it; one list of them is one request."""


class Version(NamedTuple):
    """How one version serves: the median of the time to the first token, the pace, how often a reply stalls."""

    first_s: float
    tokens_per_s: float
    stalls: float


DAYS: Final = {"monday": Version(0.40, 22, 0.0), "tuesday": Version(0.30, 30, 0.2)}


def requests_of(day: int, version: Version) -> list[list[Span]]:
    """Return the spans of a day's requests, in order of their starts."""
    chance = random.Random(SEED + day)
    begin_ns = MIDNIGHT_NS + day * 86_400 * S
    starts = sorted(begin_ns + round(86_400 * S * chance.triangular(0, 1, 14 / 24)) for _ in range(REQUESTS))
    return [
        segments(day * REQUESTS + number + 1, start_ns, replica, arrivals(chance, start_ns, version, replica))
        for number, start_ns in enumerate(starts)
        for replica in [chance.choice(["replica-1", "replica-2"])]
    ]


def arrivals(chance: random.Random, start_ns: int, version: Version, replica: str) -> list[int]:
    """Return when the tokens of a reply arrive."""
    at_s = version.first_s * chance.lognormvariate(0, 0.4)
    stall_after = chance.randint(3, 12) if replica == "replica-2" and chance.random() < version.stalls else None
    times_ns = []
    for token in range(chance.randint(30, 90)):
        if token == stall_after:
            at_s += chance.uniform(2, 6)
        times_ns.append(start_ns + round(at_s * S))
        at_s += chance.uniform(0.8, 1.2) / version.tokens_per_s
    return times_ns


def segments(number: int, start_ns: int, replica: str, times_ns: list[int]) -> list[Span]:
    """Return the segments of a request: its commit, its tokens, its end (docs/wire.md)."""
    identity = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "chat-8b",
        "otel_llm.instance": replica,
        "otel_llm.measured_at": "client",
    }
    spans = [segment(number, 0, 0, (start_ns, start_ns), [], identity)]
    pieces = [times_ns[i : i + SEGMENT_TOKENS] for i in range(0, len(times_ns), SEGMENT_TOKENS)]
    for seq, piece in enumerate(pieces, start=1):
        end: dict[str, str | int] = {}
        if seq == len(pieces):
            end = {
                "otel_llm.outcome": "completed",
                "otel_llm.tokens": len(times_ns),
                "otel_llm.token_basis": "exact",
                "otel_llm.segments": len(pieces) + 1,
            }
        spans.append(segment(number, seq, (seq - 1) * SEGMENT_TOKENS, (start_ns, piece[-1]), piece, end))
        start_ns = piece[-1]
    return spans


def segment(
    number: int, seq: int, first_token: int, between_ns: tuple[int, int], times_ns: list[int], reported: dict[str, Any]
) -> Span:
    """Return one segment; `between_ns`: its start and its end."""
    placing = {"otel_llm.segment.seq": seq, "otel_llm.segment.first_token": first_token, **reported}
    return {
        "traceId": f"{number:032x}",
        "spanId": f"{number * 1000 + seq:016x}",
        "parentSpanId": f"{number:016x}",
        "name": "otel_llm.segment",
        "kind": 1,
        "startTimeUnixNano": str(between_ns[0]),
        "endTimeUnixNano": str(between_ns[1]),
        "attributes": [
            {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
            for key, value in placing.items()
        ],
        "events": [{"timeUnixNano": str(at_ns), "name": "token"} for at_ns in times_ns],
    }


def collector(requests: list[list[Span]]) -> str:
    """Return what the OpenTelemetry Collector's file exporter writes: an export request a line."""
    return lines(
        {"resourceSpans": [{"scopeSpans": [{"scope": {"name": "otel_llm"}, "spans": spans}]}]} for spans in requests
    )


def jaeger(requests: list[list[Span]]) -> str:
    """Return what Jaeger's API answers and its UI downloads; its times are whole microseconds."""
    processes = {"p1": {"serviceName": "chat", "tags": []}}
    traces = [
        {"traceID": spans[0]["traceId"], "processes": processes, "spans": list(map(jaeger_span, spans))}
        for spans in requests
    ]
    return json.dumps({"data": traces}, separators=(",", ":"))


def jaeger_span(span: Span) -> dict[str, Any]:
    """Return one span of Jaeger's JSON."""
    start_us = int(span["startTimeUnixNano"]) // 1000
    kinds = {"intValue": ("int64", int), "stringValue": ("string", str)}
    return {
        "traceID": span["traceId"],
        "spanID": span["spanId"],
        "operationName": span["name"],
        "references": [{"refType": "CHILD_OF", "traceID": span["traceId"], "spanID": span["parentSpanId"]}],
        "startTime": start_us,
        "duration": int(span["endTimeUnixNano"]) // 1000 - start_us,
        "tags": [
            {"key": one["key"], "type": kinds[kind][0], "value": kinds[kind][1](value)}
            for one in span["attributes"]
            for kind, value in one["value"].items()
        ],
        "logs": [
            {
                "timestamp": int(event["timeUnixNano"]) // 1000,
                "fields": [{"key": "event", "type": "string", "value": event["name"]}],
            }
            for event in span["events"]
        ],
        "processID": "p1",
    }


def clickhouse(requests: list[list[Span]]) -> str:
    """Return what docs/clickhouse-export.sql selects: a row a line, attributes as text."""
    return lines(
        {
            "Timestamp": int(span["startTimeUnixNano"]),
            "TraceId": span["traceId"],
            "SpanId": span["spanId"],
            "ParentSpanId": span["parentSpanId"],
            "SpanName": span["name"],
            "SpanKind": "Internal",
            "ResourceAttributes": {},
            "SpanAttributes": {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]},
            "Duration": int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"]),
            "StatusCode": "Unset",
            "Events.Timestamp": [int(event["timeUnixNano"]) for event in span["events"]],
            "Events.Name": [event["name"] for event in span["events"]],
            "Events.Attributes": [{} for _ in span["events"]],
        }
        for spans in requests
        for span in spans
    )


def lines(objects: Iterable[dict[str, Any]]) -> str:
    """Return JSON lines."""
    return "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in objects)


FORMS: Final[dict[str, Callable[[list[list[Span]]], str]]] = {
    "collector.jsonl": collector,
    "jaeger.json": jaeger,
    "clickhouse.jsonl": clickhouse,
}


def write_days(folder: Path) -> None:
    """Write each day in each form."""
    folder.mkdir(parents=True, exist_ok=True)
    for day, (name, version) in enumerate(DAYS.items()):
        requests = requests_of(day, version)
        for ending, form in FORMS.items():
            (folder / f"{name}.{ending}").write_text(form(requests), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_days.py FOLDER")
    write_days(Path(sys.argv[1]))
