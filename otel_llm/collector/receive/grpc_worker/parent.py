"""The gRPC worker as the service sees it: start and stop its process, read its exports, send the answers."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any, Final

from otel_llm.collector.inbox import QUEUED_BYTES, Export
from otel_llm.collector.receive.errors import InternalError, as_refusal
from otel_llm.collector.receive.grpc_worker.protocol import (
    NUMBERS,
    OLDEST,
    UP,
    WAITING,
    Shared,
    WorkerConfig,
    accepted,
    refused,
    write_all,
)
from otel_llm.collector.receive.refusal_counts import RefusalCounts
from otel_llm.collector.receive.senders import Sender
from otel_llm.config.errors import StartError
from otel_llm.shared.errors import AddressError
from otel_llm.shared.web.address import Address

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from otel_llm.collector.settings import Limits
    from otel_llm.config.tls import Certificates
    from otel_llm.shared.clock import Clock
    from otel_llm.shared.web.tokens import Digests, KnownTokens

log = logging.getLogger(__name__)

_CODE: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from otel_llm.shared.memory import keep_one_heap; keep_one_heap(); "
    "from otel_llm.collector.receive.grpc_worker.child import main; main(*map(int, sys.argv[2:]))"
)
_PIPE_BYTES: Final = (2**23, 2**20)
"""Capacities of the pipe of exports to try, the largest first: Linux gives an unprivileged process the second. A larger
pipe makes larger batches."""
_BUFFER_BYTES: Final = 2**20
_READ_BYTES: Final = 2**26
"""The most that `read` takes at once. It takes all that waits, so that the inbox can schedule fairly."""
_COMMAND_TIMEOUT_S: Final = 30.0
_EXIT_TIMEOUT_S: Final = 2.0


class WorkerExport(Export):
    """An export that the gRPC worker has received; `number` names it there."""

    __slots__ = ("_worker", "number")

    def __init__(self, raw: bytes, receipt_ns: int, worker: GrpcWorker, number: int, sender: Sender) -> None:
        super().__init__(raw, sender)
        self.receipt_ns = receipt_ns
        self.number = number
        self._worker = worker

    def refuse(self, error: Exception) -> None:
        """Send the worker the refusal."""
        refusal = as_refusal(error)
        if isinstance(refusal, InternalError):
            log.error("otel-llm: an export could not be accepted: this is a bug", exc_info=error)
        self._worker.send(refused(self.number, refusal))

    def acknowledge(self, answer: bytes) -> None:
        """Send the worker the OTLP answer."""
        self._worker.send(accepted(self.number, answer))


class GrpcWorker:
    """The gRPC worker; one thread calls `bind`, `start` and `stop`, the evaluator's calls `read`.

    Args:
        address: where to listen; port 0 lets the system pick one.
        limits: of messages, connections, and concurrent exports.
        tokens: an export's `authorization` metadata must hold one of them; None: it need not.
        certificates: of TLS; None: plain text.
        clock: gives receipt times.
    """

    def __init__(
        self,
        address: Address,
        *,
        limits: Limits,
        tokens: KnownTokens | None,
        certificates: Certificates | None,
        clock: Clock,
    ) -> None:
        self._address = address
        self._clock = clock
        self._limits = limits
        self._tokens = tokens
        self._certificates = certificates
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._commands: Connection | None = None
        self._command_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._up = self._down = -1
        self._cells = memoryview(bytes(8 * NUMBERS)).cast("q")
        self._refused = RefusalCounts(self._cells[:WAITING])
        self._buffer = bytearray(_BUFFER_BYTES)
        self._filled = 0
        self._stopping = False
        self.gone = False
        """Whether the process has closed its pipe."""
        self.command_timeout_s = _COMMAND_TIMEOUT_S
        """How long the process may take to answer a command; it is killed then."""

    @property
    def address(self) -> Address:
        """Return the address, with the port that the system picked."""
        return self._address if self._port is None else Address(self._address.host, self._port)

    @property
    def pid(self) -> int | None:
        """Return the number of the process; None if it does not run."""
        return None if self._process is None else self._process.pid

    @property
    def waiting(self) -> int:
        """Return how many exports wait for their answer."""
        return self._cells[WAITING]

    @property
    def oldest_ns(self) -> int | None:
        """Return the receipt time (unix ns) of the oldest of them; None if there is none."""
        oldest_ns = self._cells[OLDEST]
        return self._clock.unix_ns(oldest_ns) if oldest_ns else None

    def why_unhealthy(self) -> str | None:
        """Return why the service should be restarted; None if it should not."""
        return "the gRPC worker has ended" if self.gone and not self._stopping else None

    def refusals(self) -> dict[str, int]:
        """Return how many exports the worker has refused, by the keys of the collector's counts."""
        return self._refused.counts()

    def bind(self) -> None:
        """Start the process and bind the port; connections wait until `start`.

        Raises:
            AddressError: the port is in use, or the address is not this machine's.
            StartError: the process cannot be started.
        """
        if self._process is not None:
            return
        self._spawn()
        try:
            self._port = self._command("bind", self._config())
        except StartError:
            self._terminate()
            raise

    def start(self) -> None:
        """Serve; bind first if that was not done."""
        self.bind()
        self._command("start")

    def reload(self) -> None:
        """Give the worker the current tokens and certificates."""
        if self._process is not None and not self.gone:
            self._command("update", self._digests(), self._pem())

    def stop(self, grace_s: float = 5.0) -> None:
        """Refuse new exports, and return when the others are answered, after `grace_s` seconds at the latest."""
        self._stopping = True
        if self._process is None:
            return
        with suppress(StartError):
            self._command("stop", grace_s, timeout_s=grace_s + _EXIT_TIMEOUT_S)
        self._terminate()

    # For the evaluator's thread.

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is something to `read`."""
        return self._up

    def read(self) -> list[WorkerExport]:
        """Return the exports received since the last call, without waiting."""
        found: list[WorkerExport] = []
        size = 0
        with self._read_lock:
            while size < _READ_BYTES and not self.gone:
                try:
                    count = os.readv(self._up, [memoryview(self._buffer)[self._filled :]])
                except BlockingIOError:
                    break
                if not count:
                    self.gone = True
                    if not self._stopping:
                        log.error("otel-llm: the gRPC worker has ended: no export can be received over gRPC")
                self._filled += count
                cut = list(self._cut())
                size += max(count, sum(len(export.raw) for export in cut))
                found += cut
        return found

    def disconnect(self) -> None:
        """Close the pipe of answers: the worker refuses exports that wait, and new ones."""
        with self._write_lock:
            if self._down >= 0:
                os.close(self._down)
                self._down = -1

    def send(self, frame: bytes) -> None:
        """Send a frame to the worker, if it runs; safe from any thread."""
        with self._write_lock, suppress(OSError):
            if self._down >= 0:
                write_all(self._down, (frame,))

    def _cut(self) -> Iterator[WorkerExport]:
        """Yield the whole frames in the buffer, then move the rest of the last to its start."""
        view = memoryview(self._buffer)
        start, size = 0, UP.size
        while self._filled - start >= UP.size:
            length, number, received_ns, sender, name = UP.unpack_from(view, start)
            size = UP.size + name + length
            if self._filled - start < size:
                break
            tenant = str(view[start + UP.size : start + UP.size + name], "ascii") or None
            raw = bytes(view[start + UP.size + name : start + size])
            yield WorkerExport(raw, self._clock.unix_ns(received_ns), self, number, Sender(sender, tenant))
            start += size
            size = UP.size
        if start or size > len(self._buffer):
            rest = bytes(view[start : self._filled])
            if size > len(self._buffer):
                self._buffer = bytearray(size)
            self._buffer[: len(rest)] = rest
            self._filled = len(rest)

    # The process.

    def _spawn(self) -> None:
        ours, theirs = Pipe()
        up, their_up = os.pipe()
        their_down, down = os.pipe()
        shared, fd = Shared.made()
        self._cells = shared.cells
        self._refused = RefusalCounts(self._cells[:WAITING])
        os.set_blocking(up, False)
        _widen(up)
        passed = (their_up, their_down, theirs.fileno(), fd)
        command = [sys.executable, "-P", "-c", _CODE, json.dumps(sys.path), *map(str, passed)]
        try:
            # A session of its own: signals of a terminal reach the service only, which stops the worker in order.
            self._process = subprocess.Popen(  # noqa: S603  this program, no shell
                command,
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as problem:
            ours.close()
            os.close(up)
            os.close(down)
            raise StartError(f"the gRPC worker cannot be started: {problem.strerror}") from problem
        finally:
            theirs.close()
            for one in (their_up, their_down, fd):
                os.close(one)
        self._commands, self._up, self._down = ours, up, down

    def _config(self) -> WorkerConfig:
        return WorkerConfig(self._address, self._limits, QUEUED_BYTES, self._digests(), self._pem())

    def _digests(self) -> Digests | None:
        return None if self._tokens is None else self._tokens.digests

    def _pem(self) -> Any:
        return None if self._certificates is None else self._certificates.pem

    def _command(self, name: str, *arguments: object, timeout_s: float | None = None) -> Any:
        """Run a command in the worker and return its result.

        Raises:
            AddressError: the worker cannot bind the port.
            StartError: the worker has ended, or does not answer in time.
        """
        assert self._commands is not None  # noqa: S101
        with self._command_lock:
            try:
                self._commands.send((name, arguments))
                if not self._commands.poll(self.command_timeout_s if timeout_s is None else timeout_s):
                    assert self._process is not None  # noqa: S101
                    self._process.kill()  # a late result would pass for that of the next command
                    raise StartError("the gRPC worker does not answer")
                found, problem = self._commands.recv()
            except (EOFError, OSError):
                raise StartError("the gRPC worker has ended") from None
        if problem is not None:
            raise AddressError(problem)
        return found

    def _terminate(self) -> None:
        """End the process: it exits when its pipe of commands closes."""
        assert self._commands is not None  # noqa: S101
        assert self._process is not None  # noqa: S101
        self._stopping = True
        self._commands.close()
        try:
            self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.disconnect()
        with self._read_lock:
            self.gone = True
            os.close(self._up)
        self._process = None


def _widen(pipe: int) -> None:
    """Set the capacity of a pipe to the largest that the system allows."""
    for size in _PIPE_BYTES:
        with suppress(OSError, AttributeError):  # not allowed; or the system has no such call
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)
            return
