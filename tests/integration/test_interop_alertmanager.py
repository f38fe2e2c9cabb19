"""Our alerts at Debian's Alertmanager: fired, grouped, silenced, inhibited, resolved, sent again, over restarts."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.actions.action_receiver import Receiver, receiving
from support.actions.alerting import T0, decision
from support.actions.alertmanager import Alertmanager, alertmanager
from support.commands import wait_until
from support.integration.interop_prometheus import Prometheus
from support.integration.interop_prometheus import program as prometheus_program
from support.integration.interop_service import service
from support.otlp import IDENTITY, Value, segment_span
from support.patience import WAIT_S
from support.ports import free_ports

from otel_llm import semconv
from otel_llm.actions.alerts.alerts import Alerts
from otel_llm.actions.settings import AlertmanagerSettings, AlertSettings
from otel_llm.collector.settings import Settings
from otel_llm.rules.decisions.decision_records import Decision
from otel_llm.shared.clock import MonotonicClock

_begun: list[Alerts] = []


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    """Stop what a test that failed has left running: its threads would disturb the tests behind it."""
    yield
    while _begun:
        _begun.pop().stop(0.0)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Alertmanager]:
    with receiving(Receiver()) as hook, alertmanager(tmp_path, hook) as made:
        yield made


def alerts_to(manager: Alertmanager, folder: Path, *taken: Decision, resend_s: float = 1.0) -> Alerts:
    """Return alerts that go to it, sent again every second; `taken`: what a replay of the journal finds."""
    settings = Settings(
        alertmanager=AlertmanagerSettings(urls=(manager.url,), resend_s=resend_s),
        alerts=AlertSettings(settle_s=0.05),
    )
    made = Alerts(settings, folder, MonotonicClock())
    for one in taken:
        made.take(one)
    made.start()
    _begun.append(made)
    return made


def now() -> float:
    """Return the time on this machine, in seconds since T0."""
    return (MonotonicClock().now_ns() - T0) / 1e9


def test_fired_grouped_and_resolved(manager: Alertmanager, tmp_path: Path) -> None:
    alerts = alerts_to(manager, tmp_path)
    for number in range(2000):
        alerts.take(decision(number, now(), instance="ab"[number % 2], model="m/1.5 ünï"))
    wait_until("both were told, as one group", lambda: manager.told() == [("Starving", ["firing/a", "firing/b"])])
    found = manager.alerts()["Starving/a"]
    assert found["labels"] == {"alertname": "Starving", "instance": "a", "model": "m/1.5 ünï", "slo_class": "chat"}
    assert found["annotations"]["rules"] == "ReaderStarving"
    assert found["annotations"]["trace_ids"].split(", ")[0] == f"{0:032x}"
    wait_until("the count follows", lambda: manager.alerts()["Starving/a"]["annotations"]["count"] == "1000")
    for number in range(2000):
        alerts.take(decision(number, now(), "resolved"))
    wait_until("the end was told", lambda: len(manager.told()) == 2)
    assert manager.told()[1] == ("Starving", ["resolved/a", "resolved/b"])
    alerts.stop(WAIT_S)


def test_silenced(manager: Alertmanager, tmp_path: Path) -> None:
    manager.silence("instance", "a")
    alerts = alerts_to(manager, tmp_path)
    alerts.take(decision(1, now(), instance="a"))
    alerts.take(decision(2, now(), instance="b"))
    wait_until("the other was told", lambda: manager.told() == [("Starving", ["firing/b"])])
    status = manager.alerts()["Starving/a"]["status"]
    assert (status["state"], len(status["silencedBy"])) == ("suppressed", 1)
    alerts.stop(WAIT_S)


RULES = """
groups:
- name: machines
  rules:
  - {alert: InstanceDraining, expr: vector(1), labels: {instance: a}}
