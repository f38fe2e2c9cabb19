"""Debian's Prometheus scrapes a collector while streams run, and answers in PromQL what the audit says."""

from __future__ import annotations

import json
import math
import re
import subprocess
import urllib.request
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from support.commands import collector, run, wait_until
from support.integration.interop_prometheus import program, prometheus
from support.integration.interop_sdk import deliver
from support.integration.interop_service import Service, finish, load, service
from support.patience import WAIT_S

DOCS = Path(__file__).parents[2] / "docs" / "collector-metrics.md"
BY = "sum by (measured_at, slo_class)"
ATTAINMENT = f'{BY} (otel_llm_requests_total{{met="true"}}) / {BY} (otel_llm_requests_total{{met=~"true|false"}})'
SMOOTH_TOKENS = (
    f"{BY} (otel_llm_tokens_read_total) - {BY} (otel_llm_penalty_tokens_total)"
    f" + {BY} (otel_llm_penalty_refunded_tokens_total)"
)


def promql_in_docs() -> list[str]:
    """Return the queries that the docs give: those of a block are told apart by empty lines."""
    blocks = re.findall(r"^```promql\n(.*?)^```", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [query.strip() for block in blocks for query in re.split(r"\n\s*\n", block) if query.strip()]


def settled(running: Service) -> bool:
    return running.metric("otel_llm_collector_in_flight") == 0


@pytest.mark.alone
def test_prometheus_answers_what_the_audit_says(tmp_path: Path) -> None:
    program("prometheus")
    with (
        service(tmp_path, "--window", "1s", "--lateness", "1s", "--lost-after", "5s") as running,
        prometheus(tmp_path, f"127.0.0.1:{running.ports[2]}") as server,
        load(running.grpc, tmp_path / "acks.json", "--streams", "20", "--mean-s", "1.5") as senders,
    ):
        seen = "max_over_time(sum(otel_llm_streams_in_flight)[1m:1s])"
        wait_until("Prometheus saw streams in flight", lambda: max(server.query(seen).values(), default=0) >= 10)
        wait_until("some requests ended", lambda: sum(server.query("sum(otel_llm_requests_total)").values()) >= 20)
        finish(senders)
        wait_until("every stream is judged", lambda: settled(running))
        judged = running.metric("otel_llm_requests_total")
        at_s = server.scraped("sum(otel_llm_requests_total)", {(): judged})

        done = run("audit", running.journal, "--format", "json")
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        audited = {(measured, name): one for name, by in summary["classes"].items() for measured, one in by.items()}
        assert len(audited) >= 2
        attained = {key: value for key, value in server.query(ATTAINMENT, at_s).items() if not math.isnan(value)}
        said = {key: one["attainment"] for key, one in audited.items() if one["attainment"] is not None}
        assert attained == pytest.approx(said, rel=0, abs=1e-12)
        felt = server.query(SMOOTH_TOKENS, at_s)
        assert felt.keys() == audited.keys()
        for key, one in audited.items():
            assert math.isclose(felt[key] / summary["span_s"], one["smooth_goodput_tok_s"], rel_tol=1e-9), key
        tokens = server.query(f"{BY} (otel_llm_tokens_read_total)", at_s)
        assert sum(tokens.values()) == sum(
            sent for sent, _ in json.loads((tmp_path / "acks.json").read_text()).values()
        )

        # Nothing that is called a counter ever went down, and every scrape was read that came within its second.
        for name in server.names():
            if name.startswith("otel_llm_") and name.endswith(("_total", "_count", "_sum", "_bucket")):
                assert server.query(f"sum(resets({name}[1h]))") == {(): 0.0}, name
        in_time = "up unless scrape_duration_seconds >= 1"
        assert server.query(f"min(min_over_time(({in_time})[1h:250ms]))") == {(): 1.0}
        wait_until("the last scrape was read", lambda: server.target()["health"] == "up")
        for query in promql_in_docs():
            server.query(query)  # an error is not a success


def test_the_page_is_what_promtool_wants(tmp_path: Path) -> None:
    promtool = program("promtool")
    with collector(tmp_path, "--verdicts", "none", "--lateness", "100ms") as running:
        deliver(GrpcExporter(endpoint=running.grpc, insecure=True))

        def page() -> str:
            with urllib.request.urlopen(f"{running.web}/metrics", timeout=WAIT_S) as answer:
                return str(answer.read().decode())

        wait_until("requests ended", lambda: 'met="true"' in page() and 'met="false"' in page())
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=page(), capture_output=True, text=True, check=False
        )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
