"""The action `webhook` end to end: a real collector, a real receiver, one line in the decision file for each action."""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import pytest
import standardwebhooks
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.actions.acting import acting, post, records
from support.actions.action_receiver import Came, Receiver, Say, receiving
from support.commands import collector, run, wait_until
from support.otlp import IDENTITY, segment_span
from support.patience import WAIT_S

from otel_llm import semconv

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
RULES = """\
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: Waiting
    when: 'age_seconds > 0.2'
    max_fact_age: 60s
    actions:
    - alert: {{name: A, by: [instance]}}
    - webhook: {{to: gateway}}
      mode: enforce
      ttl: 1m
      budget: {budget}
"""
"""What is not answered within half of `ttl`, and of the receiver's timeout, is sent again: here nothing is."""
TTL_NS = 60_000_000_000


def written(folder: Path, receiver: Receiver, budget: str = "{per_request: 1}", more: str = "") -> list[str | Path]:
    """Write rules and settings; return the arguments for the collector."""
    (folder / "secret").write_text(SECRET + "\n")
    settings = (
        f"receivers:\n  gateway: {{url: '{receiver.url}/hook?a=1', secret_file: secret, kind: action, timeout: 1m}}\n"
        f"actions: {{wedge_timeout: 1s, kill_switch: off}}\n{more}"
    )
    return acting(folder, RULES.format(budget=budget), settings)


def commits(numbers: Iterable[int]) -> list[Span]:
    """Return the commits of requests, now."""
    now_ns = time.time_ns()
    identity = {**IDENTITY, semconv.INSTANCE: "a"}
    return [segment_span(request=number, start_ns=now_ns, attributes=identity) for number in numbers]


def test_a_reader_that_waits_makes_one_signed_event_and_one_record(tmp_path: Path) -> None:
    receiver = Receiver(lambda came, before: Say(body=b'{"result":"done","detail":"moved to b"}'))
    with receiving(receiver), collector(tmp_path, *written(tmp_path, receiver)) as service:
        post(service, *commits([7]))
        wait_until("the action is recorded", lambda: records(tmp_path, "webhook"))
        metrics = urllib.request.urlopen(f"{service.web}/metrics", timeout=WAIT_S).read().decode()
        status, reported = service.stop()
    assert status == 0, reported
    (came,) = receiver.came
    (record,) = records(tmp_path, "webhook")
    assert (record["outcome"], record["mode"], record["detail"]) == ("done", "enforce", "moved to b")
    assert record["budget"] == {"per_request": True}
    assert "Waiting: webhook: done" in reported
    assert (came.method, came.path) == ("POST", "/hook?a=1")
    assert came.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    event = standardwebhooks.Webhook(SECRET).verify(came.body, dict(came.headers))
    assert event["id"] == came.headers["webhook-id"]
    assert (event["specversion"], event["type"]) == ("1.0", "io.otel_llm.action.webhook.v1")
    assert event["subject"] == f"request/{7:032x}/{7:016x}/0"
    data = event["data"]
    assert data["rule_hash"] == record["rule_hash"]
    assert data["flip_unix_nano"] == record["flip_unix_nano"]
    assert data["facts"] == record["facts"]
    assert data["facts"]["age_seconds"] > 0.2
    assert data["labels"]["instance"] == "a"
    assert data["arguments"] == {"to": "gateway"}
    decided_ns = data["expires_unix_nano"] - TTL_NS
    assert decided_ns >= data["flip_unix_nano"] - data["now_offset_nano"]
    assert 'otel_llm_collector_actions_total{outcome="done"} 1.0' in metrics


def test_two_thousand_starving_at_once_make_one_alert_and_no_more_actions_than_the_budget(tmp_path: Path) -> None:
    receiver = Receiver()
    limits = "{per_request: 1, per_instance: 3 in 60s}"
    arguments = "alerts: {log: alerts.jsonl}\n"
    with receiving(receiver), collector(tmp_path, *written(tmp_path, receiver, limits, arguments)) as service:
        assert service.process.stdout is not None
        reading = threading.Thread(target=service.process.stdout.read)  # a terminal without a reader holds it up
        reading.start()
        post(service, *commits(range(1, 2001)))
        wait_until("all decided", lambda: len(records(tmp_path, "webhook")) == 2000)
        service.process.terminate()
        assert service.process.wait(WAIT_S) == 0
        reading.join()
    (alert,) = [json.loads(line) for line in (tmp_path / "alerts.jsonl").read_text().splitlines()]
    assert (alert["status"], alert["labels"]) == ("firing", {"alertname": "A", "instance": "a"})
    found = records(tmp_path, "webhook")
    assert len(receiver.ids()) == len(set(receiver.ids())) == 3
    outcomes = [record["outcome"] for record in found]
    assert (outcomes.count("sent"), outcomes.count("budget")) == (3, 1997)
    assert len({record["trace_id"] for record in found}) == 2000


