"""The script of examples/h200 on a CPU, with a tiny model: what it will leave behind on a GPU."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.requirements import VLLM, require

import otel_llm.audit

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("vllm")
    out = tmp_path_factory.mktemp("h200")
    small = (
        "--attn-implementation sdpa --cb-block-size 32 --cb-num-blocks 128 --cb-max-batch-tokens 256 --dtype float32"
    )
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "examples" / "h200" / "run.py"), "--out", str(out)),
            *("--server-python", str(VLLM / "bin" / "python"), "--shape", "tiny", "--device", "cpu"),
            *("--prompt-words", "20", "--tokens", "8,40", "--slots", "4", "--seconds", "3", "--leave", "0.3"),
            *("--cb", small),
        ],
        env={name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def test_every_request_was_recorded_on_both_sides(left: Path) -> None:
    said: dict[str, Any] = json.loads((left / "run.json").read_text(encoding="utf-8"))
    asked = sum(said["outcomes"].values())
    assert asked == sum(count for name, count in said["outcomes"].items() if name.endswith((": read", ": left")))
    assert said["traces_kept_ratio"] == 1.0
    assert set(said["phases"]) == {"below", "above"}
    assert said["phases"]["above"]["requests_per_s"] > said["phases"]["below"]["requests_per_s"]
    audit = otel_llm.audit.load(left / "recorded.otlp.zst")
    client = {row["trace_id"]: row for row in audit.rows if row["measured_at"] == "client"}
    server = {row["trace_id"]: row for row in audit.rows if row["measured_at"] == "server"}
    assert len(client) == len(server) == asked
    assert client.keys() == server.keys()
    for trace_id, row in server.items():
        # A reply can be complete on the server when its client, who reads behind, goes away.
        outcomes = (client[trace_id]["outcome"], row["outcome"])
        assert outcomes in {("completed", "completed"), ("cancelled", "cancelled"), ("cancelled", "completed")}
        assert row["token_basis"] == "exact"
        assert row["tokens"] is not None
        assert int(row["tokens"]) >= int(client[trace_id]["tokens"] or 0)
        assert row["queue_s"] is not None or not row["tokens"], "a request that made tokens was never scheduled"
        if row["outcome"] == "completed":
            assert row["tokens"] in (8, 40)
    left_early = sum(count for name, count in said["outcomes"].items() if name.endswith(": left"))
    assert [row["outcome"] for row in client.values()].count("cancelled") == left_early


def test_the_audit_lies_beside_it(left: Path) -> None:
    summary = json.loads((left / "audit.json").read_text(encoding="utf-8"))
    assert summary["skipped"] == 0
    assert set(summary["classes"]["chat"]) == {"client", "server"}
    assert (left / "report.html").stat().st_size > 0
    assert (left / "requests.csv").stat().st_size > 0


def test_a_journal_is_trimmed_by_whole_traces(left: Path, tmp_path: Path) -> None:
    trim = runpy.run_path(str(ROOT / "examples" / "h200" / "run.py"))["trim"]
    whole = otel_llm.audit.load(left / "recorded.otlp.zst")
    size = (left / "recorded.otlp.zst").stat().st_size
    share = trim(left / "journal", tmp_path / "part.otlp.zst", size / 2)
    assert 0 < share < 1
    part = otel_llm.audit.load(tmp_path / "part.otlp.zst")
    assert (tmp_path / "part.otlp.zst").stat().st_size <= size / 2
    by_key = {(row["trace_id"], row["measured_at"]): row for row in whole.rows}
    assert 0 < len(part.rows) < len(whole.rows)
    for row in part.rows:
        assert row == by_key[row["trace_id"], row["measured_at"]]
    assert {row["measured_at"] for row in part.rows} == {"client", "server"}
