"""The answers of the web port, from the evaluator's state."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from otel_llm.actions.sinks.in_flight import gauges_in_flight, streams_in_flight
from otel_llm.actions.sinks.live_state import followed_stream, live_state
from otel_llm.collector.telemetry.self_metrics import own_families, process_families
from otel_llm.live.exposition import SharedText
from otel_llm.live.feed import Feed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from prometheus_client.core import Metric

    from otel_llm.collector.pipeline import Pipeline
    from otel_llm.formats.records import StreamKey
    from otel_llm.live.feed import Collected
    from otel_llm.live.selection import Filter, Selection

LINKS: Final = {"metrics": "/metrics", "streams (JSON)": "/v1/streams", "verdicts (JSON)": "/v1/requests"}


class Web:
    """The views of one pipeline; they read its state in the evaluator's thread.

    Raises:
        TimeoutError: the evaluator does not answer in time.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._metrics = SharedText(lambda: chain(families(pipeline), process_families()), pipeline.clock.now_ns)
        self.feed = Feed(
            self._live,
            now_ns=pipeline.clock.now_ns,
            service="collector",
            links=LINKS,
            most_viewers=pipeline.limits.viewers,
        )
        """The events of the live page; the service starts and stops it."""

    def streams(self, selection: Selection) -> dict[str, Any]:
        """Return the selected streams in flight, in their order, and the last verdicts and decisions."""
        return self._pipeline.call(lambda: self._streams(selection))

    def requests(self, tenant: str | None) -> dict[str, Any]:
        """Return the last verdicts of a tenant, or of all (None), oldest first, as rows of `--requests`."""
        return {"requests": self._pipeline.call(lambda: [row() for row in self._pipeline.sinks.recent.of(tenant)])}

    def metrics(self) -> bytes:
        """Return the Prometheus text (format 0.0.4), at most a second old."""
        return self._metrics.text().result()

    def _live(self, filters: Collection[Filter], followed: Collection[StreamKey]) -> Collected:
        pipeline = self._pipeline
        evaluator, now_ns = pipeline.evaluator, pipeline.clock.now_ns
        return pipeline.call(lambda: live_state(evaluator, evaluator.live, pipeline.sinks, now_ns(), filters, followed))

    def _streams(self, selection: Selection) -> dict[str, Any]:
        pipeline = self._pipeline
        evaluator = pipeline.evaluator
        now_ns = pipeline.clock.now_ns()
        found = streams_in_flight(evaluator.table, pipeline.sinks, now_ns, selection.filter)
        if selection.stream is not None:
            found["followed"] = followed_stream(evaluator, evaluator.live, selection.stream, now_ns)
        if (tenant := selection.filter.tenant) is not None:
            return {**found, "judged": pipeline.sinks.judged_of[tenant]}
        queue, judged = pipeline.counts()["queue"], evaluator.counts["judged"]
        return {**found, "in_flight": len(evaluator.live), "judged": judged, "queue": queue}


def families(pipeline: Pipeline) -> Iterator[Metric]:
    """Return all current families of metrics.

    Only the gauges and counts are collected in the evaluator's thread: the rest, with many label sets, takes long.

    Raises:
        TimeoutError: the evaluator does not answer in time.
    """
    metrics = pipeline.sinks.metrics
    latency = pipeline.sinks.latency
    gauges, counts = pipeline.call(lambda: _figures(pipeline))
    decisions = [] if latency is None else latency.families()
    return chain(metrics.families(), gauges, own_families(counts), decisions)


def _figures(pipeline: Pipeline) -> tuple[list[Metric], dict[str, int | float]]:
    evaluator, now_ns = pipeline.evaluator, pipeline.clock.now_ns()
    return gauges_in_flight(evaluator.table, evaluator.meter, pipeline.sinks, now_ns), pipeline.counts()
