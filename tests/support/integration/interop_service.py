"""A collector on ports of its own that is killed and started again, and the load that it is under."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.commands import environment, wait_until
from support.otlp import export
from support.patience import WAIT_S
from support.ports import free_ports

LOAD = Path(__file__).with_name("interop_load.py")


@dataclass
class Service:
    """`otel-llm collect` in a folder: the same journal, files and ports at every start."""

    folder: Path
    options: Sequence[str] = ()
    ports: list[int] = field(default_factory=lambda: free_ports(3))
    process: subprocess.Popen[bytes] | None = None

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    @property
    def windows(self) -> Path:
        return self.folder / "windows.jsonl"

    @property
    def decisions(self) -> Path:
        return self.folder / "decisions.jsonl"

    @property
    def log(self) -> Path:
        """What all starts said."""
        return self.folder / "collector.log"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    def start(self) -> None:
        """Start it, without waiting."""
        grpc, http, web = (f"127.0.0.1:{port}" for port in self.ports)
        command = [
            *(sys.executable, "-m", "otel_llm.cli.main", "collect", "--journal", str(self.journal)),
            *("--windows", str(self.windows), "--decisions", str(self.decisions)),
            *("--grpc", grpc, "--http", http, "--web", web, "--verdicts", "none", *self.options),
        ]
        with self.log.open("ab") as log:
            log.write(b"--- start\n")
            log.flush()
            self.process = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)

    def wait_ready(self) -> None:
        """Wait until it listens."""
        assert self.process is not None
        process = self.process

        def open_or_gone() -> bool:
            return "listening:" in self.said().rpartition("--- start")[2] or process.poll() is not None

        wait_until("the collector listens", open_or_gone)
        assert process.poll() is None, self.said()

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nothing is closed."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM; it must end well."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(WAIT_S) == 0, self.said()

    def closed_until_ns(self) -> int:
        """Return up to when all windows are closed and written (unix ns): it notes that every second."""
        noted = json.loads((self.journal / "resume.json").read_text(encoding="utf-8"))
        return int(noted["windows_closed_until_unix_nano"])

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def post(self, spans: Iterable[Span]) -> None:
        """Send spans in one export over HTTP."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports[1]}/v1/traces",
            data=export(*spans).SerializeToString(),
            headers={"Content-Type": "application/x-protobuf"},
        )
        urllib.request.urlopen(request, timeout=WAIT_S).close()

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels (0 if none was seen yet), as its web port says now."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[2]}/metrics", timeout=WAIT_S) as answer:
            page = answer.read().decode()
        assert f"# TYPE {name} " in page, f"no {name} in\n{page[:2000]}"
        return sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)", page, flags=re.MULTILINE)))


@contextmanager
def service(folder: Path, *options: str) -> Iterator[Service]:
    """Give a collector that listens; whatever runs of it at the end is gone afterwards."""
    running = Service(folder, options)
    try:
        running.start()
        running.wait_ready()
        yield running
    finally:
        if running.process is not None and running.process.poll() is None:
            running.kill()


@contextmanager
def load(target: str, acknowledged: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run the load of `interop_load.py` against a collector."""
    command = [sys.executable, str(LOAD), "--grpc", target, "--acknowledged", str(acknowledged), *options]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def finish(process: subprocess.Popen[str]) -> str:
    """Let the streams of the load end and be acknowledged; return what it said."""
    process.terminate()
    said, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, said
    return said
