"""Metrics of what readers felt, as counters that add up over collectors, for `/metrics` and OTLP.

The evaluator's thread is the single writer of plain numbers; the Prometheus library only formats them. A scrape reads
them from another thread: each number is consistent, two numbers may be an instant apart.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from operator import add
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from otel_llm.live.exposition import text_of
from otel_llm.live.histogram import NS_PER_S, Histogram
from otel_llm.live.history import Totals
from otel_llm.live.labels import METRICS_BYTES, escaped_bytes, shortened
from otel_llm.live.stated_replies import FAMILY as STATED_REPLIES
from otel_llm.live.stated_replies import StatedReplies
from otel_llm.rules.prometheus.exposed_metrics import FLUIDITY_BUCKETS
from otel_llm.slo.classes import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from otel_llm.readers.rows import Row
    from otel_llm.slo.stated_total import StatedReply
    from otel_llm.slo.verdict import Verdict

Key = tuple[str, str, str, str]
"""(slo_class, model, measured_at, instance) of a stream; "" where unknown."""
Labels = tuple[str, ...]

LABELS: Final = ("slo_class", "model", "measured_at")
OTHER: Final = "other"
MAX_SERIES: Final = 500
"""The most label sets; beyond them models and instances count as `other`, so that telemetry cannot fill the memory."""
OTHER_FAMILIES_BYTES: Final = 128 * 1024
"""The part of a scrape that is reserved for the collector's own metrics."""
LONGEST_NUMBER: Final = 24
"""Characters of a float in the text format, with sign and exponent."""
CACHED_KEYS: Final = 4096
"""The size of the cache of series by key; a full cache is cleared."""

TTFT_BUCKETS_S: Final = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0)
TBT_BUCKETS_S: Final = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04,
    0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
"""Fine in the range of decoding on today's GPUs (2-10 ms), coarse for stalls."""
IDLE_BUCKETS_S: Final = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0)
RUNWAY_BOUNDS_S: Final = (0, 1, 3, 10)
RUNWAY_BANDS: Final = ("waiting", "0-1s", "1-3s", "3-10s", "10s+")
"""The bands between these bounds; a runway at a bound is in the band above it."""


def met_word(met: object) -> str:
    """Return the label of a verdict: `true`, `false` or `null`."""
    return "null" if met is None else "true" if met else "false"


def _no_requests() -> dict[tuple[str, str], int]:
    # Counters of verdicts begin at 0, before the first request: `rate` ignores a counter's first value.
    return dict.fromkeys(product(OUTCOMES, ("true", "false")), 0)


@dataclass(slots=True)
class Series:
    """The counts of one set of labels."""

    labels: Labels
    requests: dict[tuple[str, str], int] = field(default_factory=_no_requests)
    tokens_read: int = 0
    tokens_met: int = 0
    idle_ns: int = 0
    penalty_tokens: float = 0.0
    refunded_tokens: float = 0.0
    deadlines: int = 0
    deadline_misses: int = 0
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BUCKETS_S))
    visible: Histogram = field(default_factory=lambda: Histogram(TTFT_BUCKETS_S))
    tbt: Histogram = field(default_factory=lambda: Histogram(TBT_BUCKETS_S))
    idle: Histogram = field(default_factory=lambda: Histogram(IDLE_BUCKETS_S))
    fluidity: Histogram = field(default_factory=lambda: Histogram(FLUIDITY_BUCKETS, per_unit=1))

    def ended(self, outcome: str, met: object) -> None:
        """Count a request by its outcome and verdict."""
        words = (outcome, met_word(met))
        self.requests[words] = self.requests.get(words, 0) + 1

    def totals(self) -> Totals:
        """Return the sums that the live page draws."""
        met = missed = 0
        for (_, word), number in list(self.requests.items()):
            met += number * (word == "true")
            missed += number * (word == "false")
        smooth = self.tokens_read - self.penalty_tokens + self.refunded_tokens
        return Totals(met, missed, self.tokens_read, smooth, self.idle_ns)


