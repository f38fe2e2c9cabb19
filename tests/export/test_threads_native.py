"""Threads, locks and waits that stay the system's own if a library replaces those of Python."""

from __future__ import annotations

import subprocess
import sys

from support.patience import WAIT_S

from otel_llm.export import threads


def test_signals_before_a_wait_count_as_one() -> None:
    wake = threads.Wake()
    wake.set()
    wake.set()
    assert wake.wait(WAIT_S)
    assert not wake.wait(0.0)
    assert not wake.wait(-1.0)  # a time that is over, not one without a limit


def test_a_signal_ends_the_wait_of_another_thread() -> None:
    asked, answered = threads.Wake(), threads.Wake()

    def answer() -> None:
        asked.wait()
        answered.set()

    threads.start(answer)
    asked.set()
    assert answered.wait(WAIT_S)


def test_waiting_tells_whether_it_came_true() -> None:
    looks = iter([False, False, True])
    assert threads.wait_until(lambda: next(looks), WAIT_S)
    assert not threads.wait_until(lambda: False, 0.01)
    assert threads.wait_until(lambda: True, 0.0)


PATCHED = """
import sys
order = sys.argv[1]
if order == "before":
    from otel_llm.export import threads
from gevent import monkey
monkey.patch_all()
import time
from otel_llm.export import threads

lock, done = threads.lock(), threads.Wake()
stages = []

def work():
    with lock:
        done.wait(20)          # blocks this thread, and no greenlet
        stages.append("worked")

def greenlet():
    stages.append("greenlet")
    done.set()

import gevent
threads.start(work)
gevent.spawn(greenlet)         # runs once this one waits
assert threads.wait_until(lambda: "worked" in stages, 20)
assert stages == ["greenlet", "worked"], stages
"""


def test_a_wait_holds_no_greenlet_up() -> None:
    for order in ("before", "after"):
        subprocess.run([sys.executable, "-c", PATCHED, order], check=True, timeout=WAIT_S)
