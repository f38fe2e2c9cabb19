"""A process group that is stopped for a while goes on: in time, at the end of the block, and if its stopper dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import wait_until

from otel_llm.demo.demo_relay import stopped_group

LONG_S = 60.0
SHORT_S = 1.0
STOPPER = """\
import os, signal, sys, time
from otel_llm.demo.demo_relay import stopped_group
with stopped_group(int(sys.argv[1]), float(sys.argv[2])):
    time.sleep(float(sys.argv[2]) / 2)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def group() -> Iterator[int]:
    process = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def gone_on(pid: int) -> bool:
    """Tell, once, whether a child of this process went on after it was stopped: the kernel keeps that, however late."""
    return os.waitid(os.P_PID, pid, os.WCONTINUED | os.WNOHANG) is not None


def test_it_is_stopped_until_the_block_ends(group: int) -> None:
    with stopped_group(group, LONG_S):
        wait_until("stopped", lambda: stopped(group))
    assert not stopped(group)


def test_it_goes_on_by_itself(group: int) -> None:
    with stopped_group(group, SHORT_S):
        wait_until("stopped, and going on", lambda: gone_on(group))


def test_it_goes_on_where_the_block_raises(group: int) -> None:
    def interrupted() -> None:
        with stopped_group(group, LONG_S):
            wait_until("stopped", lambda: stopped(group))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not stopped(group)


def test_it_goes_on_where_its_stopper_is_killed(group: int) -> None:
    stopper = subprocess.run([sys.executable, "-c", STOPPER, str(group), f"{SHORT_S}"], check=False)
    assert stopper.returncode == -signal.SIGKILL
    wait_until("stopped, and going on", lambda: gone_on(group))


def test_a_group_that_is_gone_is_no_error() -> None:
    process = subprocess.Popen(["/bin/true"], start_new_session=True)
    process.wait()
    with stopped_group(process.pid, LONG_S):
        pass
