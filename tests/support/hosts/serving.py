"""Starts a server in a process of its own and reads streams from it, timed."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from support.ports import free_ports

TESTS = Path(__file__).parents[2]
START_S = 60.0
STOP_S = 60.0
READ_S = 60.0
"""The longest that a client waits for the next byte: a host that stands still fails its test."""

PYTHON = sys.executable


def host_command(server: str, port: int, *, python: str = PYTHON, options: Sequence[str] = ()) -> list[str]:
    """Return the command that serves the gateway on a port of this machine."""
    bind = f"127.0.0.1:{port}"
    wsgi, asgi = "support.hosts.gateway:wsgi", "support.hosts.gateway:asgi"
    commands = {
        "gevent": ["-m", "support.hosts.gevent_server", str(port)],
        "gunicorn": ["-m", "gunicorn", "--bind", bind, *options, wsgi],
        "gunicorn-asgi": ["-m", "gunicorn", "--bind", bind, *options, asgi],
        "hypercorn": ["-m", "hypercorn", "--bind", bind, *options, asgi],
        "uvicorn": ["-m", "uvicorn", "--port", str(port), *options, asgi],
    }
    return [python, *commands[server]]


@dataclass(frozen=True)
class Read:
    """One stream as its client saw it: the bytes, seconds to the first piece, and the longest time between two."""

    body: bytes
    first_s: float
    gap_s: float


class HostProcess:
    """A serving process; a context manager that ends it, by force where it does not end by itself."""

    def __init__(self, command: Sequence[str], port: int, environment: Mapping[str, str]) -> None:
        self.port = port
        paths = [str(TESTS), *filter(None, [environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._said: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        self._said.extend(self._process.stdout)

    @property
    def said(self) -> str:
        """Return what the process printed so far."""
        return "".join(self._said)

    def __enter__(self) -> Self:
        deadline_s = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return self
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.kill()
                raise AssertionError(f"the server did not start:\n{self.said}")
            time.sleep(0.05)

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def terminate(self) -> None:
        """Ask the process to stop, as an orchestrator does."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Return the exit status of a process that ends by itself."""
        status = self._process.wait(STOP_S)
        self._listener.join(STOP_S)
        return status

    def kill(self) -> None:
        """End the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(STOP_S)
        self._listener.join(STOP_S)

    def read(self, model: str) -> Read:
        """Read one stream to its end."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=READ_S)
        began_s = time.monotonic()
        try:
            connection.request("GET", f"/?{model}")
            response = connection.getresponse()
            pieces, times_s = [], []
            while piece := response.read1(65536):
                times_s.append(time.monotonic())
                pieces.append(piece)
        finally:
            connection.close()
        gaps_s = [after - before for before, after in itertools.pairwise(times_s)]
        return Read(b"".join(pieces), times_s[0] - began_s if times_s else 0.0, max(gaps_s, default=0.0))

    def read_all(self, model: str, streams: int) -> list[Read]:
        """Read several streams at once."""
        with ThreadPoolExecutor(streams) as pool:
            return list(pool.map(lambda _: self.read(model), range(streams)))


@contextlib.contextmanager
def serving(
    server: str,
    environment: Mapping[str, str],
    *,
    python: str = PYTHON,
    options: Sequence[str] = (),
    agent: bool = False,
) -> Iterator[HostProcess]:
    """Serve the gateway; `agent`: under `opentelemetry-instrument`."""
    [port] = free_ports(1)
    command = host_command(server, port, python=python, options=options)
    if agent:
        command = [str(Path(python).with_name("opentelemetry-instrument")), *command]
    with HostProcess(command, port, environment) as process:
        yield process


class SilentEndpoint:
    """Accepts every connection and never answers; a context manager."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._accepted: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def connections(self) -> int:
        return len(self._accepted)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._accepted.append(self._listener.accept()[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for connection in [self._listener, *self._accepted]:
            connection.close()
