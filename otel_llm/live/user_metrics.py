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
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from otel_llm.core.fair_shares import FairTable
from otel_llm.formats.records import DEFAULT_TENANT
from otel_llm.live.exposition import text_of
from otel_llm.live.histogram import NS_PER_S, Histogram
from otel_llm.live.labels import METRICS_BYTES, escaped_bytes, shortened
from otel_llm.live.stated_replies import FAMILY as STATED_REPLIES
from otel_llm.live.stated_replies import StatedReplies
from otel_llm.slo.classes import OUTCOMES
from otel_llm.slo.metrics import COMPUTED, HISTOGRAMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from otel_llm.formats.rows import Row
    from otel_llm.slo.stated_total import StatedReply
    from otel_llm.slo.verdict import Verdict


class EndedReply(NamedTuple):
    """A reply that has ended: its verdict, None if it cannot be judged, and the gaps between its tokens.

    `gaps_ns`: (n,) int64, in any order, not to be changed; `zero_gaps`: further ones of 0. `met`: of its row.
    """

    outcome: str
    met: object
    verdict: Verdict | None
    gaps_ns: Sequence[int] = ()
    zero_gaps: int = 0


class Key(NamedTuple):
    """The class, model, place of measurement, instance and tenant of a stream; "" if unknown."""

    slo_class: str
    model: str
    measured_at: str
    instance: str
    tenant: str = DEFAULT_TENANT


Labels = tuple[str, ...]

LABELS: Final = ("slo_class", "model", "measured_at")
OTHER: Final = "other"
MAX_SERIES: Final = 500
"""The most label sets, besides those of `other`, so that telemetry cannot fill the memory."""
OTHER_FAMILIES_BYTES: Final = 128 * 1024
"""The part of a scrape that is reserved for the collector's own metrics."""
LONGEST_NUMBER: Final = 24
"""Characters of a float in the text format, with sign and exponent."""
CACHED_KEYS: Final = 4096
"""The size of the cache of series by key; a full cache is cleared."""

RUNWAY_BOUNDS_S: Final = (0, 1, 3, 10)
RUNWAY_BANDS: Final = ("waiting", "0-1s", "1-3s", "3-10s", "10s+")
"""The bands between these bounds; a runway at a bound is in the band above it."""


def met_word(met: object) -> str:
    """Return the label of a verdict: `true`, `false` or `null`."""
    return "null" if met is None else "true" if met else "false"


def _no_requests() -> dict[tuple[str, str], int]:
    # Counters of verdicts begin at 0, before the first request: `rate` ignores a counter's first value.
    return dict.fromkeys(product(OUTCOMES, ("true", "false")), 0)


def _no_values() -> dict[str | None, Histogram]:
    return {one.column: Histogram(one.buckets, NS_PER_S if one.unit == "s" else 1) for one in HISTOGRAMS}


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
    histograms: dict[str | None, Histogram] = field(default_factory=_no_values)
    """By column; that of None is of the gaps between tokens."""

    def ended(self, outcomes: Iterable[tuple[str, object]]) -> None:
        """Count requests by outcome and by whether they met their deadlines."""
        for outcome, met in outcomes:
            words = (outcome, met_word(met))
            self.requests[words] = self.requests.get(words, 0) + 1


