"""What `/metrics` says: what users felt, as counters that add up over collectors, and the collector's own health.

Kept as plain integers and exact sums by the evaluator's thread; the Prometheus library only writes the text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from otel_llm.collector.streams import LiveStream
    from otel_llm.readers.rows import Row
    from otel_llm.slo.verdict import Verdict
    from otel_llm.slo.windows import Charge

Labels = tuple[str, ...]

LABELS: Final = ("slo_class", "model", "measured_at")
OTHER: Final = "other"
MAX_SERIES: Final = 500
"""Distinct label sets; beyond them a new model counts as `other`: telemetry must not be able to fill the memory."""

TTFT_BUCKETS_S: Final = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0)
TBT_BUCKETS_S: Final = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04,
    0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
"""Fine where decoding on today's GPUs happens (2-10 ms), coarse where a stall is a stall."""
IDLE_BUCKETS_S: Final = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0)
FLUIDITY_BUCKETS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class OwnMetric:
    """Declare one figure of the collector about itself."""

    name: str
    kind: str
    help: str
    source: str


OWN_METRICS: Final = (
    OwnMetric("otel_llm_collector_segments", "counter", "Segments accepted.", "segments"),
    OwnMetric("otel_llm_collector_tokens", "counter", "Token events accepted.", "tokens"),
    OwnMetric("otel_llm_collector_request_spans", "counter", "Request spans accepted.", "request_spans"),
    OwnMetric("otel_llm_collector_ignored_spans", "counter", "Spans that are none of ours.", "ignored_spans"),
    OwnMetric("otel_llm_collector_duplicate_segments", "counter", "Segments received again.", "duplicate_segments"),
    OwnMetric(
        "otel_llm_collector_late_segments", "counter", "Segments older than the lateness on arrival.", "late_segments"
    ),
    OwnMetric(
        "otel_llm_collector_late_after_verdict",
        "counter",
        "Segments of streams already judged (late, or received again).",
        "late_or_duplicate_segments",
    ),
    OwnMetric("otel_llm_collector_judged", "counter", "Streams judged.", "judged"),
    OwnMetric("otel_llm_collector_lost", "counter", "Streams whose end was never seen.", "lost"),
    OwnMetric("otel_llm_collector_skewed_tokens", "counter", "Tokens recorded before the commit.", "skewed_tokens"),
    OwnMetric(
        "otel_llm_collector_shifted_streams",
        "counter",
        "Streams placed in windows by a measured clock offset.",
        "shifted_streams",
    ),
    OwnMetric(
        "otel_llm_collector_unknown_slo_class",
        "counter",
        "Streams that name a class that is not there.",
        "unknown_slo_class",
    ),
    OwnMetric(
        "otel_llm_collector_missing_empty_segments",
        "counter",
        "Empty segments that were not received (no token is missing).",
        "missing_empty_segments",
    ),
    OwnMetric(
        "otel_llm_collector_late_for_window",
        "counter",
        "What came after its window had closed.",
        "late_for_window",
    ),
    OwnMetric("otel_llm_collector_unwritten", "counter", "Decision and window lines not written.", "unwritten"),
    OwnMetric("otel_llm_collector_internal_errors", "counter", "Batches that met a bug of ours.", "internal_errors"),
    OwnMetric("otel_llm_collector_exports", "counter", "Export requests acknowledged.", "exports"),
    OwnMetric("otel_llm_collector_refused_exports", "counter", "Export requests refused.", "refused_exports"),
    OwnMetric("otel_llm_collector_journal_bytes", "counter", "Bytes written to the journal.", "journal_bytes"),
    OwnMetric("otel_llm_collector_decisions", "counter", "Decisions of rules.", "decisions"),
    OwnMetric("otel_llm_collector_queue", "gauge", "Export requests accepted and not yet evaluated.", "queue"),
    OwnMetric("otel_llm_collector_in_flight", "gauge", "Streams between commit and verdict.", "in_flight"),
)
"""The collector's own metrics; refused spans by reason and anomalies by name follow from their counters."""


