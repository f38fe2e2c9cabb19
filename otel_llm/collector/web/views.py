"""What the web port answers: snapshots as JSON, the metrics text, and a small page for a quick look."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from otel_llm.actions.sinks.in_flight import gauges_in_flight, streams_in_flight
from otel_llm.collector.telemetry.self_metrics import own_families
from otel_llm.live.exposition import SharedText
from otel_llm.live.page import page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from otel_llm.collector.pipeline import Pipeline

LINKS: Final = {"metrics": "/metrics", "streams (JSON)": "/v1/streams", "verdicts (JSON)": "/v1/requests"}


class Web:
    """Answer from the evaluator's state; every question is asked in the evaluator's thread."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._metrics = SharedText(lambda: families(pipeline), pipeline.clock.now_ns)

    def streams(self) -> dict[str, Any]:
        """Return the streams in flight, those closest to starving first, and the last verdicts and decisions."""
        return self._pipeline.ask(self._streams)

    def requests(self) -> dict[str, Any]:
        """Return the last verdicts, oldest first, as rows of `--requests`."""
        return {"requests": self._pipeline.ask(lambda: [row() for row in self._pipeline.sinks.recent])}

    def metrics(self) -> bytes:
        """Return the Prometheus text (format 0.0.4), at most a second old."""
        return self._metrics.text().result()

    def page(self) -> str:
        """Return the page."""
        return page(self.streams(), LINKS)

    def _streams(self) -> dict[str, Any]:
        pipeline = self._pipeline
        evaluator = pipeline.evaluator
        found = streams_in_flight(evaluator.table, pipeline.sinks, pipeline.clock.now_ns())
        counts = {"in_flight": len(evaluator.live), "judged": evaluator.counts["judged"]}
        return {**found, **counts, "queue": pipeline.counts()["queue"]}


def families(pipeline: Pipeline) -> Iterator[Metric]:
    """Return all families of metrics as they are now; raises TimeoutError where the evaluator does not answer.

    Only what is the evaluator's own is asked of it: with many sets of labels the rest takes a while.
    """
    metrics = pipeline.sinks.metrics
    latency = pipeline.sinks.latency
    gauges, counts = pipeline.ask(lambda: _figures(pipeline))
    decisions = [] if latency is None else latency.families()
    return chain(metrics.families(), gauges, own_families(counts), decisions)


def _figures(pipeline: Pipeline) -> tuple[list[Metric], dict[str, int | float]]:
    evaluator, now_ns = pipeline.evaluator, pipeline.clock.now_ns()
    return gauges_in_flight(evaluator.table, evaluator.meter, pipeline.sinks, now_ns), pipeline.counts()
