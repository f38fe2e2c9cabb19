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

    `name`: without `otel_llm_collector_` and `_total`. `unit`: in UCUM. `source`: its key in the collector's counts, 0
    where the key is absent. With a `label`, `source` is the prefix of several keys, which end in values of the label.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    help: str
    source: str
    label: str = ""

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
        "received_exports",
    ),
    OwnMetric("received_spans", "counter", "{span}", "Spans in decoded export requests.", "received_spans"),
    OwnMetric("received_tokens", "counter", "{token}", "Token events in them, also repeated ones.", "received_tokens"),
    # Accepted.
    OwnMetric("exports", "counter", "{export}", "Export requests acknowledged.", "exports"),
    OwnMetric("segments", "counter", "{segment}", "Segments accepted.", "segments"),
    OwnMetric("tokens", "counter", "{token}", "Token events accepted.", "tokens"),
    OwnMetric("request_spans", "counter", "{span}", "Request spans accepted.", "request_spans"),
    # Refused, ignored, repeated, late.
    OwnMetric(
        "refused_exports", "counter", "{export}", "Export requests refused, by reason.", "refused_export.", "reason"
    ),
    OwnMetric("refused_spans", "counter", "{span}", "otel-llm spans that could not be used.", "refused.", "reason"),
    OwnMetric("anomalies", "counter", "{span}", "Anomalies in spans that were used.", "anomaly.", "name"),
    OwnMetric("ignored_spans", "counter", "{span}", "Spans that are not otel-llm's.", "ignored_spans"),
    OwnMetric("duplicate_segments", "counter", "{segment}", "Segments received again.", "duplicate_segments"),
    OwnMetric(
        "duplicate_request_spans", "counter", "{span}", "Request spans received again.", "duplicate_request_spans"
    ),
    OwnMetric("late_segments", "counter", "{segment}", "Segments older than the lateness on arrival.", "late_segments"),
    OwnMetric(
        "late_after_verdict",
        "counter",
        "{segment}",
        "Segments of streams that were already judged (late, or received again).",
        "late_or_duplicate_segments",
    ),
    OwnMetric(
        "late_request_spans", "counter", "{span}", "Request spans of requests already judged.", "late_request_spans"
    ),
    OwnMetric(
        "late_for_window", "counter", "{event}", "Events and segments of a window that had closed.", "late_for_window"
    ),
    OwnMetric(
        "missing_empty_segments",
        "counter",
        "{segment}",
        "Empty segments that were not received (no token is missing).",
        "missing_empty_segments",
    ),
    # Streams.
    OwnMetric("judged", "counter", "{stream}", "Streams judged.", "judged"),
    OwnMetric("lost", "counter", "{stream}", "Streams whose end was not received.", "lost"),
    OwnMetric(
        "partial",
        "counter",
        "{stream}",
        "Streams whose segment 0 was not received: they began at another collector, or it was lost.",
        "partial",
    ),
    OwnMetric("skewed_tokens", "counter", "{token}", "Tokens recorded before the commit.", "skewed_tokens"),
    OwnMetric(
        "shifted_streams",
        "counter",
        "{stream}",
        "Streams placed in windows by a measured clock offset.",
        "shifted_streams",
    ),
    OwnMetric("unknown_slo_class", "counter", "{stream}", "Streams that name an unknown class.", "unknown_slo_class"),
    OwnMetric(
        "folded_groups", "counter", "{group}", "Instances and classes that rules see as `other`.", "folded_groups"
    ),
    OwnMetric("gave_way", "counter", "{entry}", "Entries that gave way in a full table.", "gave_way.", "table"),
    OwnMetric("in_flight", "gauge", "{stream}", "Streams between commit and verdict.", "in_flight"),
    # The evaluator.
    OwnMetric("queue", "gauge", "{export}", "Export requests accepted and not yet evaluated.", "queue"),
    OwnMetric("lag_seconds", "gauge", "s", "Age of the oldest of them.", "lag_seconds"),
    OwnMetric("decisions", "counter", "{decision}", "Decisions of rules.", "decisions"),
    OwnMetric(
        "decisions_left_out",
        "counter",
        "{decision}",
        "Those in shadow without a record or line of their own: too many of one rule and tenant.",
        "decisions_left_out",
    ),
    OwnMetric(
        "verdicts_left_out",
        "counter",
        "{verdict}",
        "Verdicts without a line on the console: too many of one tenant.",
        "verdicts_left_out",
    ),
    # Alerts.
    OwnMetric("alerts_firing", "gauge", "{alert}", "Alerts that fire.", "alerts_firing"),
    OwnMetric(
        "alerts_left_out", "counter", "{decision}", "Firings without an alert: the table is full.", "alerts_left_out"
    ),
    OwnMetric(
        "alerts_unwritten",
        "counter",
        "{write}",
        "Failed writes of the state of alerts.",
        "alerts_unwritten",
    ),
    OwnMetric("alertmanager_sent", "counter", "{alert}", "Alerts sent, also repeatedly.", "alertmanager_sent"),
    OwnMetric(
        "alertmanager_refused", "counter", "{alert}", "Alerts that Alertmanager refused.", "alertmanager_refused"
    ),
    OwnMetric("alertmanager_failures", "counter", "{request}", "Failed requests.", "alertmanager_failures"),
    OwnMetric("notifications_waiting", "gauge", "{message}", "Queued notifications.", "notifications_waiting"),
    OwnMetric("notifications_sent", "counter", "{message}", "Delivered notifications.", "notifications_sent"),
    OwnMetric("notifications_retries", "counter", "{attempt}", "Failed attempts.", "notifications_retries"),
    OwnMetric(
        "notifications_given_up", "counter", "{message}", "Notifications in the dead letters.", "notifications_given_up"
    ),
    OwnMetric("actions", "counter", "{action}", "Enforced actions, without alerts, by outcome.", "actions.", "outcome"),
    OwnMetric("actions_open", "gauge", "{action}", "Enforced actions without an outcome yet.", "actions_open"),
    OwnMetric(
        "action_circuit_open",
        "gauge",
        "{state}",
        "1 while no actions are sent to a receiver or engine, which did not answer in time, else 0.",
        CIRCUIT_OPEN,
        "target",
    ),
    OwnMetric("action_tries", "counter", "{attempt}", "Requests sent for them.", "action_tries"),
    # The live page.
    OwnMetric("viewers", "gauge", "{viewer}", "Viewers of the live page.", "viewers"),
    OwnMetric("viewers_dropped", "counter", "{viewer}", "Viewers dropped: they read too slowly.", "viewers_dropped"),
    OwnMetric("unwritten", "counter", "{line}", "Decision and window lines not written.", "unwritten"),
    OwnMetric("internal_errors", "counter", "{error}", "Batches that met a bug of ours.", "internal_errors"),
    OwnMetric("reloads", "counter", "{reload}", "Successful reloads of rules, classes and so on.", "reloads"),
    OwnMetric("reload_errors", "counter", "{reload}", "Failed reloads; the old configuration stays.", "reload_errors"),
    OwnMetric("replayed", "counter", "{export}", "Export requests replayed from the journal at start.", "replayed"),
    OwnMetric(
        "replay_skipped",
        "counter",
        "{record}",
        "Records of the journal skipped in the replay, by reason.",
        "replay_skipped.",
        "reason",
    ),
    # The journal.
    OwnMetric("journal_records", "counter", "{record}", "Records written to the journal.", "journal_records"),
    OwnMetric("journal_bytes", "counter", "By", "Bytes written to the journal.", "journal_bytes"),
    OwnMetric("journal_files", "gauge", "{file}", "Files in the journal's folder.", "journal_files"),
    OwnMetric("journal_folder_bytes", "gauge", "By", "Size of these files.", "journal_folder_bytes"),
    OwnMetric(
        "journal_write_errors", "counter", "{error}", "Writes to the journal that failed.", "journal_write_errors"
    ),
    OwnMetric("journal_fsyncs", "counter", "{call}", "Successful fsyncs of the journal.", "journal_fsyncs"),
    OwnMetric("journal_fsync_errors", "counter", "{call}", "Failed fsyncs of the journal.", "journal_fsync_errors"),
    OwnMetric("journal_compressed_files", "counter", "{file}", "Closed files compressed.", "journal_compressed_files"),
    OwnMetric("journal_compress_errors", "counter", "{file}", "Failed compressions.", "journal_compress_errors"),
    OwnMetric("journal_deleted_files", "counter", "{file}", "Files deleted by retention.", "journal_deleted_files"),
    OwnMetric(
        "journal_failing", "gauge", "{state}", "1 while the journal cannot be written, else 0.", "journal_failing"
    ),
    # Egress.
    OwnMetric("forward_queued_bytes", "gauge", "By", "Exports in the forwarding queue.", "forward_queued_bytes"),
    OwnMetric("forward_sent", "counter", "{export}", "Exports forwarded.", "forward_sent"),
    OwnMetric(
        "forward_dropped", "counter", "{export}", "Exports not forwarded: the queue was full.", "forward_dropped"
    ),
    OwnMetric("forward_failed", "counter", "{export}", "Exports not forwarded: refused.", "forward_failed"),
    OwnMetric("forward_retries", "counter", "{attempt}", "Failed attempts that may be repeated.", "forward_retries"),
    OwnMetric(
        "forward_rejected_spans",
        "counter",
        "{span}",
        "Spans of forwarded exports that the backend rejected.",
        "forward_rejected_spans",
    ),
    OwnMetric("windows_out_queued_bytes", "gauge", "By", "Windows in the queue of logs.", "windows_out_queued_bytes"),
    OwnMetric("windows_out_sent", "counter", "{window}", "Windows sent as logs.", "windows_out_sent"),
    OwnMetric(
        "windows_out_dropped", "counter", "{window}", "Windows not sent: the queue was full.", "windows_out_dropped"
    ),
    OwnMetric("windows_out_failed", "counter", "{window}", "Windows not sent: refused.", "windows_out_failed"),
    OwnMetric("metrics_out_sent", "counter", "{export}", "Exports of these metrics.", "metrics_out_sent"),
    OwnMetric("metrics_out_failed", "counter", "{export}", "Failed exports of these metrics.", "metrics_out_failed"),
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
            for key in sorted(key for key in counts if key.startswith(one.source)):
                family.add_metric([key.removeprefix(one.source)], counts[key])
        else:
            family.add_metric((), counts.get(one.source, 0))
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