@dataclass(slots=True)
class Buckets:
    """Count observations in cumulative-to-be buckets; the sum is exact in integers of `unit` a second or one."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value; a value on a bound belongs to it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Return (upper bound, count of values up to it), `+Inf` last."""
        running, pairs = 0, []
        for bound, number in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            running += number
            pairs.append((bound, float(running)))
        return pairs


@dataclass(slots=True)
class Series:
    """What is counted for one set of labels."""

    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    tokens_read: int = 0
    tokens_met: int = 0
    idle_ns: int = 0
    penalty_tokens: float = 0.0
    refunded_tokens: float = 0.0
    deadlines: int = 0
    deadline_misses: int = 0
    ttft: Buckets = field(default_factory=lambda: Buckets(TTFT_BUCKETS_S))
    tbt: Buckets = field(default_factory=lambda: Buckets(TBT_BUCKETS_S))
    idle: Buckets = field(default_factory=lambda: Buckets(IDLE_BUCKETS_S))
    fluidity: Buckets = field(default_factory=lambda: Buckets(FLUIDITY_BUCKETS))


@dataclass(slots=True)
class UserMetrics:
    """Count what readers felt, by class, model and place of measurement."""

    by_instance: bool = False
    """Whether `instance` is a label too (for a fleet of known size)."""
    series: dict[Labels, Series] = field(default_factory=dict)

    @property
    def labels(self) -> Labels:
        """Return the label names."""
        return (*LABELS, "instance") if self.by_instance else LABELS

    def of(self, slo_class: str, model: str | None, measured_at: str, instance: str | None) -> Series:
        """Return the series of these labels; a new model beyond the bound counts as `other`."""
        labels: Labels = (slo_class, model or "", measured_at)
        if self.by_instance:
            labels = (*labels, instance or "")
        found = self.series.get(labels)
        if found is None:
            if len(self.series) >= MAX_SERIES:
                labels = (slo_class, OTHER, measured_at, OTHER)[: len(labels)]
            found = self.series.setdefault(labels, Series())
        return found

    def charge(self, stream: LiveStream, charge: Charge) -> None:
        """Count what a stream's reader got and waited since it was last looked at."""
        series = self.of(stream.slo_class, stream.model, stream.measured_at, stream.instance)
        series.tokens_read += max(0, charge.tokens_read)
        series.idle_ns += max(0, charge.idle_ns)
        series.penalty_tokens += charge.penalty_tokens
        series.refunded_tokens += charge.refunded_tokens

    def judged(self, stream: LiveStream, row: Row, verdict: Verdict | None) -> None:
        """Count a verdict."""
        series = self.of(stream.slo_class, stream.model, stream.measured_at, stream.instance)
        series.requests[str(row["outcome"]), met_word(row["met"])] += 1
        if verdict is None:
            return
        if verdict.met:
            series.tokens_met += verdict.tokens_read
        series.deadlines += verdict.deadlines or 0
        series.deadline_misses += verdict.deadline_misses or 0
        for buckets, value in (
            (series.ttft, row["ttft_s"]),
            (series.idle, row["idle_s"]),
            (series.fluidity, row["fluidity_index"]),
        ):
            if value is not None:
                buckets.observe(float(value))
        if stream.arithmetic is not None:
            times = stream.arithmetic.times_ns
            for before, after in pairwise(times):
                series.tbt.observe((after - before) / 1e9)

    def foreign(self, row: Row) -> None:
        """Count a row that follows from another instrumentation's span."""
        series = self.of(str(row["slo_class"]), _text(row["model"]), str(row["measured_at"]), _text(row["instance"]))
        series.requests[str(row["outcome"]), met_word(row["met"])] += 1

    def families(self) -> Iterator[Metric]:
        """Yield the user-facing families of the contract."""
        names = self.labels
        requests = CounterMetricFamily("otel_llm_requests", "Requests ended.", labels=[*names, "outcome", "met"])
        for labels, series in self.series.items():
            for (outcome, met), number in sorted(series.requests.items()):
                requests.add_metric([*labels, outcome, met], number)
        yield requests
        for name, words, value in _COUNTERS:
            family = CounterMetricFamily(name, words, labels=names)
            for labels, series in self.series.items():
                family.add_metric(labels, value(series))
            yield family
        for name, words, buckets in _HISTOGRAMS:
            histogram = HistogramMetricFamily(name, words, labels=names)
            for labels, series in self.series.items():
                histogram.add_metric(labels, buckets(series).cumulative(), buckets(series).total)
            yield histogram

    def gauges(self, streams: Iterable[tuple[LiveStream, bool]]) -> Iterator[Metric]:
        """Yield how many streams are in flight, and of how many the reader waits; (stream, starving) pairs."""
        flying: defaultdict[Labels, int] = defaultdict(int)
        hungry: defaultdict[Labels, int] = defaultdict(int)
        for stream, starving in streams:
            labels: Labels = (stream.slo_class, stream.model, stream.measured_at)
            if self.by_instance:
                labels = (*labels, stream.instance)
            if labels not in flying and labels not in self.series and len(flying) >= MAX_SERIES:
                labels = (stream.slo_class, OTHER, stream.measured_at, OTHER)[: len(labels)]
            flying[labels] += 1
            hungry[labels] += starving
        for labels in self.series:
            flying[labels] += 0
            hungry[labels] += 0
        for name, words, values in (
            ("otel_llm_streams_in_flight", "Streams between commit and end.", flying),
            ("otel_llm_streams_starving", "Streams in flight whose reader has nothing left to read.", hungry),
        ):
            gauge = GaugeMetricFamily(name, words, labels=self.labels)
            for labels, number in values.items():
                gauge.add_metric(labels, number)
            yield gauge