@dataclass(slots=True)
class UserMetrics:
    """The counts of all label sets: class, model, place of measurement.

    Args:
        by_instance: whether `instance` is a label, too.
        models, instances: the allowed values of these labels, others count as `other`; None: all, up to MAX_SERIES
            label sets, beyond which they count as `other`.
        max_bytes: of a scrape; label sets beyond it count as `other`.

    The class and the place of measurement are never folded: their values are the operator's and the convention's. Long
    values are `shortened`.
    """

    by_instance: bool = False
    models: frozenset[str] | None = None
    instances: frozenset[str] | None = None
    max_bytes: int = METRICS_BYTES
    series: dict[Labels, Series] = field(default_factory=dict)
    replies: StatedReplies = field(default_factory=StatedReplies)
    known: dict[Key, Series] = field(default_factory=dict)
    """The series of keys that were counted, up to CACHED_KEYS of them."""
    _bytes: int = OTHER_FAMILIES_BYTES
    """An upper bound of a scrape's size, with a set of `other` for each known class and place of measurement."""
    _others: set[Labels] = field(default_factory=set)

    @property
    def labels(self) -> Labels:
        """Return the label names."""
        return (*LABELS, "instance") if self.by_instance else LABELS

    def charge(self, key: Key, tokens_read: int, idle_ns: int, penalty_tokens: float, refunded_tokens: float) -> None:
        """Count the tokens that a stream's reader has read, and its idle time (ns), since the last charge.

        Counters only grow: a negative charge of tokens or time is in the penalty and the refund only.
        """
        series = self._of(key)
        if tokens_read > 0:
            series.tokens_read += tokens_read
        if idle_ns > 0:
            series.idle_ns += idle_ns
        series.penalty_tokens += penalty_tokens
        series.refunded_tokens += refunded_tokens

    def judged(self, key: Key, outcome: str, met: object, verdict: Verdict | None, gaps_ns: Sequence[int]) -> None:
        """Count a verdict; `gaps_ns`: the gaps between the tokens of the request, (n,) int64, ascending."""
        series = self._of(key)
        series.ended(outcome, met)
        if verdict is None:
            return
        if verdict.met:
            series.tokens_met += verdict.tokens_read
        series.deadlines += verdict.deadlines or 0
        series.deadline_misses += verdict.deadline_misses or 0
        if verdict.ttft_ns is not None:
            series.ttft.observe(verdict.ttft_ns)
        if verdict.ttfo_ns is not None:
            series.visible.observe(verdict.ttfo_ns)
        if verdict.idle_ns is not None:
            series.idle.observe(verdict.idle_ns)
        fluidity = verdict.fluidity_index
        if fluidity is not None:
            series.fluidity.observe(fluidity)
        if len(gaps_ns):
            series.tbt.observe_all(gaps_ns)

    def stated(self, reply: StatedReply) -> str | None:
        """Count the length of a reply as it states it; return the note on its model, once."""
        if _listed(reply.model, self.models) == OTHER:
            reply = reply._replace(model=OTHER, provider=OTHER)
        return self.replies.add(reply)

    @property
    def notes(self) -> Sequence[str]:
        """Return the notes on models."""
        return self.replies.notes

    def foreign(self, row: Row) -> None:
        """Count the row of another instrumentation's span, and its TTFT where the span states one."""
        slo_class, model, measured_at, instance = (
            str(row[name] or "") for name in ("slo_class", "model", "measured_at", "instance")
        )
        series, ttft_s = self._of((slo_class, model, measured_at, instance)), row["ttft_s"]
        series.ended(str(row["outcome"]), row["met"])
        if isinstance(ttft_s, int | float):
            series.ttft.observe(round(ttft_s * NS_PER_S))

    def _of(self, key: Key) -> Series:
        """Return the series of a key, created where it is new."""
        known = self.known.get(key)
        if known is not None:
            return known
        slo_class, model, measured_at, instance = key
        labels: Labels = (slo_class, _listed(model, self.models), measured_at)
        if self.by_instance:
            labels = (*labels, _listed(instance, self.instances))
        labels = tuple(map(shortened, labels))
        if labels not in self.series:
            labels = self._admitted(labels)
        series = self.series.get(labels)
        if series is None:
            series = self.series[labels] = Series(labels)
        if len(self.known) >= CACHED_KEYS:
            self.known.clear()
        self.known[key] = series
        return series

    def _admitted(self, labels: Labels) -> Labels:
        """Return a new set of labels if there is room for it, else that of `other`."""
        other = (labels[0], OTHER, labels[2], OTHER)[: len(labels)]
        if other not in self._others:
            self._others.add(other)
            self._bytes += _most_bytes(other)
        more = 0 if labels == other else _most_bytes(labels)
        if len(self.series) >= MAX_SERIES or self._bytes + more > self.max_bytes:
            return other
        self._bytes += more
        return labels

    def families(self) -> Iterator[Metric]:
        """Yield the counters and histograms."""
        names, every = self.labels, list(self.series.items())
        requests = CounterMetricFamily("otel_llm_requests", "Requests ended.", labels=[*names, "outcome", "met"])
        for labels, series in every:
            for (outcome, met), number in list(series.requests.items()):
                requests.add_metric([*labels, outcome, met], number)
        yield requests
        for name, words, _, value in _COUNTERS:
            family = CounterMetricFamily(name, words, labels=names)
            for labels, series in every:
                family.add_metric(labels, value(series))
            yield family
        for name, words, _, histogram in _HISTOGRAMS:
            shown = HistogramMetricFamily(name, words, labels=names)
            for labels, series in every:
                shown.add_metric(labels, histogram(series).cumulative(), histogram(series).total)
            yield shown
        yield from self.replies.families()

    def totals(self) -> dict[tuple[str, str], Totals]:
        """Return the counters by class and place of measurement, for the live page."""
        found: defaultdict[tuple[str, str], Totals] = defaultdict(Totals)
        for labels, series in list(self.series.items()):
            key = labels[0], labels[2]
            found[key] = found[key].plus(series.totals())
        return dict(found)

    def gauges(self, counts: Mapping[Key, Sequence[int]]) -> Iterator[Metric]:
        """Yield the gauges of streams in flight, of starving readers and of runways.

        `counts`: the number of streams in each of RUNWAY_BANDS, by key. For the evaluator's thread: a new key gets its
        series here.
        """
        numbers: defaultdict[Labels, list[int]] = defaultdict(lambda: [0] * len(RUNWAY_BANDS))
        for key, bands in counts.items():
            found = numbers[self._of(key).labels]
            found[:] = map(add, found, bands)
        for name, words, _, value in _GAUGES:
            gauge = GaugeMetricFamily(name, words, labels=self.labels)
            for labels in self.series:
                gauge.add_metric(labels, value(numbers[labels]))
            yield gauge
        runways = GaugeMetricFamily(*_RUNWAYS, labels=[*self.labels, "runway"])
        for labels in self.series:
            for band, number in zip(RUNWAY_BANDS, numbers[labels], strict=True):
                runways.add_metric([*labels, band], number)
        yield runways


