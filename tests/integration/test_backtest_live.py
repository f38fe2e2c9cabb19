"""A backtest over the journal of a real collector gives the decisions of that run, line by line, in its order.

The collector is a process of its own, fed over gRPC and HTTP by senders of all streams at once and by the official
exporters; it is stopped, killed and started again meanwhile. SEED is another load.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from support.commands import run, wait_until
from support.integration.interop_compare import read_rows
from support.integration.interop_sdk import deliver
from support.integration.interop_service import Service, finish, load, service

SEED = int(os.environ.get("SEED", "1"))
PATIENCE = ("--window", "1s", "--lateness", "5s", "--lost-after", "10s")
SETTLED = {"sent", "done", "unconfirmed", "failed", "expired"}
"""What became of an action that was let through: it depends on who takes it, not on the journal."""
RULES = """version: 1
groups:
- name: streams
  scope: stream
  rules:
  - rule: Silent
    when: 'tokens_read > 0 && gap_seconds > {gap}'
    resolve_when: 'gap_seconds < 0.2'
    for: 100ms
    actions:
    - migrate: {{to: safest}}
      mode: shadow
      ttl: 400ms
      budget: {{per_request: 1, per_instance: 2 in 5s, in_flight: 4}}
    - alert: {{name: Silent, by: [model, instance]}}
  - rule: RunsDry
    when: 'runway_seconds < 0.5'
    keep_firing_for: 500ms
    actions:
    - alert: {{name: RunsDry, by: [model]}}
  - rule: Misses
    when: 'deadline_misses > 10 && fluidity_index < 0.9'
    actions:
    - alert: {{name: Misses, by: [slo_class]}}
  - rule: Stale
    when: 'fact_age_seconds > 2.0'
    max_fact_age: 60s
    actions:
    - alert: {{name: Stale}}
"""
GROUPS = """- name: instances
  scope: instance
  rules:
  - rule: Busy
    when: 'streams > 2 || starving > 1'
    resolve_when: 'streams == 0'
    actions:
    - alert: {name: Busy, by: [instance]}
- name: classes
  scope: class
  rules:
  - rule: Told
    when: 'requests_1m > 5 && attainment_1m <= 1.0'
    for: 500ms
    actions:
    - alert: {name: Told, by: [slo_class]}
"""
"""Of a run with restarts these may be decided otherwise than by the whole journal: a restart reads only its end again,
and what instances and classes did before that is known to the backtest alone."""


def plain(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return records without the wall clock of their writing, and without what became of actions."""
    return [
        {name: value for name, value in one.items() if name != "time_unix_nano"}
        | ({"outcome": "settled"} if one["outcome"] in SETTLED else {})
        for one in records
    ]


def backtested(running: Service, rules: Path, out: Path, *options: str) -> tuple[int, str]:
    """Backtest the journal of a collector, writing decisions to `out`; return exit status and output."""
    asked = ["rules", "backtest", "--rules", str(rules), "--write", str(out), *PATIENCE, *options]
    done = run(*asked, "--decisions", running.decisions, "--fail-on-difference", running.journal)
    return done.returncode, done.stdout + done.stderr


def left_alone(running: Service, chance: random.Random) -> None:
    """Let it run, while the official exporters deliver as well."""
    deliver(GrpcExporter(endpoint=running.grpc, insecure=True))
    time.sleep(chance.uniform(2, 3))
    deliver(HttpExporter(endpoint=f"http://127.0.0.1:{running.ports[1]}/v1/traces"))


def interrupted(running: Service, chance: random.Random) -> None:
    """Stop it and kill it, and start it again."""
    for end in (running.stop, running.kill, running.kill):
        time.sleep(chance.uniform(0.5, 1.5))
        end()
        running.start()
        running.wait_ready()


@pytest.mark.alone
@pytest.mark.parametrize("life", [left_alone, interrupted])
def test_a_backtest_decides_what_the_collector_decided(
    tmp_path: Path, life: Callable[[Service, random.Random], None]
) -> None:
    rules, other = tmp_path / "rules.yaml", tmp_path / "other.yaml"
    text = RULES + GROUPS.replace("{", "{{").replace("}", "}}") if life is left_alone else RULES
    rules.write_text(text.format(gap="0.4"), encoding="utf-8")
    other.write_text(text.format(gap="0.6"), encoding="utf-8")
    with (
        service(tmp_path, "--rules", str(rules), *PATIENCE) as running,
        load(running.grpc, tmp_path / "acks.json", "--leave", "--mean-s", "2", "--seed", str(SEED)) as senders,
    ):
        wait_until("streams are in flight", lambda: running.metric("otel_llm_collector_in_flight") > 0)
        life(running, random.Random(SEED))
        finish(senders)
        running.stop()
        status, said = backtested(running, rules, tmp_path / "out.jsonl")
        live, again = plain(read_rows(running.decisions)), plain(read_rows(tmp_path / "out.jsonl"))
        assert again == live
        assert (status, "exactly the same, in the same order" in said) == (0, True), said

        # And it can tell: with another threshold only what that rule decides is another.
        status, said = backtested(running, other, tmp_path / "other.jsonl", "--format", "json")
        assert status == 1
        found = {rule["rule"]: rule for rule in json.loads(said)["rules"]}
        assert found.pop("Silent")["same"] == 0
        assert all(rule["same"] == rule["then"]["firings"] == rule["new"]["firings"] for rule in found.values())
    assert {one["outcome"] for one in live} >= {"settled", "shadow", "budget", "resolved", "ended"}
    fired = {"Silent", "RunsDry", "Misses"} | ({"Busy", "Told"} if life is left_alone else set())
    assert {one["rule"] for one in live} >= fired
    assert "Traceback" not in running.said(), running.said()
