"""The gRPC door's own process: it takes exports and hands their bytes up, and down come the answers.

gRPC's threads and the evaluator's would otherwise wait for one interpreter in turn. Nothing is decoded here, nothing is
kept, and whoever started the process tells it everything it has to know: it reads no files. It ends when told so, and
at once when nobody is left to tell it.
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
from otel_llm.collector.receive.refusals import Refused
from otel_llm.collector.receive.senders import Room, Turns
from otel_llm.shared.clock import monotonic_ns
from otel_llm.shared.errors import RefusalError, StartError, UnavailableError
from otel_llm.shared.web.tokens import KnownTokens

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from otel_llm.collector.receive.grpc_worker.protocol import Known, Opening
    from otel_llm.shared.web.tls import Pem


@dataclass(slots=True)
class _Call:
    """An export on its way up, and what came down for it."""

    sender: int
    size: int
    received_ns: int
    answer: bytes = b""
    refusal: RefusalError | None = None
    answered: threading.Lock = field(default_factory=threading.Lock)


class EvaluatorLink:
    """The way of the exports up to the evaluator, and of the answers down."""

    def __init__(self, up: int, down: BinaryIO, opening: Opening, shared: Shared, refused: Refused) -> None:
        self._up = up
        self._down = down
        self._room = Room(opening.limits.queued_exports, opening.queued_bytes)
        self._cells = shared.cells
        self._refused = refused
        self._numbers = count(1)
        self._calls: dict[int, _Call] = {}
        self._open = True
        self._lock = threading.Lock()
        self._writing = Turns()

    def accept(self, raw: bytes, sender: int) -> bytes:
        """Hand an export up; return the OTLP answer, or raise what the evaluator's process refused it with."""
        call = _Call(sender, len(raw), monotonic_ns())
        call.answered.acquire()
        with self._lock:
            if not self._open:
                raise UnavailableError("the evaluator has stopped")
            if not self._room.take(sender, call.size):
                self._refused.count_behind()
                raise BusyError("the evaluator is behind")
            number = next(self._numbers)
            self._calls[number] = call
            self._tell()
        self._writing.take(partial(self._room.bytes_of, sender))
        try:
            write_all(self._up, (UP.pack(len(raw), number, call.received_ns, sender), raw))
        except OSError:
            self._close()
        finally:
            self._writing.give()
        call.answered.acquire()
        if call.refusal is not None:
            raise call.refusal
        return call.answer

    def read(self) -> None:
        """Hand out answers until there is nobody who gives any."""
        for number, place, said in self._frames():
            with self._lock:
                call = self._calls.pop(number)
                self._room.leave(call.sender, call.size)
                self._tell()
            if place:
                call.refusal = refusal_of(place, said)
            else:
                call.answer = said
            call.answered.release()
        self._close()

    def _frames(self) -> Iterator[tuple[int, int, bytes]]:
        while len(head := self._down.read(DOWN.size)) == DOWN.size:
            length, number, place = DOWN.unpack(head)
            said = self._down.read(length)
            if len(said) < length:
                return
            yield number, place, said

    def _tell(self) -> None:
        self._cells[WAITING] = len(self._calls)
        self._cells[OLDEST] = next(iter(self._calls.values())).received_ns if self._calls else 0

    def _close(self) -> None:
        """Take nothing more, and tell those who wait that nobody is there."""
        with self._lock:
            self._open = False
            calls = list(self._calls.values())
            self._calls.clear()
            self._tell()
        for call in calls:
            call.refusal = UnavailableError("the evaluator has stopped")
            call.answered.release()


class _Door:
    """What the process is told to do, one thing after the other."""

    def __init__(self, up: int, down: int, fd: int) -> None:
        self._up = up
        self._down = os.fdopen(down, "rb")
        self._shared = Shared(fd)
        self._receiver: GrpcReceiver | None = None
        self._tokens: KnownTokens | None = None
        self._certificates: GrpcCertificates | None = None

    def bind(self, opening: Opening) -> int:
        """Take the port, and return which it is; raises StartError."""
        refused = Refused(self._shared.cells[:WAITING])
        way = EvaluatorLink(self._up, self._down, opening, self._shared, refused)
        if opening.known is not None:
            self._tokens = KnownTokens()
            self._tokens.take(opening.known)
        if opening.pem is not None:
            self._certificates = GrpcCertificates(opening.pem)
        receiver = GrpcReceiver(
            opening.address,
            refused.of_the_flow(way.accept),
            limits=opening.limits,
            tokens=self._tokens,
            certificates=self._certificates,
            refused=refused,
        )
        receiver.bind()
        self._receiver = receiver
        threading.Thread(target=way.read, name="otlp-grpc-answers", daemon=True).start()
        return receiver.port

    def start(self) -> None:
        """Let everybody in."""
        assert self._receiver is not None  # noqa: S101
        self._receiver.start()

    def take(self, known: Known | None, pem: Pem | None) -> None:
        """Ask for these tokens and show these certificates from now on."""
        if self._tokens is not None and known is not None:
            self._tokens.take(known)
        if self._certificates is not None and pem is not None:
            self._certificates.take(pem)

    def stop(self, grace_s: float) -> None:
        """Take no more exports; return when those begun are answered."""
        if self._receiver is not None:
            self._receiver.stop(grace_s)


def main(up: int, down: int, told: int, fd: int) -> None:
    """Do what is told over `told`; `up`, `down`: the pipes of the exports; `fd`: the shared memory."""
    for ignored in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):  # it ends with the process that answers for it
        signal.signal(ignored, signal.SIG_IGN)
    door, orders = _Door(up, down, fd), Connection(told)
    try:
        while True:
            name, arguments = orders.recv()
            try:
                orders.send((getattr(door, name)(*arguments), None))
            except StartError as problem:
                orders.send((None, str(problem)))
    except (EOFError, OSError):
        os._exit(0)  # without waiting for threads that wait for clients
