"""The relay's demo end to end: who waits straight does not through the relay, and gets the same tokens."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from support.commands import environment, run, wait_until
from support.patience import WAIT_S
from support.requirements import VLLM, require

import otel_llm.audit
from otel_llm.demo.demo_readers import read


def figures(shown: str) -> dict[str, tuple[str, str]]:
    """Return the rows of the table: straight, and through the relay."""
    found = re.findall(r"^(\S.*?)  +(\S.*?)  +(\S.*)$", shown, flags=re.MULTILINE)
    return {name: (straight, relayed) for name, straight, relayed in found}


def waits(rows: Iterable[Mapping[str, str | int | float | None]]) -> list[float]:
    return [float(row["idle_decode_s"] or 0.0) for row in rows if row["measured_at"] == "client"]


@pytest.mark.alone
def test_the_relay_hides_the_stalls_of_one_server(tmp_path: Path) -> None:
    shown = run("demo", "--relay", "--out", tmp_path / "out")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    table = figures(shown.stdout)
    assert table["replies identical, token for token"] == ("24 of 24", "24 of 24")
    assert table["replies that came whole"] == ("100 %", "100 %")
    (folder,) = (tmp_path / "out").glob("run-*")
    records = [json.loads(line) for line in (folder / "decisions.jsonl").read_text().splitlines()]
    done = [one for one in records if one["action"] == "migrate" and one["outcome"] == "done"]
    assert table["moved to the other server in mid-reply"] == ("-", str(len(done)))
    # Off the server that stalls; if a busy machine lets the other one stand still, off that one, too.
    assert ("b", "a") in {(one["from"], one["to"]) for one in done}
    assert all(one["facts"]["gap_seconds"] > 0.3 for one in done)
    straight, relayed = (
        otel_llm.audit.load(folder / name / "journal", windows=False).rows for name in ("straight", "relay")
    )
    assert {row["measured_at"] for row in straight} == {"client"}
    assert {row["measured_at"] for row in relayed} == {"client", "relay"}
    # Of the twelve readers of server b every second one stalls; how many the relay sends there is for it to say. They
    # wait for four seconds, less the text that lay ahead; what others wait for is the machine's.
    waited = [waits(rows) for rows in (straight, relayed)]
    stalled = [row for row in straight if float(row["tbt_max_s"] or 0.0) > 3.5]
    assert len(stalled) == 6
    assert all(wait > 1.0 for wait in waits(stalled))
    noticed = sum(wait >= 0.1 for wait in waited[0])
    assert table["readers who waited in mid-reply (> 100 ms)"][0] == f"{noticed} of 24"
    assert max(waited[0]) > 1.5
    assert max(waited[1]) < max(waited[0])
    assert [reply.finish for reply in read(folder / "replies-relay.jsonl")] == ["length"] * 24


def running(mark: str) -> list[str]:
    """Return the command lines of processes with a mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    return found


def test_nothing_is_left_running_where_it_is_ended(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "otel_llm.cli.main", "demo", "--relay", "--out", str(tmp_path)]
    demo = subprocess.Popen(command, env={**environment(), "DEMO_MARK": mark}, stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    with demo.stdout:
        said = iter(demo.stdout.readline, "")
        assert any(line.startswith("undisturbed") for line in said)
        assert sum("paced_server" in line for line in running(mark)) == 2
        wait_until("readers of the next run", lambda: any("demo_readers" in line for line in running(mark)))
        demo.terminate()
        assert demo.wait(WAIT_S) != 0
    assert running(mark) == []


@pytest.mark.alone
def test_two_real_vllm_of_which_one_is_stopped(tmp_path: Path) -> None:
    require("vllm")
    shown = run("demo", "--relay", "--vllm", VLLM, "--out", tmp_path / "out", timeout_s=600)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert figures(shown.stdout)["replies identical, token for token"][1] == "12 of 12"
