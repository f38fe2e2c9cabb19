"""A real `vllm bench serve` against a real vLLM on the CPU: its figures are ours, its failures too."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.formats.bench_figures import check_vllm
from support.formats.bench_read import judged, read
from support.integration.vllm_server import VllmServer
from support.patience import WAIT_S
from support.requirements import VLLM

from otel_llm.demo.demo_children import OFFLINE

pytestmark = pytest.mark.alone
TOKENS = 24


def bench(server: VllmServer, folder: Path, prompts: list[str], *more: str) -> tuple[dict[str, Any], Path]:
    """Run the benchmark over some prompts; return its result and the file."""
    asked = folder / "prompts.json"
    asked.write_text(json.dumps([{"conversations": [{"value": prompt}, {"value": "..."}]} for prompt in prompts]))
    result = folder / "result.json"
    command = [
        *(str(VLLM / "bin" / "vllm"), "bench", "serve", "--base-url", server.url.removesuffix("/v1")),
        *("--model", "tiny", "--tokenizer", str(VLLM / "tiny"), "--seed", "1", "--ignore-eos"),
        *("--dataset-name", "sharegpt", "--dataset-path", str(asked), "--sharegpt-output-len", str(TOKENS)),
        *("--num-prompts", str(len(prompts)), "--disable-shuffle"),
        *("--save-result", "--save-detailed", "--result-filename", str(result), *more),
    ]
    environment = {**os.environ, **OFFLINE, "VLLM_PLUGINS": ""}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-3000:]
    return json.loads(result.read_text()), result


def test_vllms_figures_are_ours(two_vllm: tuple[VllmServer, VllmServer], tmp_path: Path) -> None:
    server, _ = two_vllm
    # The third is longer than the model can take: the server refuses it.
    prompts = ["def f(x):", "import torch", "x " * 350, "class Net(nn.Module):"]
    run, path = bench(server, tmp_path, prompts, "--backend", "openai", "--max-concurrency", "2")
    streams, skipped = read(path.read_bytes(), path)
    check_vllm(run, streams)
    assert [one.resolved.outcome for one in streams] == ["completed", "completed", "error", "completed"]
    assert run["failed"] == 1
    assert "anomaly.failures_do_not_add_up" not in skipped.anomalies
    rows = judged(streams)
    assert [row["met"] is not None for row in rows] == [True] * 4
    assert rows[2]["met"] is False
    assert rows[2]["e2e_s"] is None
    for row in (rows[0], rows[1], rows[3]):
        # The server sends each token in a chunk unless it is behind.
        assert row["tokens"] == TOKENS
        assert (row["tokens_recorded"] == TOKENS) == (row["token_basis"] == "chunk")
        assert (row["model"], row["slo_class"]) == ("tiny", "chat")
