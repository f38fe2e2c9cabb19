"""What the web port answers: snapshots as JSON, the metrics text, and a small page for a quick look."""

from __future__ import annotations

import html
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest

from otel_llm.actions.execute.sinks import key_of
from otel_llm.collector.self_metrics import own_families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client.core import Metric

    from otel_llm.collector.pipeline import Pipeline
    from otel_llm.evaluate.sink import StreamInFlight
    from otel_llm.readers.rows import Row

SHOWN_STREAMS = 100
SHOWN_ROWS = 200
PAGE_REFRESH_S = 2


class Web:
    """Answer from the evaluator's state; every question is asked in the evaluator's thread."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def streams(self) -> dict[str, Any]:
        """Return the streams in flight, those closest to starving first, and the last verdicts and decisions."""
        return self._pipeline.ask(self._streams)

    def requests(self) -> dict[str, Any]:
        """Return the last verdicts, oldest first, as rows of `--requests`."""
        return {"requests": self._pipeline.ask(lambda: [row() for row in self._pipeline.sinks.recent])}

    def metrics(self) -> bytes:
        """Return the Prometheus text (format 0.0.4)."""
        return generate_latest(_Prepared(families(self._pipeline)))

    def page(self) -> str:
        """Return the page."""
        return page(self.streams())

    def _streams(self) -> dict[str, Any]:
        now_ns = self._pipeline.clock.now_ns()
        table = self._pipeline.evaluator.table
        slots = table.flying()
        runway_ns = table.runway_ns(slots, now_ns)
        shown = np.argsort(runway_ns, kind="stable")[:SHOWN_STREAMS]
        streams = [table.streams[slot] for slot in slots[shown].tolist()]
        sinks = self._pipeline.sinks
        return {
            "now_unix_nano": now_ns,
            "in_flight": len(self._pipeline.evaluator.live),
            "starving": int((runway_ns < 0).sum()),
            "judged": self._pipeline.evaluator.counts["judged"],
            "queue": self._pipeline.counts()["queue"],
            "streams": [facts_of(stream, now_ns) for stream in streams if stream is not None],
            "recent": [row() for row in list(sinks.recent)[-SHOWN_ROWS:]],
            "decisions": list(sinks.recent_decisions)[-SHOWN_ROWS:],
        }


def families(pipeline: Pipeline) -> list[Metric]:
    """Return all families of metrics as they are now; raises TimeoutError where the evaluator does not answer.

    Only what is the evaluator's own is asked of it: with many sets of labels the rest takes a while.
    """
    metrics = pipeline.sinks.metrics
    latency = pipeline.sinks.latency
    gauges, counts = pipeline.ask(lambda: _figures(pipeline))
    decisions = [] if latency is None else latency.families()
    return [*metrics.families(), *gauges, *own_families(counts), *decisions]


def _figures(pipeline: Pipeline) -> tuple[list[Metric], dict[str, int | float]]:
    table, sinks = pipeline.evaluator.table, pipeline.sinks
    for metered in pipeline.evaluator.meter.charge_flying():
        sinks.charged(metered)
    slots = table.flying()
    starving = table.runway_ns(slots, pipeline.clock.now_ns()) < 0
    numbers: Counter[int] = Counter(table.group[slots].tolist())
    hungry: Counter[int] = Counter(table.group[slots[starving]].tolist())
    flying = {key_of(table.groups[group]): (number, hungry[group]) for group, number in numbers.items()}
    return list(sinks.metrics.gauges(flying)), pipeline.counts()


def facts_of(stream: StreamInFlight, now_ns: int) -> Row:
    """Return the in-flight facts of a stream as a JSON-able row, seconds."""
    facts = stream.stream.at(now_ns + stream.offset_ns)
    trace_id, span_id, choice = stream.key
    return {
        "trace_id": trace_id.hex(),
        "span_id": span_id.hex(),
        "choice": choice,
        "slo_class": stream.slo_class,
        "model": stream.model,
        "instance": stream.instance,
        "measured_at": stream.measured_at,
        "tokens": facts.tokens,
        "tokens_read": facts.tokens_read,
        "age_s": facts.age_ns / 1e9,
        "ttft_s": None if facts.ttft_ns is None else facts.ttft_ns / 1e9,
        "gap_s": facts.gap_ns / 1e9,
        "idle_s": facts.idle_ns / 1e9,
        "runway_s": facts.runway_ns / 1e9,
        "fluidity_index": facts.fluidity_index,
        "ended": stream.ended_ns is not None,
    }


class _Prepared(CollectorRegistry):
    """Hand prepared families to the text writer."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__(auto_describe=False)
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families


_STREAM_COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("class", "slo_class", str),
    ("model", "model", str),
    ("tokens", "tokens", str),
    ("age s", "age_s", lambda value: f"{value:.1f}"),
    ("idle s", "idle_s", lambda value: f"{value:.2f}"),
    ("runway s", "runway_s", lambda value: f"{value:.1f}"),
    ("trace", "trace_id", str),
)
_ROW_COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("met", "met", lambda value: {True: "met", False: "MISSED", None: "cannot say"}[value]),
    ("class", "slo_class", str),
    ("model", "model", lambda value: value or "-"),
    ("outcome", "outcome", str),
    ("tokens", "tokens", lambda value: "-" if value is None else str(value)),
    ("TTFT s", "ttft_s", lambda value: "-" if value is None else f"{value:.3f}"),
    ("idle s", "idle_s", lambda value: "-" if value is None else f"{value:.3f}"),
    ("fluidity", "fluidity_index", lambda value: "-" if value is None else f"{value:.3f}"),
    ("trace", "trace_id", str),
)
_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2rem;color:#1c2430;background:#fff}"
    "table{border-collapse:collapse;margin:.5rem 0 2rem}td,th{padding:.15rem .8rem .15rem 0;text-align:left}"
    "td{font-variant-numeric:tabular-nums}.bad{color:#b3261e;font-weight:600}"
    "@media(prefers-color-scheme:dark){body{color:#e4e8ee;background:#14181f}.bad{color:#ff8a80}}"
)


def page(snapshot: dict[str, Any]) -> str:
    """Return the page for a snapshot of `/v1/streams`; everything from telemetry is escaped."""
    rows = list(reversed(snapshot["recent"]))
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        f"<meta http-equiv=refresh content={PAGE_REFRESH_S}><title>otel-llm</title><style>{_STYLE}</style></head><body>"
        f"<h1>{snapshot['in_flight']} streams in flight, {snapshot['starving']} readers waiting</h1>"
        f"<p>{snapshot['judged']} judged. <a href=/metrics>metrics</a> · <a href=/v1/streams>streams (JSON)</a> · "
        "<a href=/v1/requests>verdicts (JSON)</a></p>"
        f"<h2>In flight, closest to starving first</h2>{_table(_STREAM_COLUMNS, snapshot['streams'], _starving)}"
        f"<h2>Last verdicts</h2>{_table(_ROW_COLUMNS, rows, lambda row: row['met'] is False)}</body></html>"
    )


def _starving(row: dict[str, Any]) -> bool:
    return bool(row["runway_s"] < 0)


def _table(
    columns: Iterable[tuple[str, str, Callable[[Any], str]]],
    rows: Iterable[dict[str, Any]],
    bad: Callable[[dict[str, Any]], bool],
) -> str:
    columns = tuple(columns)
    head = "".join(f"<th scope=col>{html.escape(title)}</th>" for title, _, _ in columns)
    body = "".join(
        f"<tr{' class=bad' if bad(row) else ''}>"
        + "".join(f"<td>{html.escape(write(row[name]))}</td>" for _, name, write in columns)
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
