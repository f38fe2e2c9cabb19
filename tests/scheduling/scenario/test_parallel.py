"""A sweep on several processes: one that is killed ends it with the reason and a remedy."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.patience import WAIT_S
from support.scheduling.scenarios import SCENARIO, scenario

from otel_llm.cli.commands.simulate_command import simulate
from otel_llm.scheduling.scenario.parallel import SweepError, run_sweep
from otel_llm.scheduling.scenario.sweep import load_runs

SWEEP = "sweep: {policy.placement: [random, minimal, least_load, lmetric]}\n"


def kill_a_process(stop: threading.Event) -> None:
    """Kill the first process of a pool as soon as there is one."""
    while not stop.wait(0.01):
        for one in multiprocessing.active_children():
            if one.pid is not None:
                with suppress(ProcessLookupError):  # one of an earlier pool that ends just now
                    os.kill(one.pid, signal.SIGKILL)
                    return


@pytest.fixture
def path(tmp_path: Path) -> Path:
    # The runs would take minutes, so that the process dies in one of them or before.
    return scenario(tmp_path, SCENARIO.replace("requests: 50", "requests: 2000000") + SWEEP)


@pytest.mark.system
def test_a_killed_process_is_an_error_with_a_remedy(path: Path) -> None:
    stop = threading.Event()
    killer = threading.Thread(target=kill_a_process, args=(stop,))
    killer.start()
    try:
        with pytest.raises(SweepError) as ended:
            run_sweep(path, (), load_runs(path), 0, jobs=2)
    finally:
        stop.set()
        killer.join()
    assert str(ended.value) == (
        "a process of the sweep was killed, as for lack of memory: 0 of 4 runs were done; "
        "write --jobs below 2, or simulate fewer requests in a run"
    )


@pytest.mark.system
def test_the_command_says_so_without_a_traceback(path: Path) -> None:
    stop = threading.Event()
    killer = threading.Thread(target=kill_a_process, args=(stop,))
    killer.start()
    try:
        result = CliRunner().invoke(simulate, [str(path), "--jobs", "2"])
    finally:
        stop.set()
        killer.join()
    assert result.exit_code == 1
    assert "Error: a process of the sweep was killed" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.system
def test_ctrl_c_is_for_the_command_alone(tmp_path: Path) -> None:
    path = scenario(tmp_path, SCENARIO + SWEEP)

    def interrupt(_done: float) -> None:
        for one in multiprocessing.active_children():
            assert one.pid is not None
            os.kill(one.pid, signal.SIGINT)  # a terminal sends it to them, too

    assert len(run_sweep(path, (), load_runs(path), 0, jobs=2, progress=interrupt)) == 4


COMMAND = """
import os, signal, sys
from pathlib import Path
from otel_llm.scheduling.scenario.parallel import run_sweep
from otel_llm.scheduling.scenario.sweep import load_runs

path = Path(sys.argv[1])
run_sweep(path, (), load_runs(path), 0, 2, lambda done: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_the_processes_end_with_a_command_that_is_killed(tmp_path: Path) -> None:
    path = scenario(tmp_path, SCENARIO + "sweep: {workload.requests: [1, 2000000]}\n")
    command = [sys.executable, "-c", COMMAND, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as killed:
        try:
            killed.communicate(timeout=WAIT_S)  # the output ends with the last of them
        finally:
            with suppress(ProcessLookupError):
                os.killpg(killed.pid, signal.SIGKILL)
