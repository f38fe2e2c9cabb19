"""A real OTLP backend on this machine: Arize Phoenix, from PyPI, and what its page would show of a trace."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.commands import environment
from support.patience import WAIT_S
from support.ports import free_ports
from support.requirements import PHOENIX, require

TRACE = """query ($project: ID!, $trace: ID!) { project: node(id: $project) { ... on Project { trace(traceId: $trace) {
  latencyMs numSpans rootSpan { name numChildSpans descendants(first: 1000) { edges { node { name spanId } } } }
  spans(first: 1000) { edges { node { name spanId parentId } } } } } } }"""


@dataclass(frozen=True)
class Shown:
    """A trace as the backend gives it to its page."""

    spans: dict[str, tuple[str, str | None]]
    """By span id: name, and the parent's id."""
    root: str | None
    under_root: list[tuple[str, str]]
    """Name and span id of each span that is found under the root."""
    latency_ms: float | None


class Phoenix:
    """A running server."""

    def __init__(self, http: str, grpc: str) -> None:
        self.http, self.grpc = http, grpc

    def ask(self, query: str, **variables: str) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"http://{self.http}/graphql", data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            said = json.load(answer)
        assert not said.get("errors"), said["errors"]
        return said["data"]

    def shown(self, trace_id: str) -> Shown | None:
        """Return what is shown of a trace now, None if it is not known."""
        found = self.ask("{ projects { edges { node { id name } } } }")["projects"]["edges"]
        [project] = [edge["node"]["id"] for edge in found if edge["node"]["name"] == "default"]
        trace = self.ask(TRACE, project=project, trace=trace_id)["project"]["trace"]
        if trace is None:
            return None
        root = trace["rootSpan"]
        spans = [edge["node"] for edge in trace["spans"]["edges"]]
        under = [edge["node"] for edge in root["descendants"]["edges"]] if root else []
        return Shown(
            {span["spanId"]: (span["name"], span["parentId"]) for span in spans},
            root["name"] if root else None,
            [(span["name"], span["spanId"]) for span in under],
            trace["latencyMs"],
        )


@contextmanager
def phoenix(folder: Path) -> Iterator[Phoenix]:
    """Run the server with its data in `folder`."""
    require("phoenix")
    command = PHOENIX / "bin" / "phoenix"
    http, grpc = free_ports(2)
    settings = {
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(http),
        "PHOENIX_GRPC_PORT": str(grpc),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    with (folder / "phoenix.log").open("wb") as log:
        process = subprocess.Popen([command, "serve"], env=environment() | settings, stdout=log, stderr=log)
    try:

        def ready() -> bool:
            assert process.poll() is None, (folder / "phoenix.log").read_text()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{http}/healthz", timeout=5):
                    return True
            except (urllib.error.URLError, OSError):
                return False

        limit = time.monotonic() + WAIT_S
        while not ready():
            assert time.monotonic() < limit, (folder / "phoenix.log").read_text()
            time.sleep(0.2)
        yield Phoenix(f"127.0.0.1:{http}", f"127.0.0.1:{grpc}")
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
