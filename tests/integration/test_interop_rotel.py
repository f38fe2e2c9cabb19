"""Behind an OpenTelemetry Collector (rotel): the application sends to it, it forwards, nothing is lost or bent."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from support.commands import collector, environment, wait_until
from support.integration import interop_rows
from support.integration.interop_journal import received_spans
from support.integration.interop_sdk import deliver
from support.patience import WAIT_S
from support.ports import free_ports
from support.requirements import require


def accepts(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def rotel(folder: Path, endpoint: str, protocol: str) -> Iterator[tuple[str, str]]:
    """Run the Collector, forwarding traces to `endpoint`; give its gRPC and HTTP address."""
    require("rotel")
    # The binary is a file of the package, which is not imported: that would be its own embedded client.
    found = importlib.util.find_spec("rotel")
    assert found is not None
    assert found.origin is not None
    # This Collector cannot pick a port itself.
    at_grpc, at_http = (f"127.0.0.1:{port}" for port in free_ports(2))
    command = [
        *(str(Path(found.origin).with_name("rotel-agent")), "start", "--pid-file", str(folder / "rotel.pid")),
        *("--otlp-grpc-endpoint", at_grpc, "--otlp-http-endpoint", at_http),
        *("--exporter", "otlp", "--otlp-exporter-endpoint", endpoint, "--otlp-exporter-protocol", protocol),
        *("--batch-timeout", "100ms"),
    ]
    with (folder / "rotel.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)
    try:
        wait_until("rotel listens", lambda: (accepts(at_grpc) and accepts(at_http)) or process.poll() is not None)
        assert process.poll() is None, (folder / "rotel.log").read_text()
        yield at_grpc, at_http
    finally:
        process.terminate()
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_what_a_collector_forwards_arrives(tmp_path: Path, protocol: str) -> None:
    with collector(tmp_path, "--verdicts", "none") as running:
        endpoint = f"http://{running.grpc}" if protocol == "grpc" else f"http://{running.http}"
        with rotel(tmp_path, endpoint, protocol) as (at_grpc, at_http):
            deliver(
                GrpcExporter(endpoint=at_grpc, insecure=True)
                if protocol == "grpc"
                else HttpExporter(endpoint=f"http://{at_http}/v1/traces")
            )
            journal, sent = tmp_path / "journal", interop_rows.span_count()
            wait_until("every span is forwarded", lambda: sum(1 for _ in received_spans(journal)) >= sent)
        status, said = running.stop()

    assert status == 0, said
    assert sum(1 for _ in received_spans(journal)) == sent
    assert interop_rows.differences(journal) == []
