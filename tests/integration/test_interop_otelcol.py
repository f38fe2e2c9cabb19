"""The OpenTelemetry Collector with our configurations, between an application and `otel-llm collect`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from support.commands import Collector, collector, environment, wait_until, wait_until_equal
from support.integration import interop_rows
from support.integration.interop_journal import received_spans
from support.integration.interop_sdk import deliver
from support.ports import free_ports
from support.requirements import OTELCOL, ROOT, require

CONFIGS = ROOT / "collector" / "otelcol"
READY = "Everything is ready."
WARNING = re.compile(r"^\S+\s+(warn|error)\s.*", re.MULTILINE)


@dataclass
class Running:
    """A running Collector: its gRPC address, its process, its log."""

    grpc: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def warnings(self) -> list[str]:
        """Return its warnings and errors so far."""
        return [found.group() for found in WARNING.finditer(self.log.read_text())]


@contextmanager
def otelcol(folder: Path, *configs: str, settings: dict[str, str]) -> Iterator[Running]:
    """Run the Collector with files of ours; `settings` are its variables. It is killed at the end."""
    grpc, http = (f"127.0.0.1:{port}" for port in free_ports(2))
    command = [
        str(OTELCOL / "otelcol"),
        *(word for one in configs for word in ("--config", str(CONFIGS / f"{one}.yaml"))),
    ]
    for key, value in (
        ("receivers.otlp.protocols.grpc.endpoint", grpc),
        ("receivers.otlp.protocols.http.endpoint", http),
        ("service.telemetry.metrics.level", "none"),
    ):
        command += ["--set", f"{key}={value}"]
    log = folder / "otelcol.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment() | settings, stdout=file, stderr=file)
    try:
        wait_until("the Collector is ready", lambda: READY in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield Running(grpc, process, log)
    finally:
        process.kill()
        process.wait()


def arrived(folder: Path) -> int:
    """Return how many spans the journal has."""
    return sum(1 for _ in received_spans(folder / "journal"))


def finish(folder: Path, running: Collector, agent: Running) -> None:
    """Wait for all spans, and compare the rows with those of direct delivery; the Collector has warned of nothing."""
    wait_until_equal("every span is forwarded", lambda: arrived(folder), interop_rows.span_count())
    assert agent.warnings == []
    status, said = running.stop()
    assert status == 0, said
    assert interop_rows.differences(folder / "journal") == []


@pytest.mark.parametrize("configs", [("agent",), ("agent", "durable")], ids="+".join)
def test_the_agent_forwards_every_span_and_warns_of_nothing(tmp_path: Path, configs: tuple[str, ...]) -> None:
    require("otelcol")
    with collector(tmp_path, "--verdicts", "none") as running:
        settings = {"GATEWAY": running.grpc, "QUEUE_DIRECTORY": str(tmp_path / "queue")}
        with otelcol(tmp_path, *configs, settings=settings) as agent:
            deliver(OTLPSpanExporter(endpoint=agent.grpc, insecure=True))
            finish(tmp_path, running, agent)


def test_a_durable_agent_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    """It acknowledges all spans while no collector is there, is killed, and forwards them when both are back."""
    require("otelcol")
    (gateway,) = free_ports(1)
    settings = {"GATEWAY": f"127.0.0.1:{gateway}", "QUEUE_DIRECTORY": str(tmp_path / "queue")}
    with otelcol(tmp_path, "agent", "durable", settings=settings) as agent:
        deliver(OTLPSpanExporter(endpoint=agent.grpc, insecure=True))
    with (
        collector(tmp_path, "--verdicts", "none", "--grpc", settings["GATEWAY"]) as running,
        otelcol(tmp_path, "agent", "durable", settings=settings) as agent,
    ):
        finish(tmp_path, running, agent)


def test_an_audit_reads_what_the_sidecar_writes(tmp_path: Path) -> None:
    require("otelcol")
    written = tmp_path / "segments.otlp"
    with otelcol(tmp_path, "sidecar", settings={"SEGMENTS": str(written)}) as sidecar:
        deliver(OTLPSpanExporter(endpoint=sidecar.grpc, insecure=True))
        wait_until("everything is written", lambda: written.exists() and not interop_rows.differences(written))
        assert sidecar.warnings == []