_COUNTERS: Final[tuple[tuple[str, str, Callable[[Series], float]], ...]] = (
    ("otel_llm_tokens_read", "Tokens that the class's user reads.", lambda one: one.tokens_read),
    ("otel_llm_tokens_met", "Tokens read of requests that met their deadlines.", lambda one: one.tokens_met),
    ("otel_llm_idle_seconds", "Time that readers waited with nothing to read.", lambda one: one.idle_ns / 1e9),
    ("otel_llm_penalty_tokens", "What the waiting cost, charged while it happened.", lambda one: one.penalty_tokens),
    (
        "otel_llm_penalty_refunded_tokens",
        "Of that, what was given back: the wait turned out to be no one's.",
        lambda one: one.refunded_tokens,
    ),
    ("otel_llm_deadlines", "Token deadlines that fell due.", lambda one: one.deadlines),
    ("otel_llm_deadline_misses", "Token deadlines missed.", lambda one: one.deadline_misses),
)  # fmt: skip
_HISTOGRAMS: Final[tuple[tuple[str, str, Callable[[Series], Buckets]], ...]] = (
    ("otel_llm_ttft_seconds", "Time to the first token of any kind.", lambda one: one.ttft),
    ("otel_llm_tbt_seconds", "Time between tokens.", lambda one: one.tbt),
    ("otel_llm_idle_seconds", "User idle latency of a request.", lambda one: one.idle),
    ("otel_llm_fluidity_index", "Share of a request's token deadlines met.", lambda one: one.fluidity),
)


def own_families(counts: Mapping[str, int]) -> Iterator[Metric]:
    """Yield the collector's own metrics from its counters."""
    for one in OWN_METRICS:
        kind = CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily
        yield kind(one.name, one.help, value=counts.get(one.source, 0))
    for prefix, name, label, words in (
        ("refused.", "otel_llm_collector_refused_spans", "reason", "Spans of ours that could not be used."),
        ("anomaly.", "otel_llm_collector_anomalies", "name", "Oddities in spans that were used."),
    ):
        family = CounterMetricFamily(name, words, labels=[label])
        for key, number in sorted(counts.items()):
            if key.startswith(prefix):
                family.add_metric([key.removeprefix(prefix)], number)
        yield family


def met_word(met: object) -> str:
    """Return `true`, `false` or `null`: the label that stands for the verdict."""
    return "null" if met is None else "true" if met else "false"


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
