"""The shipped files of Prometheus, Alertmanager and Grafana, beside a fleet in trouble: they load, and show it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from support.commands import wait_until, wait_until_equal
from support.integration.dashboards import Expression, queries, variables
from support.integration.interop_prometheus import Prometheus
from support.integration.monitored_fleet import Fleet, fleet

pytestmark = pytest.mark.alone
EMPTY = {
    ("collector", "Journal records skipped in a replay A"): (
        "no record of this journal is damaged; tests/security/test_restart_bounds.py damages some"
    ),
    ("readers", "Recorded tokens / stated tokens A"): (
        "no sender here estimates tokens and states a length; tests/live/test_stated_replies.py has some"
    ),
    ("rules-and-actions", "Receivers that hang A"): "no receiver here hangs; tests/actions/test_dispatcher.py has some",
    ("rules-and-actions", "Receivers that hang B"): "the same, of relays",
}
"""Expressions that find nothing here, by dashboard and place, and why."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, Prometheus]]:
    with fleet(tmp_path_factory.mktemp("fleet")) as running:
        yield running


def empty(prometheus: Prometheus, expressions: list[Expression], **chosen: str) -> set[tuple[str, str]]:
    """Return the expressions that give no number."""
    return {
        (one.dashboard, one.place)
        for one in expressions
        if not any(map(math.isfinite, prometheus.query(one.asked(chosen)).values()))
    }


def test_every_expression_of_a_dashboard_has_data(watched: tuple[Fleet, Prometheus]) -> None:
    _, prometheus = watched
    expressions = [*queries(), *variables()]
    assert len(expressions) > 150
    wait_until_equal(
        "all expressions have data", lambda: empty(prometheus, expressions, measured_at="client"), set(EMPTY)
    )


def test_an_expression_of_a_label_that_is_not_there_is_empty(watched: tuple[Fleet, Prometheus]) -> None:
    """So the test above would see one."""
    _, prometheus = watched
    wrong = Expression("readers", "wrong", 'sum by (slo_class) (otel_llm_streams_in_flight{slo_klass="chat"})')
    none = Expression("readers", "none", "sum(otel_llm_streams_in_flight) / (sum(otel_llm_streams_in_flight) * 0)")
    assert empty(prometheus, [wrong, none]) == {("readers", "wrong"), ("readers", "none")}


def test_replicas_of_a_reader_and_targets_of_a_scrape_are_told_apart(watched: tuple[Fleet, Prometheus]) -> None:
    running, prometheus = watched
    collector, relay = (running.addresses[name] for name in ("collector:9464", "relay:9465"))
    asked = (
        "count by (collector, instance) (otel_llm_tokens_read_total)",
        "count by (collector, instance) (otel_llm_collector_queue)",
        "count by (instance, relay) (otel_llm_relay_queue)",
        "count by (instance) (otel_llm_relay_backend_open)",
        'count by (job) (otel_llm_requests_total{measured_at="relay"})',
    )
    answers: list[dict[tuple[str, ...], float]] = []

    def answered() -> bool:
        """Of a target whose last scrape took longer than its second there is nothing until the next."""
        answers[:] = map(prometheus.query, asked)
        return all(answers)

    wait_until("both targets are there", answered)
    replicas, own, queues, backends, requests = answers
    assert {instance for _, *rest in replicas for instance in rest} >= {"gpu-0", "gpu-1", "gpu-2", "gpu-3"}
    assert {where for where, *_ in replicas} == {collector}
    assert own == {(collector, collector): 1.0}
    assert queues == {(relay, relay): 1.0}
    assert {instance for (instance,) in backends} == set("abc")
    # The relay's readers are counted once: by the collector that gets its segments.
    assert requests.keys() == {("otel-llm",)}


def test_no_rule_is_in_error(watched: tuple[Fleet, Prometheus]) -> None:
    _, prometheus = watched
    wait_until("all were evaluated", lambda: all(rule["health"] != "unknown" for rule in prometheus.rules()))
    assert len(prometheus.rules()) > 200
    assert [(rule["name"], rule.get("lastError")) for rule in prometheus.rules() if rule["health"] != "ok"] == []


def test_alerts_of_both_senders_reach_their_receivers(watched: tuple[Fleet, Prometheus]) -> None:
    """Prometheus pages for a budget; the collector's rule says within a moment who waits, and makes a ticket of it."""
    running, _ = watched

    def came(path: str) -> list[dict[str, Any]]:
        with running.receiver.lock:
            bodies = [json.loads(one.body) for one in running.receiver.came if one.path == path]
        return [alert for body in bodies for alert in body["alerts"] if alert["status"] == "firing"]

    def named(path: str, name: str) -> list[dict[str, Any]]:
        return [alert for alert in came(path) if alert["labels"]["alertname"] == name]

    wait_until("a budget pages", lambda: named("/page", "LlmAttainmentBurn"))
    wait_until("a reader is a ticket", lambda: named("/ticket", "LlmReadersStarving"))
    paged, ticket = named("/page", "LlmAttainmentBurn")[0], named("/ticket", "LlmReadersStarving")[0]
    assert paged["labels"]["severity"] == "page"
    assert paged["generatorURL"] != ""
    assert paged["annotations"]["runbook_url"].endswith("/docs/runbooks.md#llmattainmentburn")
    assert ticket["labels"].keys() == {"alertname", "slo_class", "model", "instance"}
    assert {alert["labels"]["severity"] for alert in came("/page")} == {"page"}
