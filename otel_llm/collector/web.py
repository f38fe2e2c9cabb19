"""What the web port answers: snapshots as JSON, the metrics text, and a small page for a quick look."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest

from otel_llm.actions.execute.in_flight import gauges_in_flight, streams_in_flight
from otel_llm.collector.self_metrics import own_families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client.core import Metric

    from otel_llm.collector.pipeline import Pipeline

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
        pipeline = self._pipeline
        evaluator = pipeline.evaluator
        found = streams_in_flight(evaluator.table, pipeline.sinks, pipeline.clock.now_ns())
        counts = {"in_flight": len(evaluator.live), "judged": evaluator.counts["judged"]}
        return {**found, **counts, "queue": pipeline.counts()["queue"]}


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
    evaluator, now_ns = pipeline.evaluator, pipeline.clock.now_ns()
    return gauges_in_flight(evaluator.table, evaluator.meter, pipeline.sinks, now_ns), pipeline.counts()


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
