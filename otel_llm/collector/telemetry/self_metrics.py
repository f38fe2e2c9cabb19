"""The collector's own metrics: one table for `/metrics`, OTLP metrics and the docs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from otel_llm.actions.execute.circuit_breaker import CIRCUIT_OPEN
from otel_llm.live.histogram import Histogram
from otel_llm.rules.prometheus.own_rules import COLLECTOR_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True)
class OwnMetric:
    """One metric.

    `name`: without `otel_llm_collector_` and `_total`. `unit`: in UCUM. `source`: its key in the collector's counts if
    that is not its name; 0 if the key is absent. With a `label`, `source` is the prefix of several keys, which end in
    values of the label.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    help: str
    source: str = ""
    label: str = ""

    @property
    def key(self) -> str:
        """Return `source`, or the name if there is none."""
        return self.source or self.name

    @property
    def family(self) -> str:
        """Return the name of the family."""
        return COLLECTOR_PREFIX + self.name


OWN_METRICS: Final = (
    # Received.
    OwnMetric(
        "received_exports",
        "counter",
        "{export}",
        "Export requests that could be decoded, also those refused afterwards.",
    ),
    OwnMetric("received_spans", "counter", "{span}", "Spans in decoded export requests."),
    OwnMetric("received_tokens", "counter", "{token}", "Token events in them, also repeated ones."),
    # Accepted.
    OwnMetric("exports", "counter", "{export}", "Export requests acknowledged."),
    OwnMetric("segments", "counter", "{segment}", "Segments accepted."),
    OwnMetric("tokens", "counter", "{token}", "Token events accepted."),
    OwnMetric("request_spans", "counter", "{span}", "Request spans accepted."),
    # Refused, ignored, repeated, late.
    OwnMetric(
        "refused_exports",
        "counter",
        "{export}",
        "Export requests refused, by reason.",
        source="refused_export.",
        label="reason",
    ),
    OwnMetric(
        "refused_spans",
        "counter",
        "{span}",
        "otel-llm spans that could not be used.",
        source="refused.",
        label="reason",
    ),
    OwnMetric("anomalies", "counter", "{span}", "Anomalies in spans that were used.", source="anomaly.", label="name"),
    OwnMetric("ignored_spans", "counter", "{span}", "Spans that are not otel-llm's."),
    OwnMetric("duplicate_segments", "counter", "{segment}", "Segments received again."),
    OwnMetric("duplicate_request_spans", "counter", "{span}", "Request spans received again."),
    OwnMetric("late_segments", "counter", "{segment}", "Segments older than the lateness on arrival."),
    OwnMetric(
        "late_after_verdict",
        "counter",
        "{segment}",
        "Segments of streams that were already judged (late, or received again).",
        source="late_or_duplicate_segments",
    ),
    OwnMetric("late_request_spans", "counter", "{span}", "Request spans of requests already judged."),
    OwnMetric("late_for_window", "counter", "{event}", "Events and segments of a window that had closed."),
    OwnMetric(
        "missing_empty_segments", "counter", "{segment}", "Empty segments that were not received (no token is missing)."
    ),
    # Streams.
    OwnMetric("judged", "counter", "{stream}", "Streams judged."),
    OwnMetric("lost", "counter", "{stream}", "Streams whose end was not received."),
    OwnMetric(
        "partial",
        "counter",
        "{stream}",
        "Streams whose segment 0 was not received: they began at another collector, or it was lost.",
    ),
    OwnMetric("skewed_tokens", "counter", "{token}", "Tokens recorded before the commit."),
    OwnMetric("shifted_streams", "counter", "{stream}", "Streams placed in windows by a measured clock offset."),
    OwnMetric("unknown_slo_class", "counter", "{stream}", "Streams that name an unknown class."),
    OwnMetric("folded_groups", "counter", "{group}", "Instances and classes that rules see as `other`."),
    OwnMetric(
        "gave_way", "counter", "{entry}", "Entries that gave way in a full table.", source="gave_way.", label="table"
    ),
    OwnMetric("in_flight", "gauge", "{stream}", "Streams between commit and verdict."),
    # The evaluator.
    OwnMetric("queue", "gauge", "{export}", "Export requests accepted and not yet evaluated."),
    OwnMetric("lag_seconds", "gauge", "s", "Age of the oldest of them."),
    OwnMetric("decisions", "counter", "{decision}", "Decisions of rules."),
    OwnMetric(
        "decisions_left_out",
        "counter",
        "{decision}",
        "Those in shadow without a record or line of their own: too many of one rule and tenant.",
    ),
    OwnMetric(
        "verdicts_left_out", "counter", "{verdict}", "Verdicts without a line on the console: too many of one tenant."
    ),
    # Alerts.
    OwnMetric("alerts_firing", "gauge", "{alert}", "Alerts that fire."),
    OwnMetric("alerts_left_out", "counter", "{decision}", "Firings without an alert: the table is full."),
    OwnMetric("alerts_unwritten", "counter", "{write}", "Failed writes of the state of alerts."),
    OwnMetric("alertmanager_sent", "counter", "{alert}", "Alerts sent, also repeatedly."),
    OwnMetric("alertmanager_refused", "counter", "{alert}", "Alerts that Alertmanager refused."),
    OwnMetric("alertmanager_failures", "counter", "{request}", "Failed requests."),
    OwnMetric("notifications_waiting", "gauge", "{message}", "Queued notifications."),
    OwnMetric("notifications_sent", "counter", "{message}", "Delivered notifications."),
    OwnMetric("notifications_retries", "counter", "{attempt}", "Failed attempts."),
    OwnMetric("notifications_given_up", "counter", "{message}", "Notifications in the dead letters."),
    OwnMetric(
        "actions",
        "counter",
        "{action}",
        "Enforced actions, without alerts, by outcome.",
        source="actions.",
        label="outcome",
    ),
    OwnMetric("actions_open", "gauge", "{action}", "Enforced actions without an outcome yet."),
    OwnMetric(
        "action_circuit_open",
        "gauge",
        "{state}",
        "1 while no actions are sent to a receiver or engine, which did not answer in time, else 0.",
        source=CIRCUIT_OPEN,
        label="target",
    ),
    OwnMetric("action_tries", "counter", "{attempt}", "Requests sent for them."),
    # The live page.
    OwnMetric("viewers", "gauge", "{viewer}", "Viewers of the live page."),
    OwnMetric("viewers_dropped", "counter", "{viewer}", "Viewers dropped: they read too slowly."),
    OwnMetric("unwritten", "counter", "{line}", "Decision and window lines not written."),
    OwnMetric("internal_errors", "counter", "{error}", "Batches that met a bug of ours."),
    OwnMetric("reloads", "counter", "{reload}", "Successful reloads of rules, classes and so on."),
    OwnMetric("reload_errors", "counter", "{reload}", "Failed reloads; the old configuration stays."),
    OwnMetric("replayed", "counter", "{export}", "Export requests replayed from the journal at start."),
    OwnMetric(
        "replay_skipped",
        "counter",
        "{record}",
        "Records of the journal skipped in the replay, by reason.",
        source="replay_skipped.",
        label="reason",
    ),
    # The journal.
    OwnMetric("journal_records", "counter", "{record}", "Records written to the journal."),
    OwnMetric("journal_bytes", "counter", "By", "Bytes written to the journal."),
    OwnMetric("journal_files", "gauge", "{file}", "Files in the journal's folder."),
    OwnMetric("journal_folder_bytes", "gauge", "By", "Size of these files."),
    OwnMetric("journal_write_errors", "counter", "{error}", "Writes to the journal that failed."),
    OwnMetric("journal_fsyncs", "counter", "{call}", "Successful fsyncs of the journal."),
    OwnMetric("journal_fsync_errors", "counter", "{call}", "Failed fsyncs of the journal."),
    OwnMetric("journal_compressed_files", "counter", "{file}", "Closed files compressed."),
    OwnMetric("journal_compress_errors", "counter", "{file}", "Failed compressions."),
    OwnMetric("journal_deleted_files", "counter", "{file}", "Files deleted by retention."),
    OwnMetric("journal_failing", "gauge", "{state}", "1 while the journal cannot be written, else 0."),
    # Egress.
    OwnMetric("forward_queued_bytes", "gauge", "By", "Exports in the forwarding queue."),
    OwnMetric("forward_sent", "counter", "{export}", "Exports forwarded."),
    OwnMetric("forward_dropped", "counter", "{export}", "Exports not forwarded: the queue was full."),
    OwnMetric("forward_failed", "counter", "{export}", "Exports not forwarded: refused."),
    OwnMetric("forward_retries", "counter", "{attempt}", "Failed attempts that may be repeated."),
    OwnMetric("forward_rejected_spans", "counter", "{span}", "Spans of forwarded exports that the backend rejected."),
    OwnMetric("windows_out_queued_bytes", "gauge", "By", "Windows in the queue of logs."),
    OwnMetric("windows_out_sent", "counter", "{window}", "Windows sent as logs."),
    OwnMetric("windows_out_dropped", "counter", "{window}", "Windows not sent: the queue was full."),
    OwnMetric("windows_out_failed", "counter", "{window}", "Windows not sent: refused."),
    OwnMetric("metrics_out_sent", "counter", "{export}", "Exports of these metrics."),
    OwnMetric("metrics_out_failed", "counter", "{export}", "Failed exports of these metrics."),
)

