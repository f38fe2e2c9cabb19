"""rotel, an OpenTelemetry Collector, forwarding to a receiver that records what it writes and when."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from collector_load.sender import METHOD

if TYPE_CHECKING:
    from collections.abc import Iterator

    Forwarded = list[tuple[int, bytes]]  # when it arrived (unix ns), message

START_S = 30.0
STOP_S = 20.0
MAX_MIB = 64
_UNLIMITED = [("grpc.max_receive_message_length", -1)]


@contextmanager
def running_rotel(folder: Path, forwarded: Forwarded) -> Iterator[str]:
    """Run rotel with its default batches and yield its gRPC address; `forwarded` gets all messages that it writes.

    What rotel still holds when it is stopped is in `forwarded`, too.

    Raises:
        SystemExit: rotel is not installed, or did not start.
    """
    with _receiving(forwarded) as receiver:
        at_grpc, at_http = _free_address(), _free_address()
        command = [
            *(str(_agent()), "start", "--pid-file", str(folder / "rotel.pid")),
            *("--otlp-grpc-endpoint", at_grpc, "--otlp-http-endpoint", at_http),
            *("--otlp-grpc-max-recv-msg-size-mib", str(MAX_MIB)),
            *("--exporter", "otlp", "--otlp-exporter-endpoint", f"http://{receiver}"),
            *("--otlp-exporter-protocol", "grpc", "--otlp-exporter-compression", "none"),
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "ROTEL_"))}
        log = folder / "rotel.log"
        with log.open("wb") as reported:
            process = subprocess.Popen(command, env=environment, stdout=reported, stderr=reported)
        try:
            _wait(process, at_grpc, log)
            yield at_grpc
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _agent() -> Path:
    # The binary is a file of the package, which is not imported: that would be its own embedded client.
    found = importlib.util.find_spec("rotel")
    if found is None or found.origin is None:
        raise SystemExit("--encoding rotel needs rotel: pip install rotel")
    return Path(found.origin).with_name("rotel-agent")


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    limit = time.monotonic() + START_S
    with grpc.insecure_channel(address) as channel:
        ready = grpc.channel_ready_future(channel)
        while not ready.done() and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.05)
        if ready.done():
            return
    raise SystemExit(f"rotel did not start; its output:\n{log.read_text(encoding='utf-8', errors='replace')}")


@contextmanager
def _receiving(forwarded: Forwarded) -> Iterator[str]:
    """Serve OTLP/gRPC, keep the bytes of every message and when they came, and yield the address."""

    def export(raw: bytes, _: Any) -> bytes:
        forwarded.append((time.time_ns(), raw))
        return b""

    service, _, method = METHOD[1:].partition("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(export)}
    server = grpc.server(ThreadPoolExecutor(1), options=_UNLIMITED)  # one thread: they are kept in order of arrival
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def _free_address() -> str:
    """Return an address of this machine that is free at the moment: rotel cannot pick a port itself."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"
