"""What a process that the doctor watches writes for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.patience import WAIT_S

FORKS = """
import os, sys, threading
from pathlib import Path
from types import SimpleNamespace
from otel_llm.instrumentation.core.stats import Stats
from otel_llm.instrumentation.process.doctor_report import Reporter
from otel_llm.instrumentation.segments.model_chunks import KnownModels

stats = Stats()
runtime = SimpleNamespace(
    stats=stats, dropped=0, refused_classes=0, slo_class=None, slo_classes=None, sampling="always",
    provider=lambda: None, models=KnownModels(),
)
Reporter(runtime, Path(sys.argv[1])).begin()
writing, go_on, write_text = threading.Event(), threading.Event(), Path.write_text

def slow(self, *args, **more):
    writing.set()
    go_on.wait(60)
    return write_text(self, *args, **more)

Path.write_text = slow
thread = threading.Thread(target=stats.begin, args=("openai", None))
thread.start()
writing.wait(60)
Path.write_text = write_text
child = os.fork()
if not child:
    stats.begin("httpx", None)
    os._exit(0)
os.waitpid(child, 0)
go_on.set()
thread.join()
print(child)
"""


def test_a_child_that_is_forked_during_a_write_reports(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)
    [path] = tmp_path.glob(f"{done.stdout.strip()}-*.json")
    assert json.loads(path.read_text(encoding="utf-8"))["begun"] == {"openai": 1, "httpx": 1}