DECISION_FAMILY: Final = f"{COLLECTOR_PREFIX}decision_seconds"
DECISION_HELP: Final = "From the instant at which a rule's condition changed to the written record of the decision."
DECISION_BUCKETS_S: Final = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 1.0, 5.0,
)  # fmt: skip
"""Fine below 50 ms: a decision should be written within that."""

OWN_UNITS: Final[dict[str, str]] = {one.family: one.unit for one in OWN_METRICS} | {DECISION_FAMILY: "s"}
"""The UCUM unit of each family, for OTLP."""


@dataclass(slots=True)
class DecisionLatency:
    """The time of decisions from the change of the condition, by the collector's clock, to the written record."""

    histogram: Histogram = field(default_factory=lambda: Histogram(DECISION_BUCKETS_S))

    def observe_ns(self, ns: int) -> None:
        """Count one decision of `ns`; a negative time (a sender's clock runs ahead) counts as 0."""
        self.histogram.observe(max(0, ns))

    def families(self) -> Iterator[Metric]:
        """Yield the histogram."""
        family = HistogramMetricFamily(DECISION_FAMILY, DECISION_HELP)
        family.add_metric((), self.histogram.cumulative(), self.histogram.total)
        yield family


def own_families(counts: Mapping[str, int | float]) -> Iterator[Metric]:
    """Yield the families of OWN_METRICS from the collector's counts."""
    for one in OWN_METRICS:
        kind = CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily
        family = kind(one.family, one.help, labels=[one.label] if one.label else ())
        if one.label:
            for key in sorted(key for key in counts if key.startswith(one.key)):
                family.add_metric([key.removeprefix(one.key)], counts[key])
        else:
            family.add_metric((), counts.get(one.key, 0))
        yield family


def process_families() -> Iterator[Metric]:
    """Yield the CPU time, memory and open files of this process, under Prometheus's usual names (Linux only)."""
    yield from ProcessCollector(registry=None).collect()


def own_metrics_table() -> str:
    """Return the table of the collector's own metrics in Markdown, for `docs/collector-metrics.md`."""
    rows: list[tuple[str, str, str]] = [
        (
            f"`{one.family}{'_total' if one.kind == 'counter' else ''}{f'{{{one.label}}}' if one.label else ''}`",
            one.kind,
            one.help,
        )
        for one in OWN_METRICS
    ]
    rows.append((f"`{DECISION_FAMILY}`", "histogram", DECISION_HELP))
    lines = ["| name | kind | what |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"