"""
PROMETHEUS = """
global: {evaluation_interval: 250ms}
rule_files: [draining.yml]
alerting: {alertmanagers: [{static_configs: [{targets: ['127.0.0.1:PORT']}]}]}
"""


@contextmanager
def draining(folder: Path, manager: Alertmanager) -> Iterator[None]:
    """Run a Prometheus whose rule says that instance a is draining."""
    (folder / "draining.yml").write_text(RULES)
    (folder / "prometheus.yml").write_text(PROMETHEUS.replace("PORT", str(manager.port)))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = [
        *(prometheus_program("prometheus"), f"--config.file={folder / 'prometheus.yml'}"),
        *(f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={address}"),
        "--rules.alert.resend-delay=1s",  # it evaluates before it knows of an Alertmanager
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until("Prometheus is ready", Prometheus(address).ready)
        yield
    finally:
        process.kill()
        process.wait()


def test_an_alert_of_prometheus_inhibits_ours_by_the_same_label(manager: Alertmanager, tmp_path: Path) -> None:
    with draining(tmp_path, manager):
        wait_until("Prometheus' alert was told", lambda: ("InstanceDraining", ["firing/a"]) in manager.told())
        alerts = alerts_to(manager, tmp_path)
        alerts.take(decision(1, now(), instance="a"))
        alerts.take(decision(2, now(), instance="b"))
        wait_until("the other was told", lambda: ("Starving", ["firing/b"]) in manager.told())
        status = manager.alerts()["Starving/a"]["status"]
        assert (status["state"], len(status["inhibitedBy"])) == ("suppressed", 1)
        alerts.stop(WAIT_S)
    assert all("firing/a" not in whose for name, whose in manager.told() if name == "Starving")


def test_sent_again_it_stays_and_once_we_are_gone_it_ends_by_itself(manager: Alertmanager, tmp_path: Path) -> None:
    alerts = alerts_to(manager, tmp_path)
    alerts.take(decision(1, now(), instance="a"))
    wait_until("it is there", lambda: "Starving/a" in manager.alerts())
    first = manager.alerts()["Starving/a"]
    wait_until(
        "it was sent again, past its first end",
        lambda: manager.alerts()["Starving/a"]["updatedAt"] > first["endsAt"],
    )
    last = manager.alerts()["Starving/a"]
    assert (last["startsAt"], last["fingerprint"]) == (first["startsAt"], first["fingerprint"])
    assert last["endsAt"] > first["endsAt"]
    alerts.stop(WAIT_S)
    wait_until("it ended by itself", lambda: manager.told()[-1] == ("Starving", ["resolved/a"]))
    assert manager.told() == [("Starving", ["firing/a"]), ("Starving", ["resolved/a"])]


def test_alertmanager_restarts(manager: Alertmanager, tmp_path: Path) -> None:
    """What fires on is not told again; what began or ended while it was away is told when it is back."""
    alerts = alerts_to(manager, tmp_path, resend_s=2.0)
    for number, instance in ((1, "a"), (2, "b")):
        alerts.take(decision(number, now(), instance=instance))
    wait_until("both were told", lambda: manager.told() == [("Starving", ["firing/a", "firing/b"])])
    manager.stop()
    alerts.take(decision(2, now(), "resolved", instance="b"))
    alerts.take(decision(3, now(), instance="c"))
    wait_until("that could not be sent", lambda: alerts.counts()["alertmanager_failures"] >= 2)
    manager.start()

    def told_since() -> set[str]:  # in one notification or in two: it groups what comes within an instant
        return {one for _, group in manager.told()[1:] for one in group}

    wait_until("all of it was told", lambda: {"resolved/b", "firing/c"} <= told_since())
    wait_until("nothing else comes", lambda: manager.alerts().keys() == {"Starving/a", "Starving/c"})
    wait_until("it was sent again since", lambda: alerts.counts()["alertmanager_sent"] >= 8)
    times = [one for _, group in manager.told() for one in group]
    assert times.count("resolved/b") == 1
    alerts.stop(WAIT_S)


def test_we_restart(manager: Alertmanager, tmp_path: Path) -> None:
    """What fires on is told once, what has ended meanwhile has ended, and nothing is told twice."""
    alerts = alerts_to(manager, tmp_path, resend_s=60.0)
    taken = [decision(1, now(), instance="a"), decision(2, now(), instance="b")]
    for one in taken:
        alerts.take(one)
    wait_until("both were told", lambda: manager.told() == [("Starving", ["firing/a", "firing/b"])])
    starts = manager.alerts()["Starving/a"]["startsAt"]
    alerts.stop(WAIT_S)
    again = alerts_to(manager, tmp_path, taken[0], resend_s=60.0)
    wait_until("the end was told", lambda: len(manager.told()) == 2)
    assert manager.told()[1] == ("Starving", ["firing/a", "resolved/b"])
    assert manager.alerts()["Starving/a"]["startsAt"] == starts
    again.take(decision(1, now(), "resolved", instance="a"))
    wait_until("the last end was told", lambda: len(manager.told()) == 3)
    assert manager.told()[2] == ("Starving", ["resolved/a"])
    again.stop(WAIT_S)
    assert json.loads((tmp_path / "alerts.json").read_text())["messages"] == []


WAITING = """\
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: Waiting
    when: 'age_seconds > 0.2'
    max_fact_age: 1h
    actions:
    - alert: {name: Starving, by: [slo_class, instance]}
