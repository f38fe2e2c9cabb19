"""The generated rules in Debian's promtool and Prometheus: checked, tested with numbers worked by hand, imported."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.commands import run, wait_until
from support.integration.interop_prometheus import program, prometheus
from support.integration.interop_service import finish, load, service
from support.otlp import IDENTITY, Value, segment_span

from otel_llm import semconv
from otel_llm.rules.prometheus.promql import RUNBOOKS, quoted

FOLDER = Path(__file__).parent / "promtool"
TESTS = dict.fromkeys(("attainment.yaml", "fluidity.yaml", "collector.yaml"), "slo.yaml") | {
    "history.yaml": "slo-one.yaml"
}
HOSTILE = (
    *('quote"d', "back\\slash\\n", "new\nline", "tab\tand\x00\x7f", "{{ $labels.measured_at }}", "}} {{", "{{ end"),
    *("чат", "\U0001f600", "line\u2028separator", "\x85next", "\ufeffmark", "\xa0space", " lead and trail "),
    *("yes", "~", "1e3", "0o14", "0x1f", "12:30", "2026-11-21", "# no: [comment", "- item", "'", "$value", "%"),
)  # fmt: skip


def write_rules(folder: Path, *options: str | Path) -> Path:
    done = run("rules", "prometheus", *options)
    assert done.returncode == 0, done.stderr
    (folder / "rules.yml").write_text(done.stdout, encoding="utf-8")
    return folder / "rules.yml"


def promtool(*arguments: str | Path, cwd: Path) -> str:
    command = [program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def classes_file(folder: Path, names: tuple[str, ...]) -> Path:
    """Write classes of these names."""
    keys = [yaml.safe_dump(name, default_style='"', width=1000).strip() for name in names]
    bodies = "".join(f"  {key}: {{objective: {{attainment: 0.99}}}}\n" for key in keys)
    (folder / "slo.yaml").write_text(f"version: 1\ndefault: {keys[0]}\nclasses:\n{bodies}", encoding="utf-8")
    return folder / "slo.yaml"


@pytest.mark.parametrize("options", [(), ("--slo", FOLDER / "slo.yaml"), ("--match", "env=a", "--service", "b c")])
def test_promtool_checks_them(tmp_path: Path, options: tuple[str | Path, ...]) -> None:
    said = promtool("check", "rules", "--lint=all", "--lint-fatal", write_rules(tmp_path, *options), cwd=tmp_path)
    assert re.search(r"SUCCESS: \d{3} rules found", said)


@pytest.mark.parametrize("name", TESTS)
def test_promtool_tests_them(tmp_path: Path, name: str) -> None:
    program("promtool")
    write_rules(tmp_path, "--slo", FOLDER / TESTS[name])
    shutil.copy(FOLDER / name, tmp_path)
    promtool("test", "rules", name, cwd=tmp_path)


def test_no_name_of_a_class_becomes_anything_else(tmp_path: Path) -> None:
    """A class's alert fires for what is counted under its name, and says that name: quoting, YAML and templates."""
    program("promtool")
    rules = write_rules(tmp_path, "--slo", classes_file(tmp_path, HOSTILE))
    promtool("check", "rules", "--lint=all", "--lint-fatal", rules, cwd=tmp_path)

    def series(name: str) -> dict[str, str]:
        labels = f'slo_class={quoted(name)},model="m",measured_at="client",outcome="completed",met="false"'
        return {"series": f"otel_llm_requests_total{{{labels}}}", "values": "0+10x4"}

    def fires(name: str) -> dict[str, Any]:
        ids = {
            "sloth_id": f"otel-llm-{name}-attainment",
            "sloth_service": "otel-llm",
            "sloth_slo": f"{name}-attainment",
        }
        severities = {"severity": "page", "sloth_severity": "page"}
        return {
            "exp_labels": {**severities, "slo_class": name, "measured_at": "client", **ids},
            "exp_annotations": {
                "summary": f"Class {name}, deadlines missed, measured at the client: the error budget goes too fast",
                "description": "100% of the requests in the longer window; promised is that 99% are spared it.",
                "runbook_url": f"{RUNBOOKS}#llmattainmentburn",
            },
        }

    page = {"eval_time": "3m", "alertname": "LlmAttainmentBurn", "exp_alerts": [fires(name) for name in HOSTILE]}
    one = {"interval": "1m", "input_series": [series(name) for name in HOSTILE], "alert_rule_test": [page]}
    test = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [one]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test), encoding="utf-8")
    promtool("test", "rules", "test.yml", cwd=tmp_path)


