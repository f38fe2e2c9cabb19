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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from support.patience import WAIT_S
from support.ports import free_ports

TESTS = Path(__file__).parents[2]

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


def eventually(reached: Callable[[], bool]) -> None:
    """Wait for something that another process brings about."""
    deadline_s = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@dataclass(frozen=True)
class Read:
    """One stream as its client saw it: the bytes, seconds to the first piece, and the longest time between two.

    `whole`: the body ended as HTTP has it.
    """

    body: bytes
    first_s: float
    gap_s: float
    whole: bool


class Stream:
    """One stream that is being read."""

    def __init__(self, port: int, model: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        self._began_s = time.monotonic()
        self._connection.request("GET", f"/?{model}")
        self._response = self._connection.getresponse()
        self._times_s: list[float] = []
        self.body = b""

    def read(self, length: int) -> None:
        """Read on until so many bytes came, or the body ended."""
        while len(self.body) < length and self._next():
            pass

    def rest(self) -> Read:
        """Read to the end, close, and return the bytes."""
        whole = True
        try:
            while self._next():
                pass
        except (http.client.IncompleteRead, ConnectionError):
            whole = False
        finally:
            self._connection.close()
        times_s = self._times_s
        gaps_s = [after - before for before, after in itertools.pairwise(times_s)]
        first_s = times_s[0] - self._began_s if times_s else 0.0
        return Read(self.body, first_s, max(gaps_s, default=0.0), whole)

    def _next(self) -> bool:
        piece = self._response.read1(65536)
        if piece:
            self._times_s.append(time.monotonic())
            self.body += piece
        return bool(piece)


class HostProcess:
    """A serving process; a context manager that ends it, by force if it does not end by itself."""

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
        with self._process.stdout as lines:
            self._said.extend(lines)

    @property
    def said(self) -> str:
        """Return what the process printed so far."""
        return "".join(self._said)

    def __enter__(self) -> Self:
        deadline_s = time.monotonic() + WAIT_S
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
        status = self._process.wait(WAIT_S)
        self._listener.join(WAIT_S)
        return status

    def kill(self) -> None:
        """End the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(WAIT_S)
        self._listener.join(WAIT_S)

    def open(self, model: str) -> Stream:
        """Ask for a stream; it is read by the caller."""
        return Stream(self.port, model)

    def read(self, model: str) -> Read:
        """Read one stream to its end."""
        return self.open(model).rest()

    def read_all(self, model: str, streams: int) -> list[Read]:
        """Read several streams at once."""
        with ThreadPoolExecutor(streams) as pool:
            return list(pool.map(self.read, [model] * streams))


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

    def wait_for_connection(self) -> None:
        """Wait until a sender has connected."""
        eventually(lambda: bool(self._accepted))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._accepted.append(self._listener.accept()[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for connection in [self._listener, *self._accepted]:
            connection.close()
