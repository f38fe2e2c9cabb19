"""The service as a process: real listeners, real exporters, the journal, the page, a clean stop."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from support.commands import Collector, collector, run, wait_until
from support.otlp import export, request_span, stream_spans
from support.patience import WAIT_S
from support.recordings import received
from support.vectors import FOLDER

import otel_llm.audit
from otel_llm.cli.main import main
from otel_llm.collector.service import Service

MS = 1_000_000
FREE = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--web", "127.0.0.1:0")


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return str(answer.read().decode())


def get_json(url: str) -> Any:
    return json.loads(get(url))


def refusal(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> str:
    """Run `collect` in this process up to where it would take its ports; return what it says as it refuses to."""

    def prepared(service: Service) -> None:
        pytest.fail(f"not refused: {arguments}")

    monkeypatch.setattr(Service, "prepare", prepared)
    refused = CliRunner().invoke(main, ["collect", *map(str, arguments)])
    assert refused.exit_code == 2, refused.output
    return refused.stderr


def post_json(running: Collector, line: bytes) -> None:
    request = urllib.request.Request(
        f"http://{running.http}/v1/traces", data=line, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        assert answer.status == 200


def test_what_is_acknowledged_is_judged_live_and_by_the_audit_of_the_journal(tmp_path: Path) -> None:
    settings = ("--window", "2s", "--lateness", "1s", "--lost-after", "2s", "--windows", tmp_path / "windows.jsonl")
    with collector(tmp_path, *settings) as running:
        for line in (FOLDER / "rows.jsonl").read_bytes().splitlines():
            post_json(running, line)
        wait_until("every stream judged", lambda: len(get_json(f"{running.web}/v1/requests")["requests"]) == 18)
        live = get_json(f"{running.web}/v1/requests")["requests"]
        metrics = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(get(f"{running.web}/metrics"))
            for sample in family.samples
        }
        page = get(f"{running.web}/")
        with urllib.request.urlopen(f"{running.web}/v1/events", timeout=WAIT_S) as events:
            results = "".join(events.readline().decode() for _ in range(9))
        assert (get(f"{running.web}/healthz"), get(f"{running.web}/readyz")) == ("ok\n", "ok\n")
        status, reported = running.stop()
    assert status == 0, reported
    assert "6 exports, 18 streams judged, 0 still in flight" in reported
    rows: list[dict[str, Any]] = otel_llm.audit.load(tmp_path / "journal").rows

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return (row["trace_id"], row["span_id"], row["choice"])

    assert sorted(live, key=key) == sorted(rows, key=key)
    counted = sum(value for (name, _), value in metrics.items() if name == "otel_llm_requests_total")
    assert counted == 18
    labels = (("measured_at", "client"), ("model", "m"), ("slo_class", "chat"))
    read = sum(row["tokens_read"] for row in rows if row["benefit"] is not None)
    met = sum(row["tokens_read"] for row in rows if row["met"])
    assert metrics["otel_llm_tokens_met_total", labels] == met
    smooth = (
        metrics["otel_llm_tokens_read_total", labels]
        - metrics["otel_llm_penalty_tokens_total", labels]
        + metrics["otel_llm_penalty_refunded_tokens_total", labels]
    )
    assert smooth == pytest.approx(sum(row["benefit"] for row in rows if row["benefit"] is not None))
    assert read <= metrics["otel_llm_tokens_read_total", labels]
    assert metrics["otel_llm_deadline_misses_total", labels] == sum(row["deadline_misses"] or 0 for row in rows)
    assert metrics["otel_llm_streams_in_flight", labels] == 0
    assert ("otel_llm_idle_seconds_bucket", (("le", "+Inf"), *labels)) in metrics
    assert "/live/main.js" in page
    assert [line for line in results.splitlines() if line.startswith("event")] == [
        "event: history", "event: fleet", "event: page",
    ]  # fmt: skip
    assert '"met":false' in results
    with collector(tmp_path, *settings) as running:
        # What was open when it stopped is not written half: the next run goes on with it.
        wait_until("the last window closed", lambda: ended(tmp_path / "windows.jsonl") == 18)
        assert running.stop()[0] == 0
    assert ended(tmp_path / "windows.jsonl") == 18


def ended(windows: Path) -> int:
    text = windows.read_text()
    lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may be half there
    return sum(json.loads(line)["requests_ended"] for line in lines)


@pytest.mark.parametrize("protocol", ["grpc", "http", "grpc gzip"])
def test_the_standard_exporters_are_understood(tmp_path: Path, protocol: str) -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with provider.get_tracer("another").start_as_current_span("GET /"):
        pass
    with collector(tmp_path) as running:
        made: SpanExporter
        if protocol == "http":
            made = HttpExporter(endpoint=f"http://{running.http}/v1/traces")
        else:
            from grpc import Compression

            zipped = Compression.Gzip if "gzip" in protocol else None
            made = GrpcExporter(endpoint=f"http://{running.grpc}", insecure=True, compression=zipped)
        spans: tuple[ReadableSpan, ...] = kept.get_finished_spans()
        assert made.export(spans) is SpanExportResult.SUCCESS
        made.shutdown()
        wait_until("counted", lambda: "otel_llm_collector_ignored_spans_total 1.0" in get(f"{running.web}/metrics"))
        assert running.stop()[0] == 0
    ((message, receipt_ns, _),) = received([tmp_path / "journal"])
    assert message.resource_spans[0].scope_spans[0].spans[0].name == "GET /"
    assert receipt_ns is not None


def test_it_is_ready_when_it_says_that_it_listens(tmp_path: Path) -> None:
    with collector(tmp_path) as running:
        assert (get(f"{running.web}/readyz"), get(f"{running.web}/healthz")) == ("ok\n", "ok\n")


def test_a_port_in_use_says_what_to_do_and_starts_nothing(tmp_path: Path) -> None:
    with collector(tmp_path) as running:
        again = run(
            "collect",
            "--grpc",
            running.grpc,
            "--http",
            "127.0.0.1:0",
            "--web",
            "127.0.0.1:0",
            "--journal",
            tmp_path / "b",
        )
    assert again.returncode == 2
    assert f"{running.grpc} is in use" in again.stderr
    assert "--grpc" in again.stderr


def test_a_journal_in_use_is_refused(tmp_path: Path) -> None:
    with collector(tmp_path):
        again = run("collect", *FREE, "--journal", tmp_path / "journal")
    assert again.returncode == 2
    assert str(tmp_path / "journal") in again.stderr


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("--slo", "version: 1\ndefault: chat\nclasses:\n  chat: {reading_sped: 5}\n", ["slo.yaml:4:", "reading_speed"]),
        ("--rules", "version: 1\ngroups:\n- name: a\n  name: b\n", ["rules.yaml:4:", "name"]),
        ("--config", "version: 1\nlimits: {message_bites: 1}\n", ["config.yaml:2:", "message_bytes"]),
    ],
)
def test_a_wrong_file_is_refused_with_its_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, text: str, words: list[str]
) -> None:
    path = tmp_path / f"{option.removeprefix('--')}.yaml"
    path.write_text(text)
    reported = refusal(monkeypatch, option, path, "--journal", tmp_path / "journal")
    for word in words:
        assert word in reported
    assert not (tmp_path / "journal").exists()


@pytest.mark.parametrize("arguments", [("--window", "0s"), ("--lateness", "5 parsecs"), ("--grpc", "4317")])
def test_a_wrong_option_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, str]) -> None:
    assert arguments[1] in refusal(monkeypatch, *arguments, "--journal", tmp_path / "journal")


def test_a_refusal_ends_the_process(tmp_path: Path) -> None:
    refused = run("collect", "--window", "0s", "--journal", tmp_path / "journal")
    assert refused.returncode == 2
    assert "0s" in refused.stderr


COLLECT_INPUTS = {
    "slo.yaml": "version: 1\ndefault: a\nclasses: {a: {}}\n",
    "rules/a.yaml": "version: 1\ngroups:\n- {name: g, scope: stream, rules: [{alert: A, when: 'gap_seconds > 1'}]}\n",
    "config.yaml": "version: 1\nauth: {tokens_file: tokens.txt}\nalerts: {log: alerts.jsonl}\n",
    "tokens.txt": "a-token-of-thirty-two-characters-x\n",
    "alerts.jsonl": "",
}


@pytest.mark.parametrize(
    ("option", "name"),
    [(option, name) for option in ("--decisions", "--windows") for name in COLLECT_INPUTS],
)
def test_the_collector_writes_over_nothing_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, name: str
) -> None:
    (tmp_path / "rules").mkdir()
    for file, text in COLLECT_INPUTS.items():
        (tmp_path / file).write_text(text)
    (tmp_path / "tokens.txt").chmod(0o600)
    given = ("--slo", "slo.yaml", "--rules", "rules", "--config", "config.yaml")
    monkeypatch.chdir(tmp_path)
    reported = refusal(monkeypatch, *FREE, "--journal", "journal", *given, option, name)
    words = "would be written twice" if name == "alerts.jsonl" else "is one of the inputs"
    assert f"{name} {words}" in reported
    assert {file: (tmp_path / file).read_text() for file in COLLECT_INPUTS} == COLLECT_INPUTS


def test_decisions_and_windows_are_two_files_and_go_on_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reported = refusal(monkeypatch, *FREE, "--journal", "journal", "--decisions", "x", "--windows", "./x")
    assert "x would be written twice; name two files" in reported
    assert not (tmp_path / "x").exists()
    for _ in range(2):
        with collector(tmp_path, "--decisions", tmp_path / "d.jsonl", "--windows", tmp_path / "w.jsonl") as running:
            assert running.stop()[0] == 0


@pytest.mark.parametrize(
    ("option", "held"),
    [
        ("--windows", b"my notes\nwithout an end"),
        ("--decisions", b"my notes\nwithout an end"),
        ("--decisions", b"one line"),
        ("--decisions", b'{"n": 1}\n'),
        ("--decisions", b"\x28\xb5\x2f\xfd\x00"),
        ("--decisions", b"#!/bin/sh\nexit\n"),
    ],
)
def test_what_holds_something_else_is_left_as_it_is(tmp_path: Path, option: str, held: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(held)
    refused = run("collect", *FREE, "--journal", tmp_path / "journal", option, path)
    assert refused.returncode == 2, refused.stderr
    assert f"{path}: it holds something else than {option[2:]}: choose another file" in refused.stderr
    assert path.read_bytes() == held


def test_a_line_that_a_crash_tore_off_is_cut_though_it_is_the_first(tmp_path: Path) -> None:
    decisions, windows = tmp_path / "d.jsonl", tmp_path / "w.jsonl"
    decisions.write_bytes(b'{"time_unix_nano":17900')
    windows.write_bytes(b'{"window_start')
    with collector(tmp_path, "--decisions", decisions, "--windows", windows):
        assert (decisions.read_bytes(), windows.read_bytes()) == (b"", b"")


@pytest.mark.parametrize("option", ["--decisions", "--windows"])
def test_one_collector_writes_to_a_file(tmp_path: Path, option: str) -> None:
    path = tmp_path / "lines.jsonl"
    with collector(tmp_path, option, path):
        again = run("collect", *FREE, "--journal", tmp_path / "other", option, path)
    assert again.returncode == 2
    assert f"{path}: another process writes to it: choose another file" in again.stderr


def test_rules_that_can_never_hold_beside_the_classes_are_reported_at_the_start(tmp_path: Path) -> None:
    slo = tmp_path / "slo.yaml"
    slo.write_text("version: 1\ndefault: support\nclasses: {support: {}}\n")
    with collector(tmp_path, "--slo", slo) as running:
        reported = running.stop()[1]
    results = [line for line in reported.splitlines() if line.startswith("warning: ")]
    assert len(results) == 2
    assert all('`slo_class == "chat"` never holds: slo_class is "support"' in line for line in results)


@pytest.mark.parametrize(("length", "taken"), [("10ms", True), ("9ms", False), ("0.009999", False), ("1us", False)])
def test_windows_too_short_to_close_in_time_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: str, taken: bool
) -> None:
    """A window each microsecond would be a million closings a second."""
    config = ("--config", tmp_path / "absent")
    reported = refusal(monkeypatch, "--window", length, *config, "--journal", tmp_path / "journal")
    assert ("absent" in reported) == taken  # all that was wrong then is the file
    assert (f"'{length}' is shorter than 10ms" in " ".join(reported.split())) == (not taken)


def test_decisions_are_written_as_they_are_made(tmp_path: Path) -> None:
    decisions = tmp_path / "decisions.jsonl"
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "version: 1\ngroups:\n- name: g\n  scope: stream\n  rules:\n"
        "  - {rule: Slow, when: 'tokens == 1', actions: [alert: {name: Slow, by: [model]}]}\n"
    )
    with collector(tmp_path, "--rules", rules, "--decisions", decisions) as running:
        # Far in the past: the stream's own axis is all that counts.
        spans = stream_spans(
            [1_790_000_000_100 * MS, 1_790_000_000_200 * MS], end_ns=1_790_000_000_300 * MS, segment_tokens=1
        )
        exporter = f"http://{running.http}/v1/traces"
        for span in [*spans, request_span(end_ns=1_790_000_000_300 * MS)]:
            body = export(span).SerializeToString()
            request = urllib.request.Request(exporter, data=body, headers={"Content-Type": "application/x-protobuf"})
            urllib.request.urlopen(request, timeout=WAIT_S).close()
        wait_until("judged", lambda: get_json(f"{running.web}/v1/requests")["requests"])
        assert running.stop()[0] == 0
    records = [json.loads(line) for line in decisions.read_text().splitlines()]
    assert [record["state"] for record in records] == ["firing", "resolved"]
    assert records[0]["facts"] == {"tokens": 1}
    assert records[0]["flip_unix_nano"] == 1_790_000_000_100 * MS
