"""The faults that the docs list, and that each line of the list has its tests."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from support.commands import collector, environment, wait_until
from support.live import Delivery, Live
from support.otlp import T0_NS, export, stream_spans
from support.patience import WAIT_S

from otel_llm.shared.clock import MonotonicClock

ROOT = Path(__file__).parents[2]
MS = 1_000_000
SECOND = 1_000_000_000

APPLICATION = """
import time
import otel_llm

def model():
    for _ in range(10):
        yield "word"
        time.sleep(0.02)
    assert otel_llm.flush(60)
    print("told", flush=True)
    time.sleep(600)

for _ in otel_llm.track(model(), model="m", slo_class="chat"):
    pass
"""


def test_every_fault_in_the_docs_has_its_tests() -> None:
    section = (ROOT / "docs" / "collector-failures.md").read_text().partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and "---" not in line][1:]
    assert len(rows) >= 5
    for row in rows:
        named = re.findall(r"`(tests/\S+)::(\w+)`", row)
        assert named, row
        for file, name in named:
            assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file}::{name}"


def requests_of(web: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{web}/v1/requests", timeout=WAIT_S) as answer:
        found: list[dict[str, Any]] = json.loads(answer.read())["requests"]
        return found


def test_an_application_that_dies(tmp_path: Path) -> None:
    decisions = tmp_path / "decisions.jsonl"
    with collector(tmp_path, "--lost-after", "3s", "--lateness", "1s", "--decisions", decisions) as running:
        settings = environment() | {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{running.grpc}"}
        application = subprocess.Popen([sys.executable, "-c", APPLICATION], env=settings, stdout=subprocess.PIPE)
        assert application.stdout is not None
        try:
            assert application.stdout.readline() == b"told\n"
        finally:
            application.send_signal(signal.SIGKILL)
            application.wait()
            application.stdout.close()
        killed_ns = time.time_ns()
        wait_until("judged", lambda: requests_of(running.web))
        (row,) = requests_of(running.web)
        assert running.stop()[0] == 0
    assert (row["outcome"], row["tokens"], row["met"]) == ("lost", 10, None)
    # A dead sender is not a stalled model: nothing begins to fire once its facts are old.
    lines = [json.loads(line) for line in decisions.read_text().splitlines()]
    fired = [one["flip_unix_nano"] - one["now_offset_nano"] for one in lines if one["state"] == "firing"]
    assert all(flip_ns < killed_ns + 2 * SECOND for flip_ns in fired)


def test_a_step_of_the_collectors_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MonotonicClock()
    before = clock.now_ns()
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 3600 * SECOND)
    assert before <= clock.now_ns() < before + 60 * SECOND
    restarted = MonotonicClock()
    assert restarted.now_ns() < before
    restarted.start_after(before)
    assert restarted.now_ns() > before


@pytest.mark.parametrize("step_s", [-7200, 3, 7200])
def test_a_step_of_a_senders_clock(step_s: int) -> None:
    """Two requests of one sender, whose clock steps between them: rows and windows are those of a steady one."""
    live, steady = Live(), Live()
    for one, step_ns in ((live, step_s * SECOND), (steady, 0)):
        deliveries: list[Delivery] = []
        for request, ahead_ns in ((1, 0), (2, step_ns)):
            commit_ns = T0_NS + request * SECOND
            tokens = [commit_ns + at * 100 * MS for at in range(1, 20)]
            spans = stream_spans(
                [at + ahead_ns for at in tokens],
                request=request,
                commit_ns=commit_ns + ahead_ns,
                end_ns=tokens[-1] + ahead_ns,
                segment_tokens=5,
            )
            deliveries += [(span.end_time_unix_nano - ahead_ns + MS, export(span)) for span in spans]
        one.run(deliveries)

    def reported(rows: list[Any]) -> list[Any]:
        return [{name: value for name, value in row.items() if name != "start_unix_nano"} for row in rows]

    assert reported(live.rows) == reported(steady.rows)
    assert live.decisions == steady.decisions == []
    ended = [sum(int(row["requests_ended"]) for row in one.windows) for one in (live, steady)]
    assert ended == [2, 2]
