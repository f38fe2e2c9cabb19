"""A collector whose decision file is closed by size: a restart knows what stands in the closed files."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.commands import Collector, collector, run, wait_until
from support.otlp import T0_NS, export, stream_spans
from support.patience import WAIT_S

from otel_llm.rules.decisions.files import decision_files, read_back

MS = 1_000_000
STREAMS = 40


def post(running: Collector, spans: list[Span]) -> None:
    request = urllib.request.Request(
        f"http://{running.http}/v1/traces",
        data=export(*spans).SerializeToString(),
        headers={"Content-Type": "application/x-protobuf"},
    )
    urllib.request.urlopen(request, timeout=WAIT_S).close()


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read_back(path)]


def count(path: Path) -> int:
    """Return how many records there are so far; 0 in the instant in which the file has just got another name."""
    try:
        return len(records(path))
    except FileNotFoundError:
        return 0


def test_what_stands_in_closed_files_is_not_decided_again(tmp_path: Path) -> None:
    decisions = tmp_path / "decisions.jsonl"
    rules, config = tmp_path / "rules.yaml", tmp_path / "config.yaml"
    rules.write_text(
        "version: 1\ngroups:\n- name: g\n  scope: stream\n  rules:\n"
        "  - {rule: First, when: 'tokens == 1', actions: [alert: {name: First, by: [model]}]}\n"
    )
    config.write_text("version: 1\ndecisions: {file_bytes: 4096}\n")
    arguments = ("--rules", rules, "--decisions", decisions, "--config", config)
    streams = [
        stream_spans([T0_NS + 100 * MS, T0_NS + 200 * MS], request=n, end_ns=T0_NS + 300 * MS, segment_tokens=1)
        for n in range(1, STREAMS + 1)
    ]
    with collector(tmp_path, *arguments) as running:
        for commit, first, _ in streams:
            post(running, [commit, first])
        wait_until("all fire", lambda: count(decisions) == STREAMS)
        running.process.kill()
        running.process.wait()
    closed = decision_files(decisions)
    assert len(closed) > 3
    before = {path: path.read_bytes() for path in closed}
    # Most of what the journal makes again stands in closed files.
    assert decisions.read_text().count("\n") < STREAMS / 2
    with collector(tmp_path, *arguments) as running:
        for _, _, last in streams:
            post(running, [last])
        wait_until("all end", lambda: count(decisions) >= 2 * STREAMS)
        assert running.stop()[0] == 0
    for path in closed[:-1]:
        assert path.read_bytes() == before[path], "a closed file is never touched again"
    made = Counter((one["trace_id"], one["state"], one["flip_unix_nano"]) for one in records(decisions))
    assert set(made.values()) == {1}
    assert Counter(state for _, state, _ in made) == {"firing": STREAMS, "resolved": STREAMS}
    listed = run("rules", "explain", "--decisions", decisions, "--list", "--last", "1000")
    assert listed.returncode == 0
    assert len(listed.stdout.splitlines()) == 2 * STREAMS
