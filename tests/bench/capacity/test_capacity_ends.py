"""A live search that is ended: by Ctrl-C at any moment, a full disk, a worker that dies; it keeps what there is."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.bench.loads import MODEL, After, counted
from support.bench.processes import children_of, started
from support.patience import WAIT_S
from support.sse_server import DONE, Gate, Json, Reply, SseServer, Wait, chunk, words

from otel_llm.bench.client.learning import OUTPUT_TOKENS
from otel_llm.cli.commands.audit_command import audit

QUESTIONS = 2
SLOW = Reply([*words(2), Wait(30.0), *words(2), chunk(finish="stop"), DONE])
LOAD = ("--between", "20..40", "--output", "3", "--format", "json")


def ctrl_c(process: subprocess.Popen[str]) -> None:
    """Interrupt a started process as a terminal does: all of its group."""
    os.killpg(process.pid, signal.SIGINT)


def waits_of(process: subprocess.Popen[str]) -> int:
    """Return how often a process has waited for something: a measure of how far it is, on a machine of any speed."""
    found = re.search(r"^voluntary_ctxt_switches:\s*(\d+)$", _proc(process, "status").read_text("ascii"), re.MULTILINE)
    assert found is not None
    return int(found[1])


def sockets_of(process: subprocess.Popen[str]) -> int:
    """Return how many sockets a process has open."""
    found = 0
    for name in _proc(process, "fd").iterdir():
        with suppress(FileNotFoundError):
            found += str(name.readlink()).startswith("socket:")
    return found


HOLD = """
import sys, time
from pathlib import Path
if any("otel_llm.bench.client.worker" in word for word in sys.orig_argv):
    while Path({held!r}).exists():
        time.sleep(0.01)
"""


def hold_workers(folder: Path) -> Path:
    """Keep the workers of a command from starting as long as a file is there, which is returned.

    The command is started with this folder as its `path`.
    """
    held = folder / "held"
    held.touch()
    (folder / "sitecustomize.py").write_text(HOLD.format(held=str(held)), encoding="utf-8")
    return held


def _proc(process: subprocess.Popen[str], name: str) -> Path:
    return Path(f"/proc/{process.pid}/{name}")


def search(
    url: str, out: Path, *arguments: str, file_bytes: int | None = None, path: Path | None = None
) -> subprocess.Popen[str]:
    command: tuple[str | Path, ...] = ("capacity", url, "--model", MODEL, *LOAD, "--out", out, *arguments)
    return started(*command, file_bytes=file_bytes, path=path)


def wait_until(reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not reached():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the answer of a search that was ended."""
    stdout, stderr = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1, stderr
    assert "Traceback" not in stderr
    found: dict[str, Any] = json.loads(stdout or pytest.fail(stderr))
    assert not found["decided"]
    return found


def recorded(folder: Path) -> int:
    done = CliRunner().invoke(audit, [str(folder), "--format", "json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["skipped"] == 0
    return int(found["requests"])


def assert_recorded(found: dict[str, Any], out: Path) -> None:
    """Check that each probe of the answer has its recording, the last one included."""
    folders = sorted(out.iterdir())
    assert [recorded(folder) for folder in folders] == [probe["requests"] for probe in found["probes"]]
    assert [json.loads((folder / "run.json").read_text())["rate"] for folder in folders] == [
        probe["rate"] for probe in found["probes"]
    ]


def test_before_the_server_has_answered(tmp_path: Path) -> None:
    gate = Gate()
    with SseServer({MODEL: Reply(before_headers=gate)}) as server:
        process = search(server.url, tmp_path / "out")
        wait_until(lambda: bool(server.requests), process)
        ctrl_c(process)
        found = ended(process)
        gate.open()
    assert (found["why"], found["probes"], found["capacity_low"]) == ("interrupted", [], None)
    assert not (tmp_path / "out").exists()


def test_while_the_workers_start(tmp_path: Path) -> None:
    held = hold_workers(tmp_path)
    with SseServer({MODEL: counted(3)}) as server:
        process = search(server.url, tmp_path / "out", "--workers", "2", path=tmp_path)
        wait_until(lambda: len(children_of(process)) == 2, process)
        ctrl_c(process)
        held.unlink()
        found = ended(process)
    assert (found["why"], found["probes"]) == ("interrupted", [])
    assert list((tmp_path / "out").iterdir()) == []


def test_in_a_probe(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with SseServer({MODEL: After(counted(OUTPUT_TOKENS), SLOW)}) as server:
        process = search(server.url, out)
        wait_until(lambda: len(server.requests) > QUESTIONS + 5, process)
        ctrl_c(process)
        found = ended(process)
    (probe,) = found["probes"]
    assert found["why"] == "interrupted"
    assert (probe["verdict"], probe["requests"] > 5) == ("undecided", True)
    assert_recorded(found, out)


def test_in_a_drain(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with SseServer({MODEL: After(counted(OUTPUT_TOKENS), SLOW)}) as server:
        process = search(server.url, out, "--budget", "20")  # six of them for a probe
        wait_until(lambda: len(server.requests) == QUESTIONS + 6, process)
        time.sleep(0.3)  # all is sent; none of them ends by itself
        ctrl_c(process)
        found = ended(process)
    assert (found["why"], [probe["requests"] for probe in found["probes"]]) == ("interrupted", [6])
    assert_recorded(found, out)


def test_after_some_probes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    places = count()

    def reply(_request: Json) -> Reply:
        return counted(3) if next(places) < 30 else SLOW  # the second probe does not end by itself

    with SseServer({MODEL: After(counted(OUTPUT_TOKENS), reply)}) as server:
        process = search(server.url, out, "--budget", "100")
        wait_until(lambda: len(server.requests) > QUESTIONS + 30 + 5, process)  # a probe is 30
        ctrl_c(process)
        found = ended(process)
    assert found["why"] == "interrupted"
    assert len(found["probes"]) == 2
    assert_recorded(found, out)


def test_twice(tmp_path: Path) -> None:
    """The second ends it at once, even if a worker no longer answers; recordings stay readable."""
    out = tmp_path / "out"
    with SseServer({MODEL: counted(3)}) as server:
        process = search(server.url, out)
        wait_until(lambda: len(server.requests) > QUESTIONS + 20, process)
        (worker,) = children_of(process)
        os.kill(worker, signal.SIGSTOP)
        ctrl_c(process)
        waits = waits_of(process)
        wait_until(lambda: waits_of(process) > waits + 5, process)  # 0.1 s each: it ends, and waits for the worker
        ctrl_c(process)
        while process.poll() is None and sockets_of(process):  # an answer of the worker would come in time
            time.sleep(0.01)
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)
        found = ended(process)
    assert (found["why"], found["probes"]) == ("interrupted", [])
    (folder,) = out.iterdir()
    assert recorded(folder) > 0


def test_a_full_disk(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with SseServer({MODEL: counted(20)}) as server:
        found = ended(search(server.url, out, file_bytes=8192))
    assert "could not be written: File too large" in found["why"]
    assert "probe-01-28.3" in found["why"]
    (folder,) = out.iterdir()
    assert 0 < recorded(folder) <= found["probes"][0]["requests"]


def test_a_worker_that_dies(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with SseServer({MODEL: counted(3)}) as server:
        process = search(server.url, out)
        wait_until(lambda: len(server.requests) > QUESTIONS + 20, process)
        os.kill(children_of(process)[0], signal.SIGKILL)
        found = ended(process)
    assert found["why"] == "a worker of the load has ended (exit status -9)"
    assert len(found["probes"]) == 1
    assert recorded(next(out.iterdir())) > 0
