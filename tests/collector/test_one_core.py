"""A process of threads that take turns keeps to one core, whichever, and not to the same one for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from otel_llm.collector.one_core import OneCore

CORES = sorted(os.sched_getaffinity(0))
MOVING = """
import json, os, threading
from pathlib import Path
from otel_llm.collector.one_core import OneCore

core = OneCore()
stop = threading.Event()
threads = [threading.Thread(target=stop.wait) for _ in range(3)]
for thread in threads:
    thread.start()
seen = []
for _ in range(200):
    core.move()
    seen.append(sorted({tuple(os.sched_getaffinity(int(task.name))) for task in Path("/proc/self/task").iterdir()}))
later = threading.Thread(target=lambda: seen.append(sorted({tuple(os.sched_getaffinity(0))})))
later.start()
later.join()
stop.set()
print(json.dumps(seen))
"""


def run(code: str) -> list[list[list[int]]]:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    found: list[list[list[int]]] = json.loads(done.stdout)
    return found


def test_all_threads_are_on_one_core_and_every_core_has_its_turn() -> None:
    *seen, later = run(MOVING)
    assert all(len(places) == 1 and len(places[0]) == 1 for places in seen)
    assert later == seen[-1]
    assert {places[0][0] for places in seen} == set(CORES)


def test_a_process_that_may_use_one_core_only_is_left_alone() -> None:
    first = CORES[0]
    alone = MOVING.replace("core = OneCore()", f"os.sched_setaffinity(0, {{{first}}})\ncore = OneCore()")
    assert run(alone) == [[[first]]] * 201


def test_where_the_system_has_no_such_thing_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_llm.collector.one_core._CAN", False)
    monkeypatch.setattr(os, "sched_setaffinity", None)
    OneCore().move()
    assert sorted(os.sched_getaffinity(0)) == CORES
