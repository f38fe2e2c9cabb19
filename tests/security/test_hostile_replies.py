"""Replies that no honest server sends: an application that is recorded reads them as the bare library does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commands import environment
from support.hostile.client import CLIENTS
from support.hostile.server import ATTACKS, hostile_server
from support.patience import WAIT_S

TESTS = Path(__file__).parents[1]
FACTOR = 1.5
SPARE_MIB = 8
"""What recording itself loads and keeps; the largest attacks send 12 MiB, which is kept nowhere."""


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str], dict[str, Any]]:
    with hostile_server() as url:
        command = [sys.executable, "-m", "support.hostile.client", url]
        run = subprocess.run(
            command, env=environment(), cwd=TESTS, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    return {(line["client"], line["attack"]): line for line in lines}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_hostile_reply_costs_what_it_costs_the_bare_library(
    client: str, attack: str, found: dict[tuple[str, str], dict[str, Any]]
) -> None:
    bare, recorded = found[client, attack]["bare"], found[client, attack]["recorded"]
    assert recorded["ended"] == bare["ended"]
    assert recorded["told"] == []
    assert recorded["mib"] < bare["mib"] * FACTOR + SPARE_MIB
