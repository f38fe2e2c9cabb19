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

from otel_llm.demo.stopped_group import stopped_group

LONG_S = 60.0
STOPPER = """\
import sys, time
from otel_llm.demo.stopped_group import stopped_group
with stopped_group(int(sys.argv[1]), 1.0):
    time.sleep(60)
"""


@pytest.fixture
def group() -> Iterator[int]:
    process = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_it_is_stopped_until_the_block_ends(group: int) -> None:
    with stopped_group(group, LONG_S):
        wait_until("stopped", lambda: stopped(group))
    assert not stopped(group)


def test_it_goes_on_by_itself(group: int) -> None:
    with stopped_group(group, 0.2):
        wait_until("stopped", lambda: stopped(group))
        wait_until("going on", lambda: not stopped(group))


def test_it_goes_on_where_the_block_raises(group: int) -> None:
    def interrupted() -> None:
        with stopped_group(group, LONG_S):
            wait_until("stopped", lambda: stopped(group))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not stopped(group)


def test_it_goes_on_where_its_stopper_is_killed(group: int) -> None:
    stopper = subprocess.Popen([sys.executable, "-c", STOPPER, str(group)])
    wait_until("stopped", lambda: stopped(group))
    os.kill(stopper.pid, signal.SIGKILL)
    stopper.wait()
    wait_until("going on", lambda: not stopped(group))


def test_a_group_that_is_gone_is_no_error() -> None:
    process = subprocess.Popen(["/bin/true"], start_new_session=True)
    process.wait()
    with stopped_group(process.pid, LONG_S):
        pass