- name: h
  scope: class
  rules:
  - rule: Busy
    when: 'streams >= 1'
    actions:
    - alert: {name: Busy, by: [slo_class]}
"""
SETTINGS = """\
version: 1
alertmanager: {urls: ['AT'], resend: 60s}
alerts: {log: alerts.jsonl, settle: 100ms}
"""


def commits(numbers: Iterable[int], instance: str) -> list[Span]:
    """Return the commits of requests, now."""
    identity: dict[str, Value] = {**IDENTITY, semconv.INSTANCE: instance}
    return [segment_span(request=number, start_ns=time.time_ns(), attributes=identity) for number in numbers]


def ends(numbers: Iterable[int]) -> list[Span]:
    """Return the last segments of requests, now, and their spans."""
    now_ns = time.time_ns()
    last: dict[str, Value] = {semconv.OUTCOME: "completed", semconv.TOKENS: 0, semconv.SEGMENTS: 2}
    return [segment_span(1, 0, request=number, start_ns=now_ns, attributes=last) for number in numbers]


def test_a_collector_is_killed_and_goes_on(manager: Alertmanager, tmp_path: Path) -> None:
    """Real streams, the real service, SIGKILL: what fires is told once, what ended before or after has ended once."""
    (tmp_path / "rules.yaml").write_text(WAITING)
    (tmp_path / "settings.yaml").write_text(SETTINGS.replace("AT", manager.url))
    options = ("--rules", str(tmp_path / "rules.yaml"), "--config", str(tmp_path / "settings.yaml"))
    log = tmp_path / "alerts.jsonl"

    def logged() -> list[str]:
        text = log.read_text() if log.exists() else ""
        lines = map(json.loads, text[: text.rfind("\n") + 1].splitlines())  # the last one may be half there
        return [f"{line['status']}/{line['labels'].get('instance', 'class')}" for line in lines]

    with service(tmp_path, *options) as running:
        running.post(commits(range(1, 1001), "a"))
        running.post(commits([2001], "b"))
        wait_until("both were told", lambda: ("Starving", ["firing/a", "firing/b"]) in manager.told())
        wait_until("and logged", lambda: len(logged()) == 3)
        starts = manager.alerts()["Starving/a"]["startsAt"]
        running.post(ends(range(1, 1000)))  # one of a is left
        running.kill()
        running.start()
        running.wait_ready()
        running.post(commits([3001], "c"))
        wait_until("the new one is told", lambda: any("firing/c" in group for _, group in manager.told()))
        running.post(ends([2001]))
        wait_until("its end is told", lambda: any("resolved/b" in group for _, group in manager.told()))
        found = manager.alerts()["Starving/a"]
        assert (found["startsAt"], found["status"]["state"]) == (starts, "active")
        running.post(ends([1000, 3001]))
        wait_until("all have ended", lambda: len(logged()) == 8)
        wait_until("that is told", lambda: any("resolved/a" in group for _, group in manager.told()))
        running.stop()
    whose = ["a", "b", "c", "class"]
    assert sorted(logged()) == [f"{status}/{one}" for status in ("firing", "resolved") for one in whose]
    records = [json.loads(line) for line in running.decisions.read_text().splitlines()]
    assert {record["outcome"] for record in records if record["action"] == "alert"} == {"sent"}
    assert sum(record["action"] == "alert" for record in records) == 1003  # none was decided twice
