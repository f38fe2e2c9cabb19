"""The dashboard *The collector itself*: what arrives, what is dropped, how far behind it is, and its disk."""

from __future__ import annotations

from typing import Final

from generator.layout import Dashboard, Row, Variable
from generator.metric_table import METRICS, help_of, series
from generator.panels import BAD, WARN, Panel, Query, Steps
from generator.promql import own, quantile, rate, rates, total

PREFIX: Final = "otel_llm_collector_"
FAILURES: Final = ("Failures", "collector-failures.md")
TROUBLE: Final = ("Troubleshooting", "troubleshooting.md")
LIVE_PAGE: Final = (("The live page", "live-page.md"),)


def own_panel(
    title: str,
    *names: str,
    unit: str = "",
    label: str = "",
    steps: Steps = (),
    width: int = 8,
    links: tuple[tuple[str, str], ...] = (FAILURES,),
) -> Panel:
    """Return a panel of the collector's own metrics: counters as rates, gauges as they are.

    Its description is made of their help texts, its unit of theirs; `names` are without the prefix. `label`: a further
    label that tells series apart.
    """
    full = [PREFIX + name for name in names]
    kinds = {METRICS[name].kind for name in full}
    if len(kinds) != 1:
        raise ValueError(f"{title}: counters and gauges need panels of their own")
    by = ("instance", label) if label else ("instance",)
    counted = kinds == {"counter"}
    queries = []
    for name, short in zip(full, names, strict=True):
        words = "" if len(names) == 1 else short.removesuffix("_total").replace("_", " ") + " "
        legend = f"{words}{{{{{label}}}}} {{{{instance}}}}" if label else f"{words}{{{{instance}}}}"
        queries.append(Query(rates(own(name), *by) if counted else own(name), legend))
    helps = " ".join(dict.fromkeys(help_of(name) for name in full))
    seconds = " A second." if counted else ""
    return Panel(
        title, helps + seconds, tuple(queries), unit or _unit(full[0], counted), width=width, steps=steps, links=links
    )


def _unit(name: str, counted: bool) -> str:
    if METRICS[name].unit == "By":
        return "Bps" if counted else "bytes"
    if METRICS[name].unit == "s":
        return "s"
    return "cps" if counted else "short"


NOW: Final = (
    Panel(
        "Collectors that answer",
        "Collectors that Prometheus scrapes, of those that it knows under this job.",
        (Query(total(own("up")), "answer"), Query(f"count({own('up')})", "known")),
        "short", "stat", 6, 5, links=(FAILURES,),
    ),
    Panel(
        "Journals that cannot be written",
        "Such a collector acknowledges nothing: senders come back for two minutes, then what they hold is lost.",
        (Query(total(own("otel_llm_collector_journal_failing")), "failing"),),
        "short", "stat", 6, 5, ((1, BAD),), links=(FAILURES,),
    ),
    Panel(
        "Longest lag",
        "Age of the oldest export that is not evaluated yet. Beyond the lateness (5 s) rules see the past.",
        (Query(f"max({own('otel_llm_collector_lag_seconds')})", "lag"),),
        "s", "stat", 6, 5, ((1, WARN), (5, BAD)), links=(TROUBLE,),
    ),
    Panel(
        "Streams in flight",
        "Streams between commit and verdict, of all collectors.",
        (Query(total(own("otel_llm_collector_in_flight")), "streams"),),
        "short", "stat", 6, 5, links=(("Sizing", "sizing.md"),),
    ),
)  # fmt: skip

ARRIVING: Final = (
    own_panel("Exports", "received_exports_total", "exports_total"),
    own_panel("Tokens", "received_tokens_total", "tokens_total"),
    own_panel("Spans", "received_spans_total", "segments_total", "request_spans_total", "ignored_spans_total"),
    own_panel("Exports refused", "refused_exports_total", label="reason", steps=((0.001, BAD),)),
    own_panel("Spans refused", "refused_spans_total", label="reason", links=(TROUBLE,)),
    own_panel("Anomalies", "anomalies_total", label="name", links=(TROUBLE,)),
)