def test_while_the_kill_switch_is_there_nothing_is_sent(tmp_path: Path) -> None:
    receiver = Receiver()
    with receiving(receiver), collector(tmp_path, *written(tmp_path, receiver)) as service:
        (tmp_path / "off").touch()
        post(service, *commits([1]))
        wait_until("decided", lambda: len(records(tmp_path, "webhook")) == 1)
        (tmp_path / "off").unlink()
        post(service, *commits([2]))
        wait_until("decided", lambda: len(records(tmp_path, "webhook")) == 2)
        assert service.stop()[0] == 0
    first, second = records(tmp_path, "webhook")
    assert (first["outcome"], first["detail"]) == ("shadow", "the kill switch is there")
    assert second["outcome"] == "sent"
    assert len(receiver.came) == 1


def test_a_restart_sends_nothing_again(tmp_path: Path) -> None:
    receiver = Receiver()
    with receiving(receiver):
        arguments = written(tmp_path, receiver)
        with collector(tmp_path, *arguments) as service:
            post(service, *commits([1]))
            wait_until("recorded", lambda: records(tmp_path, "webhook"))
            service.process.kill()
            service.process.wait()
        with collector(tmp_path, *arguments) as service:
            post(service, *commits([2]))
            wait_until("the other is decided", lambda: len(records(tmp_path, "webhook")) == 2)
            assert service.stop()[0] == 0
    assert len(receiver.came) == 2
    assert {record["trace_id"] for record in records(tmp_path, "webhook")} == {f"{1:032x}", f"{2:032x}"}


def test_an_action_that_a_crash_cut_off_is_not_sent_again_and_nobody_says_that_it_was_done(tmp_path: Path) -> None:
    go_on = threading.Event()

    def hang(came: Came, before: int) -> Say:
        go_on.wait(WAIT_S)
        return Say()

    receiver = Receiver(hang)
    with receiving(receiver):
        arguments = written(tmp_path, receiver)
        rules = tmp_path / "rules.yaml"
        rules.write_text(rules.read_text().replace("    - alert: {name: A, by: [instance]}\n", ""))
        with collector(tmp_path, *arguments) as service:
            post(service, *commits([1]))
            wait_until("it came", lambda: receiver.came)
            service.process.kill()
            service.process.wait()
        assert records(tmp_path, "webhook") == []
        with collector(tmp_path, *arguments) as service:
            wait_until("decided again", lambda: records(tmp_path, "webhook"))
            status, reported = service.stop()
            assert status == 0, reported
        go_on.set()
    (record,) = records(tmp_path, "webhook")
    assert record["outcome"] == "unconfirmed"
    assert "before this run" in record["detail"]
    assert len(receiver.came) == 1


@pytest.mark.parametrize("to", ["nobody", "gatewai"])
def test_an_enforced_webhook_to_nobody_is_refused_at_the_start(tmp_path: Path, to: str) -> None:
    arguments = written(tmp_path, Receiver(port=9))
    rules = tmp_path / "rules.yaml"
    rules.write_text(rules.read_text().replace("to: gateway", f"to: {to}"))
    ended = run("collect", "--journal", tmp_path / "journal", *arguments)
    assert ended.returncode == 2
    assert f"'{to}' is no receiver" in ended.stderr


@pytest.mark.parametrize("verb", ["migrate", "preempt", "abort", "drain", "scale"])
def test_what_nobody_does_cannot_be_enforced(tmp_path: Path, verb: str) -> None:
    arguments = written(tmp_path, Receiver(port=9))
    rules = tmp_path / "rules.yaml"
    rules.write_text(rules.read_text().replace("webhook: {to: gateway}", f"{verb}: {{}}"))
    ended = run("collect", "--journal", tmp_path / "journal", *arguments)
    assert ended.returncode == 2
    assert f"nothing is configured here that does `{verb}`" in ended.stderr


def test_rules_are_checked_by_the_settings_that_they_will_run_with(tmp_path: Path) -> None:
    written(tmp_path, Receiver(port=9))
    alone = run("rules", "check", tmp_path / "rules.yaml")
    assert alone.returncode == 1
    assert "nothing is configured here that does `webhook`" in alone.stdout
    together = run("rules", "check", "--config", tmp_path / "config.yaml", tmp_path / "rules.yaml")
    assert together.returncode == 0, together.stdout
    (tmp_path / "secret").unlink()
    broken = run("rules", "check", "--config", tmp_path / "config.yaml", tmp_path / "rules.yaml")
    assert broken.returncode == 2
    assert "secret" in broken.stderr