def _most_bytes(labels: Labels) -> int:
    """Return the most bytes that a set of labels can take in a scrape."""
    lines, empty = _lines_of_a_set(by_instance=len(labels) > len(LABELS))
    return empty + lines * (sum(map(escaped_bytes, labels)) + LONGEST_NUMBER)


@cache
def _lines_of_a_set(*, by_instance: bool) -> tuple[int, int]:
    """Return the number of a label set's lines in a scrape, and their bytes with empty values."""
    metrics = UserMetrics(by_instance=by_instance)
    empty: Labels = ("",) * len(metrics.labels)
    every = dict.fromkeys(product(OUTCOMES, ("true", "false", "null")), 0)
    metrics.series[empty] = Series(empty, requests=every)
    text = text_of([*metrics.families(), *metrics.gauges({})])
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith(b"#")]
    return len(lines), sum(map(len, lines))


def _listed(value: str, names: frozenset[str] | None) -> str:
    """Return a label value if it is allowed, else `other`; unknown ("") is allowed."""
    return value if names is None or not value or value in names else OTHER


_COUNTERS: Final[tuple[tuple[str, str, str, Callable[[Series], float]], ...]] = (
    ("otel_llm_tokens_read", "Tokens that the class's user reads.", "{token}", lambda one: one.tokens_read),
    ("otel_llm_tokens_met", "Tokens read of requests that met their deadlines.", "{token}", lambda one: one.tokens_met),
    ("otel_llm_idle_seconds", "Idle time of readers.", "s", lambda one: one.idle_ns / 1e9),
    (
        "otel_llm_penalty_tokens",
        "Cost of idle time, charged while it happens.",
        "{token}",
        lambda one: one.penalty_tokens,
    ),
    (
        "otel_llm_penalty_refunded_tokens",
        "Refunds of that cost, for idle time that later segments disprove.",
        "{token}",
        lambda one: one.refunded_tokens,
    ),
    ("otel_llm_deadlines", "Token deadlines that fell due.", "{deadline}", lambda one: one.deadlines),
    ("otel_llm_deadline_misses", "Token deadlines missed.", "{deadline}", lambda one: one.deadline_misses),
)
_HISTOGRAMS: Final[tuple[tuple[str, str, str, Callable[[Series], Histogram]], ...]] = (
    ("otel_llm_ttft_seconds", "Time to the first token of any kind.", "s", lambda one: one.ttft),
    (
        "otel_llm_time_to_first_visible_token_seconds",
        "Time to the first token that the class's user reads.",
        "s",
        lambda one: one.visible,
    ),
    ("otel_llm_tbt_seconds", "Time between tokens.", "s", lambda one: one.tbt),
    ("otel_llm_idle_seconds", "User idle latency of a request.", "s", lambda one: one.idle),
    ("otel_llm_fluidity_index", "Share of a request's token deadlines met.", "1", lambda one: one.fluidity),
)
_GAUGES: Final[tuple[tuple[str, str, str, Callable[[Sequence[int]], int]], ...]] = (
    ("otel_llm_streams_in_flight", "Streams between commit and end.", "{stream}", sum),
    ("otel_llm_streams_starving", "Streams in flight whose reader waits.", "{stream}", lambda bands: bands[0]),
)
_RUNWAYS: Final = ("otel_llm_streams_by_runway", "Streams in flight by the reading time that is left.")
USER_UNITS: Final[dict[str, str]] = {
    "otel_llm_requests": "{request}",
    **{name: unit for name, _, unit, _ in _COUNTERS},
    **{name: unit for name, _, unit, _ in _HISTOGRAMS},
    **{name: unit for name, _, unit, _ in _GAUGES},
    _RUNWAYS[0]: "{stream}",
    STATED_REPLIES: "1",
}
"""The UCUM unit of each family, for OTLP."""
