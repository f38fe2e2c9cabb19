"""What a process that the doctor watches writes for it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from otel_llm.instrumentation.core.tally import Tally
from otel_llm.instrumentation.process.doctor_report import Reporter


def test_a_child_that_is_forked_during_a_write_reports(tmp_path: Path) -> None:
    tally = Tally()
    runtime: Any = SimpleNamespace(
        tally=tally,
        dropped=0,
        refused_classes=0,
        slo_class=None,
        slo_classes=None,
        sampling="always",
        provider=lambda: None,
    )
    reporter = Reporter(runtime, tmp_path)
    reporter._writing = True  # as another thread of the parent's left it
    reporter._after_fork()
    tally.begin("httpx", None)
    [path] = tmp_path.glob("*.json")
    assert json.loads(path.read_text(encoding="utf-8"))["begun"] == {"httpx": 1}
