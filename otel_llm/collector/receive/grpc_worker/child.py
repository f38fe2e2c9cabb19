"""The gRPC worker: a process that receives exports, sends their bytes up a pipe and reads the answers from another.

It is a process of its own so that gRPC's threads do not compete with the evaluator's for the interpreter. It decodes
nothing, stores nothing and reads no files: the service sends its configuration. It exits when the pipe of commands
closes.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from otel_llm.collector.receive.errors import BusyError
from otel_llm.collector.receive.grpc_worker.grpc_receiver import GrpcCertificates, GrpcReceiver
from otel_llm.collector.receive.grpc_worker.protocol import (
    DOWN,
    OLDEST,
    UP,
    WAITING,
    Shared,
    refusal_of,
    write_all,
)
from otel_llm.collector.receive.refusal_counts import RefusalCounts
from otel_llm.collector.receive.senders import RankedLock, Room
from otel_llm.config.errors import StartError
from otel_llm.shared.clock import monotonic_ns
from otel_llm.shared.errors import RefusalError, UnavailableError
from otel_llm.shared.web.tokens import KnownTokens

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from otel_llm.collector.receive.grpc_worker.protocol import WorkerConfig
    from otel_llm.collector.receive.senders import Sender
    from otel_llm.config.tls import Pem
    from otel_llm.shared.web.tokens import Digests


@dataclass(slots=True)
class _Call:
    """An export that waits for its answer."""

    sender: Sender
    size: int
    received_ns: int
    answer: bytes = b""
    refusal: RefusalError | None = None
    answered: threading.Lock = field(default_factory=threading.Lock)


class EvaluatorLink:
    """The pipes to the service: exports go up, answers come down."""

    def __init__(self, up: int, down: BinaryIO, config: WorkerConfig, shared: Shared, refused: RefusalCounts) -> None:
        self._up = up
        self._down = down
        self._room = Room(config.limits.queued_exports, config.queued_bytes)
        self._cells = shared.cells
        self._refused = refused
        self._numbers = count(1)
        self._calls: dict[int, _Call] = {}
        self._open = True
        self._lock = threading.Lock()
        self._writing = RankedLock()

    def accept(self, raw: bytes, sender: Sender) -> bytes:
        """Send an export to the service, and return the OTLP answer.

        Raises:
            BusyError: too many exports wait.
            UnavailableError: the service has stopped.
            RefusalError: the service has refused it.
        """
        call = _Call(sender, len(raw), monotonic_ns())
        call.answered.acquire()
        with self._lock:
            if not self._open:
                raise UnavailableError("the evaluator has stopped")
            if not self._room.take(sender.number, call.size):
                self._refused.count_behind()
                raise BusyError("the evaluator is behind")
            number = next(self._numbers)
            self._calls[number] = call
            self._publish()
        # The sender with the fewest bytes waiting is next: large exports delay no small one of another sender.
        self._writing.acquire(partial(self._room.bytes_of, sender.number))
        try:
            tenant = b"" if sender.tenant is None else sender.tenant.encode()
            head = UP.pack(len(raw), number, call.received_ns, sender.number, len(tenant))
            write_all(self._up, (head, tenant, raw))
        except OSError:
            self._close()
        finally:
            self._writing.release()
        call.answered.acquire()
        if call.refusal is not None:
            raise call.refusal
        return call.answer

    def read(self) -> None:
        """Hand answers to the calls that wait for them, until the pipe closes."""
        for number, row, content in self._frames():
            with self._lock:
                call = self._calls.pop(number)
                self._room.leave(call.sender.number, call.size)
                self._publish()
            if row:
                call.refusal = refusal_of(row, content)
            else:
                call.answer = content
            call.answered.release()
        self._close()

    def _frames(self) -> Iterator[tuple[int, int, bytes]]:
        while len(head := self._down.read(DOWN.size)) == DOWN.size:
            length, number, row = DOWN.unpack(head)
            content = self._down.read(length)
            if len(content) < length:
                return
            yield number, row, content

    def _publish(self) -> None:
        """Write how many exports wait, and since when, to the shared memory."""
        self._cells[WAITING] = len(self._calls)
        self._cells[OLDEST] = next(iter(self._calls.values())).received_ns if self._calls else 0

    def _close(self) -> None:
        """Refuse new exports, and those that wait."""
        with self._lock:
            self._open = False
            calls = list(self._calls.values())
            self._calls.clear()
            self._publish()
        for call in calls:
            call.refusal = UnavailableError("the evaluator has stopped")
            call.answered.release()


class _Worker:
    """The commands of the service, one at a time."""

    def __init__(self, up: int, down: int, fd: int) -> None:
        self._up = up
        self._down = os.fdopen(down, "rb")
        self._shared = Shared(fd)
        self._receiver: GrpcReceiver | None = None
        self._tokens: KnownTokens | None = None
        self._certificates: GrpcCertificates | None = None

    def bind(self, config: WorkerConfig) -> int:
        """Bind the port and return its number.

        Raises:
            StartError: it cannot be bound.
        """
        refused = RefusalCounts(self._shared.cells[:WAITING])
        link = EvaluatorLink(self._up, self._down, config, self._shared, refused)
        if config.digests is not None:
            self._tokens = KnownTokens()
            self._tokens.replace(config.digests)
        if config.pem is not None:
            self._certificates = GrpcCertificates(config.pem)
        receiver = GrpcReceiver(
            config.address,
            refused.except_of_flow(link.accept),
            limits=config.limits,
            tokens=self._tokens,
            certificates=self._certificates,
            refused=refused,
        )
        receiver.bind()
        self._receiver = receiver
        threading.Thread(target=link.read, name="otlp-grpc-answers", daemon=True).start()
        return receiver.port

    def start(self) -> None:
        """Serve."""
        assert self._receiver is not None  # noqa: S101
        self._receiver.start()

    def update(self, digests: Digests | None, pem: Pem | None) -> None:
        """Use these tokens and certificates from now on."""
        if self._tokens is not None and digests is not None:
            self._tokens.replace(digests)
        if self._certificates is not None and pem is not None:
            self._certificates.replace(pem)

    def stop(self, grace_s: float) -> None:
        """Refuse new exports, and return when the others are answered, after `grace_s` seconds at the latest."""
        if self._receiver is not None:
            self._receiver.stop(grace_s)


def main(up: int, down: int, commands_fd: int, memory_fd: int) -> None:
    """Run the worker until its commands end; `up`, `down`: the pipes of exports and answers."""
    for ignored in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):  # the service stops it
        signal.signal(ignored, signal.SIG_IGN)
    worker, commands = _Worker(up, down, memory_fd), Connection(commands_fd)
    try:
        while True:
            name, arguments = commands.recv()
            try:
                commands.send((getattr(worker, name)(*arguments), None))
            except StartError as problem:
                commands.send((None, str(problem)))
    except (EOFError, OSError):
        os._exit(0)  # without waiting for threads that wait for clients
