"""The relay's own metrics, beside those of readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.core import Metric

    from otel_llm.relay.backends.backends import Backends

_GAP_BUCKETS_S: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)
_ADDED_BUCKETS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)
_LAG_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_QUEUE_BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_OTHER: Final = "other"
_CODES: Final = frozenset({*map(str, range(200, 207)), *map(str, range(300, 309)), *map(str, range(400, 432)), "499"})


class RelayMetrics:
    """The counters and histograms of the relay."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "otel_llm_relay_requests", "Requests answered, by who served last and the status that the client got.",
            ["instance", "code"], registry=registry,
        )  # fmt: skip
        self._migrations = Counter(
            "otel_llm_relay_migrations", "Moves of streams, by outcome; failovers too.",
            ["from", "to", "outcome"], registry=registry,
        )  # fmt: skip
        self._gap = Histogram(
            "otel_llm_relay_migration_gap_seconds", "From the last text before a move to the first after it.",
            registry=registry, buckets=_GAP_BUCKETS_S,
        )  # fmt: skip
        self._failovers = Counter(
            "otel_llm_relay_failovers",
            "Backends that did not serve a request (further).",
            ["reason"],
            registry=registry,
        )
        self._hedges = Counter(
            "otel_llm_relay_hedges", "Requests sent to a second backend for being late, by what became of it.",
            ["outcome"], registry=registry,
        )  # fmt: skip
        for outcome in ("done", "refuted", "failed"):  # a rate of what was never counted would have no data
            self._hedges.labels(outcome)
        self._preempted = Counter("otel_llm_relay_preempted", "Streams that were paused.", registry=registry)
        self._received = Counter(
            "otel_llm_relay_received_actions",
            "Messages to /v1/actions, by verb and answer; rejected: not signed, not readable, or too many.",
            ["action", "result"], registry=registry,
        )  # fmt: skip
        self._queue = Histogram(
            "otel_llm_relay_queue_seconds", "From the arrival of a request to its slot on a backend.",
            registry=registry, buckets=_QUEUE_BUCKETS_S,
        )  # fmt: skip
        self._not_queued = Counter(
            "otel_llm_relay_queue_refused", "Requests that got no slot on a backend, by reason.",
            ["reason"], registry=registry,
        )  # fmt: skip
        self._added = Histogram(
            "otel_llm_relay_added_seconds", "From the arrival from a backend to the writing to the client.",
            registry=registry, buckets=_ADDED_BUCKETS_S,
        )  # fmt: skip
        self._lag = Histogram(
            "otel_llm_relay_loop_lag_seconds", "How late the event loop runs what is due, 50 times a second.",
            registry=registry, buckets=_LAG_BUCKETS_S,
        )  # fmt: skip

    def request(self, instance: str, code: int) -> None:
        """Count an answered request."""
        known = str(code) if str(code) in _CODES or 500 <= code < 600 else _OTHER
        self._requests.labels(instance, known).inc()

    def moved(self, source: str, to: str, outcome: str, gap_s: float | None) -> None:
        """Count a move of a stream."""
        self._migrations.labels(source, to, outcome).inc()
        if gap_s is not None:
            self._gap.observe(gap_s)

    def failed_over(self, reason: str) -> None:
        """Count a backend that did not serve."""
        self._failovers.labels(reason).inc()

    def hedged(self, outcome: str) -> None:
        """Count a request that was sent to a second backend: `done` if that one served, `refuted`, `failed`."""
        self._hedges.labels(outcome).inc()

    def received(self, action: str, result: str) -> None:
        """Count a received action message; both labels are of a known set."""
        self._received.labels(action, result).inc()

    def added(self, seconds: float) -> None:
        """Observe how long something stayed in the relay."""
        self._added.observe(seconds)

    def lagged(self, seconds: float) -> None:
        """Observe how late the event loop was."""
        self._lag.observe(seconds)

    def preempted(self) -> None:
        """Count a stream that was paused."""
        self._preempted.inc()

    def queued(self, seconds: float) -> None:
        """Observe how long a request waited for its slot."""
        self._queue.observe(seconds)

    def not_queued(self, reason: str) -> None:
        """Count a request that got no slot."""
        self._not_queued.labels(reason).inc()

    def families(self, backends: Backends, paused: int, waiting: int) -> Iterable[Metric]:
        """Yield all families as they are now; `paused` streams, `waiting` requests of the queue."""
        yield from self._registry.collect()
        resting = GaugeMetricFamily("otel_llm_relay_paused", "Streams that are paused now.")
        resting.add_metric((), paused)
        yield resting
        queued = GaugeMetricFamily("otel_llm_relay_queue", "Requests that wait for a slot on a backend now.")
        queued.add_metric((), waiting)
        yield queued
        panic = GaugeMetricFamily(
            "otel_llm_relay_panic", "Groups without a healthy backend now: their requests go to the least bad."
        )
        panic.add_metric((), backends.panics)
        yield panic
        flying = GaugeMetricFamily(
            "otel_llm_relay_streams_in_flight", "Streams that backends serve now.", labels=["instance"]
        )
        healthy = GaugeMetricFamily(
            "otel_llm_relay_backend_open", "Whether a backend takes new streams.", labels=["instance"]
        )
        for backend in backends:
            flying.add_metric([backend.name], backend.streams)
            healthy.add_metric([backend.name], backends.is_open(backend))
        yield flying
        yield healthy