GROUPS = [(slo_class, model) for slo_class in ("chat", "code", "voice") for model in ("large", "small")]
"""Those of the streams of the load."""
ENDED: dict[str, Value] = {semconv.OUTCOME: "completed", semconv.TOKENS: 0, semconv.SEGMENTS: 2}


def segments(seq: int, said: Mapping[str, Value]) -> Iterator[Span]:
    """Yield a segment of a stream of each group, now."""
    for number, (slo_class, model) in enumerate(GROUPS, 1):
        identity: dict[str, Value] = {**IDENTITY, semconv.SLO_CLASS: slo_class, semconv.GEN_AI_REQUEST_MODEL: model}
        yield segment_span(seq, request=number, start_ns=time.time_ns(), attributes={**identity, **said})


@pytest.mark.alone
def test_prometheus_imports_them_and_they_say_what_the_audit_says(tmp_path: Path) -> None:
    program("prometheus")
    written = yaml.safe_load(write_rules(tmp_path).read_text(encoding="utf-8"))
    for group in written["groups"]:
        group["interval"] = "1s"  # what the rules say is not changed by how often they are asked
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(written), encoding="utf-8")
    rules = [rule for group in written["groups"] for rule in group["rules"]]

    with (
        service(tmp_path, "--window", "1s", "--lateness", "1s") as running,
        prometheus(tmp_path, f"127.0.0.1:{running.ports[2]}", "rule_files: [rules.yml]\n") as server,
    ):
        # What a counter has at its first scrape is no increase: each class and model gets its counters before a request
        # ends, however long a scrape takes.
        wait_until("it is scraped", lambda: server.query("up") != {})
        running.post(segments(0, {}))
        counters = "count by (model, slo_class) (otel_llm_requests_total)"
        wait_until("the counters are scraped", lambda: len(server.query(counters)) == len(GROUPS))
        running.post(segments(1, ENDED))
        with load(running.grpc, tmp_path / "acks.json", "--streams", "20", "--mean-s", "1.5") as senders:
            wait_until("some requests ended", lambda: sum(server.query("sum(otel_llm_requests_total)").values()) >= 40)
            finish(senders)
        wait_until("every stream is judged", lambda: running.metric("otel_llm_collector_in_flight") == 0)
        judged = running.metric("otel_llm_requests_total")
        wait_until("that is scraped", lambda: server.query("sum(otel_llm_requests_total)") == {(): judged})

        def asked() -> bool:
            seen = server.rules()
            return len(seen) == len(rules) and all(rule["health"] != "unknown" for rule in seen)

        wait_until("every rule was evaluated", asked)
        wrong = [(rule["name"], rule.get("lastError")) for rule in server.rules() if rule["health"] != "ok"]
        assert wrong == []

        done = run("audit", running.journal, "--format", "json")
        audited = {
            (measured, name): 1 - one["attainment"]
            for name, by in json.loads(done.stdout)["classes"].items()
            for measured, one in by.items()
            if one["attainment"] is not None
        }
        assert len(audited) >= 2
        ratio = 'max by (measured_at, slo_class) (slo:sli_error:ratio_rate1h{sloth_slo=~".*-attainment"})'
        wait_until("the ratios are of all of them", lambda: server.query(ratio) == pytest.approx(audited, abs=0.05))
        assert server.query("count(slo:objective:ratio)")[()] == 8
        # A scrape that takes longer than its second makes one of them pending, until the next.
        pending = 'count(ALERTS{alertname=~"OtelLlm.*"}) or vector(0)'
        wait_until("the collector is well", lambda: server.query(pending) == {(): 0.0})

        running.kill()
        down = 'count(ALERTS{alertname="OtelLlmCollectorDown",alertstate="pending"})'
        wait_until("it is missed", lambda: server.query(down) == {(): 1.0})
