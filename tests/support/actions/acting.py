"""A collector that acts on rules: the files it is started with, what it is sent, and what it has recorded."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.commands import Collector
from support.otlp import export
from support.patience import WAIT_S


def acting(folder: Path, rules: str, settings: str) -> list[str | Path]:
    """Write rules and settings; return the arguments for the collector."""
    (folder / "rules.yaml").write_text(rules)
    (folder / "config.yaml").write_text(f"version: 1\n{settings}")
    files = ("--rules", folder / "rules.yaml", "--config", folder / "config.yaml")
    return [*files, "--decisions", folder / "decisions.jsonl"]


def post(service: Collector, *spans: Span) -> None:
    """Send spans in one export."""
    post_raw(service, export(*spans).SerializeToString())


def post_raw(service: Collector, message: bytes) -> None:
    """Send an export as it is."""
    headers = {"Content-Type": "application/x-protobuf"}
    request = urllib.request.Request(f"http://{service.http}/v1/traces", data=message, headers=headers)
    urllib.request.urlopen(request, timeout=WAIT_S).close()


def records(folder: Path, action: str) -> list[dict[str, Any]]:
    """Return the records of an action so far."""
    path = folder / "decisions.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may be half there
    return [record for line in lines if (record := json.loads(line))["action"] == action]
