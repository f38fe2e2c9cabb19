"""The worker processes as the load client sees them."""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from otel_llm.bench.client.messages import Report, Unframer, framed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.bench.client.messages import Configure, Run

_CODE: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from otel_llm.bench.client.worker import main; main(int(sys.argv[2]))"
)
_READ_BYTES: Final = 1 << 20
_START_S: Final = 60.0
_EXIT_S: Final = 5.0


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach: the load client decides what it ends.

    A terminal sends it to all of them, perhaps before a child could ignore it; a child inherits the mask.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkerDiedError(Exception):
    """A worker process has ended by itself."""


class Workers:
    """So many worker processes; `close` ends them.

    Raises:
        WorkerDiedError: one does not start.
    """

    def __init__(self, count: int, configure: Configure) -> None:
        self.count = count
        self._processes: list[subprocess.Popen[bytes]] = []
        self._channels: list[socket.socket] = []
        self._unframers = [Unframer() for _ in range(count)]
        self._poll = select.poll()
        self._index_of: dict[int, int] = {}
        try:
            for _ in range(count):
                self._start()
            self.send_all(configure)
            for index in range(count):
                self._await_ready(index)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Return the numbers of the processes."""
        return [process.pid for process in self._processes]

    def send(self, index: int, message: Run) -> None:
        """Send a message to one worker."""
        self._write(index, framed(message))

    def send_all(self, message: object) -> None:
        """Send a message to all workers."""
        raw = framed(message)
        for index in range(self.count):
            self._write(index, raw)

    def receive(self, timeout_s: float) -> Iterator[tuple[int, Report]]:
        """Yield the reports that are there, waiting for one at most so long.

        Raises:
            WorkerDiedError: a worker has ended.
        """
        for fd, _ in self._poll.poll(timeout_s * 1000):
            index = self._index_of[fd]
            for message in self._unframers[index].feed(self._read(index)):
                assert isinstance(message, Report)  # noqa: S101
                yield index, message

    def close(self) -> None:
        """End the processes."""
        for channel in self._channels:
            channel.close()
        for process in self._processes:
            try:
                process.wait(_EXIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-c", _CODE, json.dumps(sys.path), str(theirs.fileno())]
            with _interrupts_blocked():
                self._processes.append(
                    subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)  # noqa: S603
                )
        self._index_of[ours.fileno()] = len(self._channels)
        self._channels.append(ours)
        self._poll.register(ours, select.POLLIN)

    def _await_ready(self, index: int) -> None:
        self._channels[index].settimeout(_START_S)
        try:
            while not self._unframers[index].feed(self._read(index)):
                pass
        except TimeoutError as error:
            raise WorkerDiedError(f"a worker of the load did not start in {_START_S:g} s") from error
        self._channels[index].settimeout(None)

    def _read(self, index: int) -> bytes:
        data = b""
        with suppress(ConnectionError):
            data = self._channels[index].recv(_READ_BYTES)
        if not data:
            code = self._processes[index].wait()
            raise WorkerDiedError(f"a worker of the load has ended (exit status {code})")
        return data

    def _write(self, index: int, raw: bytes) -> None:
        try:
            self._channels[index].sendall(raw)
        except ConnectionError:
            code = self._processes[index].wait()
            raise WorkerDiedError(f"a worker of the load has ended (exit status {code})") from None
