"""The dashboard *Rules and actions*: what fires, what was done about it, and whether people heard of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from generator.layout import FIRING, Dashboard, Row, Variable
from generator.metric_table import help_of, series
from generator.panels import BAD, DOCS, WARN, Panel, Query, median_and_p99
from generator.promql import own, quantile, rates, relays, total

PAGE: Final = Path(__file__).parents[3] / "docs" / "rules" / "README.md"
ALERTS: Final = ("Alerts", "alerts.md")
ACTIONS: Final = ("Actions", "actions.md")
COMMANDS: Final = ("Commands from a collector", "relay.md")
BUDGETS: Final = ("Error budgets", "prometheus.md")
RUNBOOKS: Final = ("Runbooks", "runbooks.md")


def rule_pages() -> str:
    """Return the table of the rules that ship, with links to their pages, as Markdown."""
    rows = re.findall(r"^\| \[(\w+)\]\((\S+)\) \| (\w+) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    lines = [f"| [{name}]({DOCS}/rules/{page}) | {scope} | {says} |" for name, page, scope, says in rows]
    return "\n".join(["| rule | scope | says |", "| --- | --- | --- |", *lines])


NOW: Final = (
    Panel(
        "Alerts of the collectors' rules",
        f"{help_of('otel_llm_collector_alerts_firing')} Alertmanager has their names.",
        (Query(total(own("otel_llm_collector_alerts_firing")), "firing"),),
        "short", "stat", 6, 5, ((1, WARN),), links=(RUNBOOKS, ALERTS),
    ),
    Panel(
        "Alerts of Prometheus",
        "Alerts on error budgets and on the collectors, by the rules that `otel-llm rules prometheus` wrote.",
        (Query(f"count({FIRING})", "firing"),),
        "short", "stat", 6, 5, ((1, WARN),), links=(RUNBOOKS, BUDGETS), none="0",
    ),
    Panel(
        "Actions without an outcome yet",
        "Enforced actions under way, of collectors and relays.",
        (
            Query(total(own("otel_llm_collector_actions_open")), "collectors"),
            Query(total(relays("otel_llm_relay_actions_open")), "relays"),
        ),
        "short", "stat", 6, 5, ((10, WARN),), links=(ACTIONS,),
    ),
    Panel(
        "From a flip to the written decision",
        "99th percentile, of the collectors: from the change of a condition to the record of the decision.",
        (Query(quantile(0.99, own("otel_llm_collector_decision_seconds_bucket")), "p99"),),
        "s", "stat", 6, 5, ((0.05, WARN), (1, BAD)),
    ),
)  # fmt: skip

RULES: Final = (
    Panel(
        "Alerts of Prometheus that fire",
        "Each with its labels. Alerts of the collectors' own rules go to Alertmanager straight.",
        (Query(FIRING, "{{alertname}}"),),
        "none", "table", 12, 9, links=(RUNBOOKS, BUDGETS),
    ),
    Panel("The rules that ship", "What each says, and its page.", (), "", "text", 12, 9, text=rule_pages()),
    Panel(
        "Decisions",
        "Decisions of rules a second, in shadow mode too: a flip, with what was done or would have been.",
        (
            Query(rates(own("otel_llm_collector_decisions_total"), "instance"), "collector {{instance}}"),
            Query(rates(relays("otel_llm_relay_decisions_total"), "instance"), "relay {{instance}}"),
        ),
        "ops", links=(("Rules", "rules.md"),),
    ),
    Panel(
        "Alerts over time",
        "How many alerts of each name fire in Prometheus.",
        (Query(total(FIRING, "alertname"), "{{alertname}}"),),
        "short", links=(RUNBOOKS, BUDGETS),
    ),
    Panel(
        "From a flip to the written decision",
        "Median and 99th percentile, of the collectors.",
        median_and_p99(own("otel_llm_collector_decision_seconds_bucket"), "instance"),
        "s", steps=((0.05, WARN), (1, BAD)),
    ),
)  # fmt: skip

DONE: Final = (
    Panel(
        "Actions of the collectors, by outcome",
        f"{help_of('otel_llm_collector_actions_total')} A second.",
        (Query(rates(own("otel_llm_collector_actions_total"), "outcome"), "{{outcome}}"),),
        "ops", links=(ACTIONS,),
    ),
    Panel(
        "Requests sent for them",
        "Attempts a second: more than actions where receivers fail.",
        (Query(rates(own("otel_llm_collector_action_tries_total"), "instance"), "{{instance}}"),),
        "ops", links=(ACTIONS,),
    ),
    Panel(
        "Receivers that hang",
        "Receivers and engines to which no actions are sent, since they did not answer in time.",
        (
            Query(f"{total(own('otel_llm_collector_action_circuit_open'), 'target')} > 0", "{{target}}"),
            Query(f"{total(relays('otel_llm_relay_action_circuit_open'), 'target')} > 0", "{{target}} of relays"),
        ),
        "short", steps=((1, WARN),), links=(ACTIONS,),
    ),
    Panel(
        "Actions of the relays, by outcome",
        f"{help_of('otel_llm_relay_actions_total')} Of their rules and of commands alike, a second.",
        (Query(rates(relays("otel_llm_relay_actions_total"), "outcome"), "{{outcome}}"),),
        "ops", links=(ACTIONS,),
    ),
    Panel(
        "Commands that relays got",
        f"{help_of('otel_llm_relay_received_actions_total')} A second.",
        (
            Query(
                rates(relays("otel_llm_relay_received_actions_total"), "action", "result"), "{{action}}: {{result}}"
            ),
        ),
        "ops", links=(COMMANDS,),
    ),
    Panel(
        "Streams moved, by outcome",
        f"{help_of('otel_llm_relay_migrations_total')} A second.",
        (Query(rates(relays("otel_llm_relay_migrations_total"), "outcome"), "{{outcome}}"),),
        "ops", links=(("Moves of the relay", "relay.md"),),
    ),
    Panel(
        "Records that could not be written",
        "Lines a second of decisions and windows, and writes of the state of alerts.",
        (
            Query(rates(own("otel_llm_collector_unwritten_total")), "collectors: lines"),
            Query(rates(own("otel_llm_collector_alerts_unwritten_total")), "collectors: state of alerts"),
            Query(rates(relays("otel_llm_relay_unwritten_total")), "relays: lines"),
        ),
        "ops", steps=((0.001, BAD),),
    ),
    Panel(
        "Left out of files and consoles",
        "Decisions in shadow and verdicts a second beyond the allowance of a rule or a tenant; they are counted there.",
        (
            Query(rates(own("otel_llm_collector_decisions_left_out_total")), "collectors: decisions"),
            Query(rates(own("otel_llm_collector_verdicts_left_out_total")), "collectors: verdicts"),
            Query(rates(relays("otel_llm_relay_decisions_left_out_total")), "relays: decisions"),
            Query(rates(relays("otel_llm_relay_verdicts_left_out_total")), "relays: verdicts"),
        ),
        "ops",
    ),
)  # fmt: skip

TOLD: Final = (
    Panel(
        "Alerts to Alertmanager",
        "A second, from the collectors: sent (again at every interval), refused, and requests that failed.",
        (
            Query(rates(own("otel_llm_collector_alertmanager_sent_total")), "sent"),
            Query(rates(own("otel_llm_collector_alertmanager_refused_total")), "refused"),
            Query(rates(own("otel_llm_collector_alertmanager_failures_total")), "failed requests"),
        ),
        "ops", links=(ALERTS,),
    ),
    Panel(
        "Notifications",
        "Messages to receivers a second: delivered, attempts that failed, given up (they are in the dead letters).",
        (
            Query(rates(own("otel_llm_collector_notifications_sent_total")), "delivered"),
            Query(rates(own("otel_llm_collector_notifications_retries_total")), "failed attempts"),
            Query(rates(own("otel_llm_collector_notifications_given_up_total")), "given up"),
        ),
        "ops", links=(ALERTS,),
    ),
    Panel(
        "Notifications that wait, alerts left out",
        "Messages in the queue now; firings a second for which there was no room for an alert.",
        (
            Query(total(own("otel_llm_collector_notifications_waiting")), "waiting"),
            Query(rates(own("otel_llm_collector_alerts_left_out_total")), "left out a second"),
        ),
        "short", links=(ALERTS,),
    ),
)  # fmt: skip

DASHBOARD: Final = Dashboard(
    "rules-and-actions",
    "otel-llm / Rules and actions",
    "What fires, what was done about it, and whether people heard of it.",
    (
        Variable("job", "Job", series("otel_llm_collector_queue")),
        Variable("instance", "Collector", series("otel_llm_collector_queue", 'job=~"$job"')),
        Variable("relay_job", "Relay job", series("otel_llm_relay_queue"), "job"),
    ),
    (Row("Now", NOW), Row("Rules", RULES), Row("Actions", DONE), Row("Who was told", TOLD)),
)
