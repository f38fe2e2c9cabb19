"""The official Node.js exporters deliver: JSON and protobuf over HTTP, from the SDK that a JavaScript chat app uses."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.commands import collector, environment
from support.integration import interop_rows
from support.patience import WAIT_S
from support.requirements import NODE_PACKAGES, found_program, require

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "node" / "index.cjs"
PACKAGES = NODE_PACKAGES / "node_modules"


@pytest.fixture
def node() -> str:
    require("node-exporters")
    return found_program("node", "node")


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("encoding", ["json", "protobuf"])
def test_the_official_exporter_delivers(tmp_path: Path, node: str, encoding: str, compression: str) -> None:
    recorded = tmp_path / "rows.jsonl"
    recorded.write_text("".join(json.dumps(export) + "\n" for export in interop_rows.exports()), encoding="utf-8")
    with collector(tmp_path, "--verdicts", "none") as running:
        sent = subprocess.run(
            [node, str(SCRIPT), encoding, compression, f"http://{running.http}/v1/traces", str(recorded)],
            env=environment() | {"NODE_PATH": os.fspath(PACKAGES)},
            capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        status, said = running.stop()

    assert (sent.returncode, sent.stdout + sent.stderr) == (0, "")
    assert status == 0, said
    assert interop_rows.differences(tmp_path / "journal") == []