MISSING: Final = (
    own_panel("Streams judged, lost and partial", "judged_total", "lost_total", "partial_total", links=(TROUBLE,)),
    own_panel(
        "Late", "late_segments_total", "late_after_verdict_total", "late_request_spans_total", "late_for_window_total",
        links=(TROUBLE,),
    ),
    own_panel(
        "Repeated or missing", "duplicate_segments_total", "duplicate_request_spans_total",
        "missing_empty_segments_total", links=(TROUBLE,),
    ),
    own_panel("Clocks", "skewed_tokens_total", "shifted_streams_total", links=(TROUBLE,)),
    own_panel("Names that are not known", "unknown_slo_class_total", "folded_groups_total", links=(TROUBLE,)),
    own_panel("Gave way in full tables", "gave_way_total", label="table", links=(TROUBLE,)),
    own_panel("Bugs of ours", "internal_errors_total", steps=((0.001, BAD),), links=(TROUBLE,)),
)  # fmt: skip

EVALUATING: Final = (
    own_panel("Queue", "queue", links=(TROUBLE,)),
    own_panel("Evaluation lag", "lag_seconds", steps=((1, WARN), (5, BAD)), links=(TROUBLE,)),
    own_panel("Streams in flight", "in_flight", links=(("Sizing", "sizing.md"),)),
    Panel(
        "From a flip to the written decision",
        f"{help_of('otel_llm_collector_decision_seconds_bucket')} 99th percentile.",
        (Query(quantile(0.99, own("otel_llm_collector_decision_seconds_bucket"), "instance"), "{{instance}} p99"),),
        "s", steps=((0.05, WARN), (1, BAD)), links=(TROUBLE,),
    ),
    Panel(
        "CPU time",
        "Cores in use by the main process. The gRPC worker is a process of its own, which is not in here.",
        (Query(rate(own("process_cpu_seconds_total")), "{{instance}}"),),
        "none", links=(("Sizing", "sizing.md"),),
    ),
    Panel(
        "Memory",
        "Resident memory of the main process. The gRPC worker is a process of its own, which is not in here.",
        (Query(own("process_resident_memory_bytes"), "{{instance}}"),),
        "bytes", range=(0, None), links=(("Sizing", "sizing.md"),),
    ),
)  # fmt: skip

JOURNAL: Final = (
    own_panel("Written to the journal", "journal_bytes_total"),
    own_panel("Size of the journal's folder", "journal_folder_bytes", links=(("Disk", "deployment.md"),)),
    own_panel("Journal records and fsyncs", "journal_records_total", "journal_fsyncs_total"),
    own_panel(
        "Journal errors", "journal_write_errors_total", "journal_fsync_errors_total", "journal_compress_errors_total",
        steps=((0.001, BAD),),
    ),
    own_panel("Journal files", "journal_files"),
    own_panel("Files compressed and deleted", "journal_compressed_files_total", "journal_deleted_files_total"),
)  # fmt: skip

SENDING: Final = (
    own_panel(
        "Forwarded", "forward_sent_total", "forward_dropped_total", "forward_failed_total", "forward_retries_total",
        "forward_rejected_spans_total",
    ),
    own_panel("Queues to others", "forward_queued_bytes", "windows_out_queued_bytes"),
    own_panel(
        "Windows and metrics sent over OTLP", "windows_out_sent_total", "windows_out_dropped_total",
        "windows_out_failed_total", "metrics_out_sent_total", "metrics_out_failed_total",
    ),
    own_panel("Reloads", "reloads_total", "reload_errors_total", links=(("Operations", "collector-operations.md"),)),
    own_panel("Exports replayed from the journal", "replayed_total"),
    own_panel("Journal records skipped in a replay", "replay_skipped_total", label="reason"),
    own_panel("Viewers of the live page", "viewers", links=LIVE_PAGE),
    own_panel("Viewers dropped", "viewers_dropped_total", links=LIVE_PAGE),
)  # fmt: skip

DASHBOARD: Final = Dashboard(
    "collector",
    "otel-llm / The collector itself",
    "What arrives, what is refused, late or lost, how far behind the collectors are, and their disks.",
    (
        Variable("job", "Job", series("otel_llm_collector_queue")),
        Variable("instance", "Collector", series("otel_llm_collector_queue", 'job=~"$job"')),
    ),
    (
        Row("Now", NOW),
        Row("What arrives", ARRIVING),
        Row("What is missing", MISSING),
        Row("Evaluation", EVALUATING),
        Row("The journal", JOURNAL),
        Row("Out, reloads, restarts and viewers", SENDING),
    ),
)