@dataclass(slots=True)
class UserMetrics:
    """The counts of all label sets: class, model, place of measurement.

    Args:
        by_instance: whether `instance` is a label, too.
        models, instances: the allowed values of these labels, others count as `other`; None: all.
        max_bytes: of a scrape.

    At most MAX_SERIES label sets, and `max_bytes` of them, are kept. Beyond that, one without a stream in flight gives
    way, and begins again from 0 when it comes back; it belongs to the tenant that sent it first (`FairTable`). If none
    gives way, the new one counts as `other`.

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
    _table: FairTable[Labels] = field(init=False)
    """The label sets and their bytes at most, but those of `other`: one for each class and place of measurement."""
    _held: set[Labels] = field(default_factory=set)
    """The label sets with streams in flight, when this was last noted."""
    _others: set[Labels] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._table = FairTable(MAX_SERIES, self.max_bytes - OTHER_FAMILIES_BYTES)

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

    def judged(self, key: Key, replies: Sequence[EndedReply]) -> None:
        """Count the verdicts on replies."""
        series = self._of(key)
        series.ended((reply.outcome, reply.met) for reply in replies)
        verdicts = [reply.verdict for reply in replies if reply.verdict is not None]
        for verdict in verdicts:
            if verdict.met:
                series.tokens_met += verdict.tokens_read
            if verdict.deadlines:
                series.deadlines += verdict.deadlines
                series.deadline_misses += verdict.deadline_misses or 0
        for column, formula in _OBSERVED:
            # Of a time the exact ns.
            values = map(formula.top if formula.in_ns else formula.of, verdicts)
            series.histograms[column].observe_all([value for value in values if value is not None])
        gaps = series.histograms[None]
        for reply in replies:
            if reply.verdict is not None:
                gaps.observe_all(reply.gaps_ns)
                gaps.observe(0, reply.zero_gaps)

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
        """Count the row of another instrumentation's span, and its TTFT if the span states one."""
        series, ttft_s = self._of(Key(*(str(row[name] or "") for name in Key._fields))), row["ttft_s"]
        series.ended([(str(row["outcome"]), row["met"])])
        if isinstance(ttft_s, int | float):
            series.histograms["ttft_s"].observe(round(ttft_s * NS_PER_S))

    @property
    def is_full(self) -> bool:
        """Return whether a new set of labels needs another to give way."""
        return self._table.is_full

    @property
    def gave_way(self) -> dict[str, int]:
        """Return how many label sets gave way to others, by table."""
        return {"series": self._table.gave_way, "token_estimates": self.replies.gave_way}

    def hold(self, keys: Iterable[Key]) -> None:
        """Note the keys that have streams in flight: their label sets do not give way, but to a tenant with fewer."""
        found = {labels for key in keys if (labels := self._labels_of(key)) in self._table}
        for labels in self._held - found:
            self._table.rest(labels)
        for labels in found - self._held:
            self._table.hold(labels)
        self._held = found

    def _of(self, key: Key) -> Series:
        """Return the series of a key, created if it is new."""
        series = self.known.get(key)
        if series is None or self.series.get(series.labels) is not series:
            series = self._find(key)
        if series.labels in self._table:
            self._table.touch(series.labels)
        return series

    def _labels_of(self, key: Key) -> Labels:
        """Return the labels that a key has if there is room for them."""
        known = self.known.get(key)
        if known is not None:
            return known.labels
        labels: Labels = (key.slo_class, _listed(key.model, self.models), key.measured_at)
        if self.by_instance:
            labels = (*labels, _listed(key.instance, self.instances))
        return tuple(map(shortened, labels))

    def _find(self, key: Key) -> Series:
        labels = self._labels_of(key)
        has_room = labels in self.series or self._admit(labels, key.tenant)
        if not has_room:
            labels = _other(labels)
        series = self.series.get(labels)
        if series is None:
            series = self.series[labels] = Series(labels)
        if has_room:  # else there may be room for it later
            if len(self.known) >= CACHED_KEYS:
                self.known.clear()
            self.known[key] = series
        return series

    def _admit(self, labels: Labels, tenant: str) -> bool:
        """Return whether there is room for a new set of labels; what gives way to it is forgotten."""
        other = _other(labels)
        if other not in self._others:
            self._others.add(other)
            self._forget(self._table.reserve(0, _most_bytes(other)))
        if labels == other:
            return True
        self._forget(self._table.admit(labels, tenant, 1, _most_bytes(labels)))
        return labels in self._table

    def _forget(self, gone: Iterable[Labels]) -> None:
        for labels in gone:
            del self.series[labels]
            self._held.discard(labels)

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
        for one in HISTOGRAMS:
            shown = HistogramMetricFamily(one.name, one.help, labels=names)
            for labels, series in every:
                histogram = series.histograms[one.column]
                shown.add_metric(labels, histogram.cumulative(), histogram.total)
            yield shown
        yield from self.replies.families()

    def gauges(self, counts: Mapping[Key, Sequence[int]]) -> Iterator[Metric]:
        """Yield the gauges of streams in flight, of starving readers and of runways.

        `counts`: the number of streams in each of RUNWAY_BANDS, by key. For the evaluator's thread: a new key gets its
        series here.
        """
        numbers: defaultdict[Labels, list[int]] = defaultdict(lambda: [0] * len(RUNWAY_BANDS))
        self.hold(counts)
        for key in counts:  # all of them first: one may give way to another tenant's
            labels = self._of(key).labels
            if labels in self._table:
                self._table.hold(labels)
                self._held.add(labels)
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


def _other(labels: Labels) -> Labels:
    """Return the set of `other` in place of these labels."""
    return (labels[0], OTHER, labels[2], OTHER)[: len(labels)]


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
_OBSERVED: Final = tuple((one.column, COMPUTED[one.column]) for one in HISTOGRAMS if one.column is not None)
"""The columns with a histogram, and their formulas."""
_GAUGES: Final[tuple[tuple[str, str, str, Callable[[Sequence[int]], int]], ...]] = (
    ("otel_llm_streams_in_flight", "Streams between commit and end.", "{stream}", sum),
    ("otel_llm_streams_starving", "Streams in flight whose reader waits.", "{stream}", lambda bands: bands[0]),
)
_RUNWAYS: Final = ("otel_llm_streams_by_runway", "Streams in flight by the reading time that is left.")
USER_UNITS: Final[dict[str, str]] = {
    "otel_llm_requests": "{request}",
    **{name: unit for name, _, unit, _ in _COUNTERS},
    **{one.name: one.unit for one in HISTOGRAMS},
    **{name: unit for name, _, unit, _ in _GAUGES},
    _RUNWAYS[0]: "{stream}",
    STATED_REPLIES: "1",
}
"""The UCUM unit of each family, for OTLP."""
