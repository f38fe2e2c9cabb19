"""The idle-alert example as its README runs it: one stall pages and resolves, with Alertmanager and without."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.actions.alertmanager import program
from support.commands import environment, run
from support.patience import WAIT_S

import otel_llm.audit

EXAMPLE = Path(__file__).parents[2] / "examples" / "idle-alert"
STALLED = "LlmUserIdle {model=stall-empty-buffer, slo_class=chat}"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Path, subprocess.Popen[str]]]]:
    """Both runs at once: most of a run is waiting."""
    runs = {}
    with ExitStack() as all_:
        for name, path in (("with", environment()["PATH"]), ("without", "/nowhere")):
            out = tmp_path_factory.mktemp(name)
            command = [sys.executable, str(EXAMPLE / "run_alert.py"), "--out", str(out)]
            process = subprocess.Popen(
                command, env=environment() | {"PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            all_.enter_context(process)
            all_.callback(process.terminate)
            runs[name] = (out, process)
        yield runs


def finished(run: tuple[Path, subprocess.Popen[str]]) -> str:
    """Wait for a run's end, which must be good; return what it said."""
    said, _ = run[1].communicate(timeout=3 * WAIT_S)
    assert run[1].returncode == 0, said
    return said


def test_the_stall_pages_through_alertmanager_and_resolves(
    shown: dict[str, tuple[Path, subprocess.Popen[str]]],
) -> None:
    program()
    said = finished(shown["with"])
    for status in ("FIRING  ", "RESOLVED"):
        assert f"{status}  {STALLED}  from: Alertmanager" in said
        assert f"{status}  {STALLED}  from: collector" in said


def test_without_alertmanager_the_collector_pages_alone(shown: dict[str, tuple[Path, subprocess.Popen[str]]]) -> None:
    said = finished(shown["without"])
    assert "alertmanager  not installed" in said
    assert f"FIRING    {STALLED}  from: collector" in said
    assert f"RESOLVED  {STALLED}  from: collector" in said
    assert "from: Alertmanager" not in said
    out = shown["without"][0]
    rows: list[dict[str, Any]] = otel_llm.audit.load(out / "journal").rows
    assert len(rows) == 9
    (stalled,) = (row for row in rows if row["model"] == "stall-empty-buffer")
    assert stalled["idle_s"] > 2.0
    assert {row["outcome"] for row in rows} == {"completed"}
    logged = [json.loads(line) for line in (out / "alerts.jsonl").read_text().splitlines()]
    assert {line["status"] for line in logged} == {"firing", "resolved"}


def test_the_rules_are_right_and_do_what_their_tests_say() -> None:
    checked = run("rules", "check", "--strict", EXAMPLE / "rules.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = run("rules", "test", EXAMPLE / "rules.test.yaml")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "6 passed, 0 failed" in tested.stdout
