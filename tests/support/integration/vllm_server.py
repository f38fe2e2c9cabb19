"""A real vLLM on this machine's CPU, with the middleware, the plugin, both or neither, sending to a receiver."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from support.otlp_receiver import HttpReceiver
from support.patience import WAIT_S
from support.ports import free_ports
from support.requirements import VLLM, require

from otel_llm.demo.demo_children import vllm_command, vllm_environment
from otel_llm.formats.assemble.assembler import Assembler
from otel_llm.formats.assemble.resolved import Assembled
from otel_llm.formats.otlp.export_request import decode

PLUGIN = "otel-llm-vllm"
MIDDLEWARE = "otel_llm.instrumentation.asgi.StreamMiddleware"
KEEP_ALIVE = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120"}
"""A connection that it closes while a request is on its way fails that one."""
LONG_CONTEXT = ("--max-model-len", "16384", "--hf-overrides", '{"max_position_embeddings": 16384}')
TOKENS_A_CHUNK = 3
"""Of the server whose chunks carry several tokens, but for the first of a reply and its last."""


class VllmServer:
    """`vllm serve` of the tiny model; a context manager that waits until it serves. `received` is what it sent."""

    def __init__(
        self,
        log: Path,
        *more: str,
        plugin: bool = False,
        middleware: bool = False,
    ) -> None:
        require("vllm")
        [self.port] = free_ports(1)
        self.received = HttpReceiver()
        self._log = log.open("w+")
        self._command = [
            *vllm_command(VLLM, self.port),
            *(("--middleware", MIDDLEWARE) if middleware else ()),
            *more,
        ]
        self._environment = {
            **os.environ,
            **vllm_environment(),
            **KEEP_ALIVE,
            "VLLM_PLUGINS": PLUGIN if plugin else "",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }

    @property
    def group(self) -> int:
        """The id of the server's process group."""
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self.received.__enter__()
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self) -> None:
        """Start it, also after it was killed, and wait until it serves."""
        environment = {**self._environment, "OTEL_EXPORTER_OTLP_ENDPOINT": self.received.endpoint}
        self._process = subprocess.Popen(
            self._command, env=environment, stdout=self._log, stderr=self._log, start_new_session=True
        )
        self._wait()

    def kill(self) -> None:
        """Kill it at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _wait(self) -> None:
        limit = time.monotonic() + WAIT_S
        while True:
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1)
                return
            assert self._process.poll() is None, self.log()[-3000:]
            assert time.monotonic() < limit, self.log()[-3000:]
            time.sleep(0.5)

    def __exit__(self, *exc_info: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._log.close()
        self.received.__exit__()

    def log(self) -> str:
        """Return what the server wrote."""
        return Path(self._log.name).read_text()

    def rows(self) -> list[Assembled]:
        """Return the rows of all that was received so far."""
        assembler = Assembler()
        with self.received.lock:
            messages = list(self.received.messages)
        for message in messages:
            assembler.add(decode(message))
        return assembler.finish()

    def settled(self, count: int, trace: str | None = None) -> list[Assembled]:
        """Return the rows, of one trace or of all, once `count` of them have ended; fails after two minutes."""
        limit = time.monotonic() + 120
        while True:
            every = self.rows()
            rows = [row for row in every if trace in (None, row.resolved.trace_id.hex())]
            ended = [row for row in rows if row.resolved.outcome != "lost"]
            if len(ended) >= count:
                return rows
            if time.monotonic() > limit:
                of_all = [(row.resolved.trace_id.hex(), row.resolved.choice, row.resolved.outcome) for row in every]
                raise AssertionError(
                    f"{len(ended)} of {count} rows of {trace or 'all traces'} ended; {self.received.attempts} exports "
                    f"came, with {of_all}; the server wrote:\n{self.log()[-5000:]}"
                )
            time.sleep(0.2)

    def request_spans(self) -> dict[str, dict[str, Any]]:
        """Return the attributes of the request spans received, by trace id; of two in a trace the later."""
        return {
            span.trace_id.hex(): {
                pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in span.attributes
            }
            for span in self.received.spans()
            if span.name != "otel_llm.segment"
        }

    def leave_after(self, traceparent: str, chunks: int, **body: Any) -> None:
        """Ask for a stream, read until so many chunks came, and break the connection without a word."""
        data = json.dumps({"model": "tiny", "stream": True, **body}).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\ntraceparent: {traceparent}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", self.port), 60) as connection:
            connection.sendall(head.encode() + data)
            seen = b""
            while seen.count(b'data: {"') < chunks:
                got = connection.recv(4096)
                assert got, seen[-500:]
                seen += got


@contextlib.contextmanager
def together(*servers: VllmServer) -> Iterator[None]:
    """Start servers at once: the three processes of one are made one after the other, and keep one core busy."""
    with contextlib.ExitStack() as all_:
        with ThreadPoolExecutor(len(servers)) as pool:
            list(pool.map(all_.enter_context, servers))
        yield
