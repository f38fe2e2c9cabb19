"""A profile of a real vLLM: the commands of `docs/profiles.md`, from the load to the comparison."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.integration.vllm_server import VllmServer
from support.patience import WAIT_S

from otel_llm.audit import load_streams
from otel_llm.formats.io.journal_format import frame
from otel_llm.scheduling import load_profile
from otel_llm.scheduling.profiles.profile_fit import fit_profile, read_requests

ROOT = Path(__file__).parents[2]
BUDGET = 2048
"""vLLM's own `--max-num-batched-tokens`, of a server that is not told another."""
LOAD = "--levels 1,4,8 --ladder-s 2 --input 4:300 --output 2:60"
SHORT = "--rounds 1 --seconds 4 --shares 0.3 --input 4:300 --output 2:60 --json errors.json --html errors.html"

pytestmark = pytest.mark.alone


def steps() -> list[str]:
    """Return the commands with which the page fits a profile to a server and tries it."""
    page = (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8")
    [block] = [one for one in re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "--record" in one]
    return [line for line in block.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]


def run(command: str, url: str, folder: Path, more: str = "") -> str:
    """Run a command of the page on this server, in a folder."""
    words = [url if "://" in word else word for word in shlex.split(f"{command} {more}")]
    words = ["tiny" if word == "MODEL" else str(BUDGET) if word == "8192" else word for word in words]
    if words[0] == "otel-llm":
        words[:1] = [sys.executable, "-m", "otel_llm.cli.main"]
    else:
        words[:2] = [sys.executable, str(ROOT / words[1])]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def recorded_since(server: VllmServer, messages: int, requests: int, path: Path) -> Path:
    """Write the messages after the first so many as a journal, once so many requests have ended in them."""
    limit = time.monotonic() + WAIT_S
    while True:
        with server.received.lock:
            fresh = server.received.messages[messages:]
        path.write_bytes(b"".join(frame(one.SerializeToString(), 1) for one in fresh))
        rows = [row for batch in load_streams(path) for row in batch.to_pylist()] if fresh else []
        if sum(row["complete"] for row in rows) >= requests:
            return path
        assert time.monotonic() < limit, f"{len(rows)} of {requests} requests"
        time.sleep(0.5)


def test_a_profile_is_fitted_to_a_server_and_tells_how_it_serves(
    recording_vllm: tuple[VllmServer, VllmServer], tmp_path: Path
) -> None:
    server = recording_vllm[0]
    record, fit, show, compare = steps()
    before = len(server.received.messages)
    served = int(run(record, server.url, tmp_path, LOAD).split()[0])
    journal = recorded_since(server, before, served, tmp_path / "journal.otlp")
    run(fit.replace(" journal ", f" {journal.name} "), server.url, tmp_path)

    engines, model = read_requests(load_streams(journal))
    found = fit_profile(engines, model, BUDGET)
    assert (found.model, found.requests) == ("tiny", served)
    # The steps are numbered: all that the plugin counted are rebuilt, but for those of a test before this one.
    assert found.doubtful <= 0.02 * found.steps
    assert found.residuals["all"].median < 0.5
    assert found.residuals["with a chunk"].iterations > 0.8 * served / 8

    profile = load_profile(tmp_path / "mine.yaml")
    assert 10**5 < profile.iteration_ns(1, 100) < 10**9
    assert profile.iteration_ns(0, 0, 300) > profile.iteration_ns(0, 0, 10)
    assert 0 < profile.request_overhead_ns < 10**9
    assert "tiny" in run(show, server.url, tmp_path)

    run(compare, server.url, tmp_path, SHORT)
    [row] = json.loads((tmp_path / "errors.json").read_text())["runs"]
    assert row["requests"] > 5
    assert {"ttft", "itl", "e2e"} == row["errors"].keys()
    for figure in row["errors"].values():  # how far they are off: benchmarks/simulator_error.py
        assert figure["simulated_median_s"] > 0
        assert figure["real_median_s"] > 0
    assert "simulated" in (tmp_path / "errors.html").read_text()
