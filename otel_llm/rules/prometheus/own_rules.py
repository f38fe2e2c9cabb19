"""Prometheus rules beside the promises: what readers felt, for dashboards, and alerts on the collector itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.rules.prometheus.promql import JUDGED, Group, Labels, Rule, alert, quoted, record, selector

if TYPE_CHECKING:
    from collections.abc import Iterator

COLLECTOR_PREFIX: Final = "otel_llm_collector_"
"""The prefix of the collector's own metrics."""
LAG_S: Final = 5
"""The default of `--lateness`: beyond it a segment is late for its window, and rules see the past."""
LOST_SHARE: Final = 0.05
LOST_LEAST: Final = 30
"""Among so many streams judged in ten minutes, so large a share without a seen end is no accident."""
FULL: Final = ("behind", "busy", "internal", "journal", "streams")
"""Reasons of a refusal that lie with the collector, not with the sender: `stopping` is a restart."""


def readers_group(match: Labels) -> Group:
    """Return the recordings of what readers felt over five minutes, by class, model and place of measurement."""
    return {"name": "otel-llm-readers", "rules": list(_readers(match))}


def _readers(match: Labels) -> Iterator[Rule]:
    def rate(metric: str, **more: str) -> str:
        return f"sum by (slo_class, model, measured_at) (rate({selector(metric, match, **more)}[5m]))"

    read = rate("otel_llm_tokens_read_total")
    penalty, refund = rate("otel_llm_penalty_tokens_total"), rate("otel_llm_penalty_refunded_tokens_total")
    met, judged = rate("otel_llm_requests_total", met='="true"'), rate("otel_llm_requests_total", met=JUDGED)
    missed, due = rate("otel_llm_deadline_misses_total"), rate("otel_llm_deadlines_total")
    for name, expr in (
        ("throughput_tokens:rate5m", read),
        ("goodput_tokens:rate5m", rate("otel_llm_tokens_met_total")),
        ("smooth_goodput_tokens:rate5m", f"{read}\n- {penalty}\n+ {refund}\n"),
        ("idle_seconds:rate5m", rate("otel_llm_idle_seconds_total")),
        ("attainment:ratio_rate5m", f"{met}\n/ ({judged} > 0)\n"),
        ("deadline_misses:ratio_rate5m", f"{missed}\n/ ({due} > 0)\n"),
    ):
        yield record(f"otel_llm:{name}", expr, match)


def collector_group(job: str, match: Labels) -> Group:
    """Return the alerts on the collector; `job`: the name under which it is scraped."""
    return {"name": "otel-llm-collector", "rules": list(_collector(job, match))}


def _collector(job: str, match: Labels) -> Iterator[Rule]:
    def own(name: str, **more: str) -> str:
        return selector(f"{COLLECTOR_PREFIX}{name}", match, **more)

    up = selector("up", match, job=f"={quoted(job)}")
    here = "{{ $labels.instance }}"
    yield alert(
        "OtelLlmCollectorDown",
        f"{up} == 0",
        "page",
        f"The otel-llm collector {here} cannot be scraped",
        "It is down, or its web port is: what readers feel is not known, and no rule acts. Senders keep two minutes.",
        wait="2m",
    )
    yield alert(
        "OtelLlmCollectorAbsent",
        f"absent({up})",
        "page",
        "No otel-llm collector is scraped",
        "Prometheus has no target of this job: the service is gone, or its scrape configuration is.",
        wait="5m",
    )
    yield alert(
        "OtelLlmCollectorBehind",
        f"{own('lag_seconds')} > {LAG_S}",
        "ticket",
        f"The otel-llm collector {here} is behind",
        "What it evaluates is {{ $value | humanizeDuration }} old: rules act late. It has too much to do, or its disk.",
        wait="2m",
    )
    lost, judged = (f"increase({own(name)}[10m])" for name in ("lost_total", "judged_total"))
    yield alert(
        "OtelLlmTelemetryStale",
        f"{lost} / {judged} > {LOST_SHARE}\nand\n{judged} >= {LOST_LEAST}\n",
        "ticket",
        f"Streams fall silent before their end at {here}",
        "Of {{ $value | humanizePercentage }} of the streams the end was never seen: applications die, or their "
        "exports do not arrive. Ratios say nothing of these streams.",
    )
    yield alert(
        "OtelLlmDecisionsUnwritten",
        f"increase({own('unwritten_total')}[10m]) > 0",
        "ticket",
        f"The otel-llm collector {here} cannot write its decisions or windows",
        "Lines are missing in the file of --decisions or --windows; the disk is full, or the file may not be written.",
    )
    yield alert(
        "OtelLlmAlertsUndelivered",
        f"rate({own('alertmanager_failures_total')}[5m]) > 0",
        "page",
        f"The otel-llm collector {here} does not reach Alertmanager",
        "What its rules say to Alertmanager does not arrive; it tries again. Look at both and at what lies between.",
        wait="5m",
    )
    yield alert(
        "OtelLlmNotificationsGivenUp",
        f"increase({own('notifications_given_up_total')}[10m]) > 0",
        "ticket",
        f"The otel-llm collector {here} gave up on notifications",
        "A receiver refused them, or did not answer for too long; they are in the dead letters.",
    )
    yield alert(
        "OtelLlmJournalFailing",
        f"{own('journal_failing')} == 1",
        "page",
        f"The otel-llm collector {here} cannot write its journal",
        "It acknowledges nothing: senders come back for two minutes, then what they hold is lost. /readyz says why.",
        wait="1m",
    )
    refused = own("refused_exports_total", reason="=~" + quoted("|".join(FULL)))
    yield alert(
        "OtelLlmExportsRefused",
        f"rate({refused}[5m]) > 0",
        "ticket",
        f"The otel-llm collector {here} refuses exports ({{{{ $labels.reason }}}})",
        "Senders try again; what they cannot hold meanwhile is lost.",
        wait="5m",
    )
    yield alert(
        "OtelLlmInternalErrors",
        f"increase({own('internal_errors_total')}[10m]) > 0",
        "ticket",
        f"The otel-llm collector {here} met a bug of its own",
        "It goes on, without what the batch held; the log has the traceback. Please report it.",
    )
