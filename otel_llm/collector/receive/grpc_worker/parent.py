"""The gRPC door, as the evaluator's process sees it: a process of its own, and the exports that come from there."""

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
    Opening,
    Shared,
    accepted,
    refused,
    write_all,
)
from otel_llm.collector.receive.refusals import Refused
from otel_llm.shared.errors import AddressError, StartError
from otel_llm.shared.web.address import Address

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from otel_llm.collector.config.settings import Limits
    from otel_llm.shared.clock import Clock
    from otel_llm.shared.web.tls import Certificates
    from otel_llm.shared.web.tokens import KnownTokens

log = logging.getLogger(__name__)

_CODE: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from otel_llm.shared.memory import keep_one_heap; keep_one_heap(); "
    "from otel_llm.collector.receive.grpc_worker.child import main; main(*map(int, sys.argv[2:]))"
)
_PIPE_BYTES: Final = (2**23, 2**20)
"""What may be on its way up at once, the more the better: exports that wait are taken in together. Without privileges
Linux gives no more than the second."""
_BUFFER_BYTES: Final = 2**20
_READ_BYTES: Final = 2**26
"""What is read at once: all that has come, so that whose turn it is can be told; the process bounds it, too."""
_PATIENCE_S: Final = 30.0
"""How long an answer of the process is waited for."""
_LAST_S: Final = 2.0


class SentExport(Export):
    """An export that the door's process waits with, by its number there."""

    __slots__ = ("_door", "number")

    def __init__(self, raw: bytes, receipt_ns: int, door: GrpcFront, number: int, sender: int) -> None:
        super().__init__(raw, sender)
        self.receipt_ns = receipt_ns
        self.number = number
        self._door = door

    def refuse(self, error: Exception) -> None:
        """Tell the door why it is not taken."""
        refusal = as_refusal(error)
        if isinstance(refusal, InternalError):
            log.error("otel-llm: an export could not be accepted: this is a bug", exc_info=error)
        self._door.say(refused(self.number, refusal))

    def answered(self, answer: bytes) -> None:
        """Give the door the OTLP answer."""
        self._door.say(accepted(self.number, answer))


class GrpcFront:
    """The gRPC door: `bind`, `start` and `stop` from one thread; `read` from the evaluator's.

    Args:
        address: where to listen; port 0 lets the system pick one.
        limits: of messages, connections, and exports at once.
        tokens: what exports must bring in their `authorization` metadata; None: nothing.
        certificates: of TLS; None: plain text.
        clock: what receipts are told by.
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
        self._orders: Connection | None = None
        self._ordering = threading.Lock()
        self._saying = threading.Lock()
        self._reading = threading.Lock()
        self._up = self._down = -1
        self._cells = memoryview(bytes(8 * NUMBERS)).cast("q")
        self._refused = Refused(self._cells[:WAITING])
        self._buffer = bytearray(_BUFFER_BYTES)
        self._filled = 0
        self._stopping = False
        self.gone = False
        """Whether nothing comes from the process any more."""

    @property
    def address(self) -> Address:
        """Return where it listens, with the port that the system picked."""
        return self._address if self._port is None else Address(self._address.host, self._port)

    @property
    def waiting(self) -> int:
        """Return how many exports wait for their answer."""
        return self._cells[WAITING]

    @property
    def oldest_ns(self) -> int | None:
        """Return when the first of them was received (unix ns), None where there is none."""
        oldest_ns = self._cells[OLDEST]
        return self._clock.unix_ns(oldest_ns) if oldest_ns else None

    def unwell(self) -> str | None:
        """Return why the service should be restarted, None when it should not."""
        return "the process of the gRPC door has ended" if self.gone and not self._stopping else None

    def refusals(self) -> dict[str, int]:
        """Return how many exports were refused there, under the keys of the collector's counts."""
        return self._refused.counts()

    def bind(self) -> None:
        """Start the process and take the port; connections wait until `start`.

        Raises:
            AddressError: the port is in use, or the address is not this machine's.
            StartError: the process does not start.
        """
        if self._process is not None:
            return
        self._begin()
        try:
            self._port = self._order("bind", self._opening())
        except StartError:
            self._end()
            raise

    def start(self) -> None:
        """Bind, if that was not done, and let everybody in."""
        self.bind()
        self._order("start")

    def take_over(self) -> None:
        """Ask for the tokens and show the certificates that are there now."""
        if self._process is not None and not self.gone:
            self._order("take", self._known(), self._pem())

    def stop(self, grace_s: float = 5.0) -> None:
        """Take no more exports, and return when those begun are answered, at the latest after `grace_s` seconds."""
        self._stopping = True
        if self._process is None:
            return
        with suppress(StartError):
            self._order("stop", grace_s, patience_s=grace_s + _LAST_S)
        self._end()

    # For the evaluator's thread.

    def fileno(self) -> int:
        """Return what can be waited for until there is something to `read`."""
        return self._up

    def read(self) -> list[SentExport]:
        """Return the exports that have come, without waiting."""
        found: list[SentExport] = []
        size = 0
        with self._reading:
            while size < _READ_BYTES and not self.gone:
                try:
                    count = os.readv(self._up, [memoryview(self._buffer)[self._filled :]])
                except BlockingIOError:
                    break
                if not count:
                    self.gone = True
                    if not self._stopping:
                        log.error("otel-llm: the process of the gRPC door has ended: no export comes in over gRPC")
                self._filled += count
                cut = list(self._cut())
                size += max(count, sum(len(export.raw) for export in cut))
                found += cut
        return found

    def leave(self) -> None:
        """Answer nothing any more: the process tells everybody who waits or comes."""
        with self._saying:
            if self._down >= 0:
                os.close(self._down)
                self._down = -1

    def say(self, frame: bytes) -> None:
        """Send a frame down, if anybody is there; from any thread."""
        with self._saying, suppress(OSError):
            if self._down >= 0:
                write_all(self._down, (frame,))

    def _cut(self) -> Iterator[SentExport]:
        """Take the whole frames out of the buffer, and make room for the rest of the last."""
        view = memoryview(self._buffer)
        start, size = 0, UP.size
        while self._filled - start >= UP.size:
            length, number, received_ns, sender = UP.unpack_from(view, start)
            size = UP.size + length
            if self._filled - start < size:
                break
            raw = bytes(view[start + UP.size : start + size])
            yield SentExport(raw, self._clock.unix_ns(received_ns), self, number, sender)
            start += size
            size = UP.size
        if start or size > len(self._buffer):
            rest = bytes(view[start : self._filled])
            if size > len(self._buffer):
                self._buffer = bytearray(size)
            self._buffer[: len(rest)] = rest
            self._filled = len(rest)

    # The process.

    def _begin(self) -> None:
        ours, theirs = Pipe()
        up, their_up = os.pipe()
        their_down, down = os.pipe()
        shared, fd = Shared.made()
        self._cells = shared.cells
        self._refused = Refused(self._cells[:WAITING])
        os.set_blocking(up, False)
        _widen(up)
        passed = (their_up, their_down, theirs.fileno(), fd)
        command = [sys.executable, "-P", "-c", _CODE, json.dumps(sys.path), *map(str, passed)]
        try:
            # A session of its own: what a terminal says to the service, the service passes on in its own words.
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
            raise StartError(f"the process of the gRPC door cannot be started: {problem.strerror}") from problem
        finally:
            theirs.close()
            for one in (their_up, their_down, fd):
                os.close(one)
        self._orders, self._up, self._down = ours, up, down

    def _opening(self) -> Opening:
        return Opening(self._address, self._limits, QUEUED_BYTES, self._known(), self._pem())

    def _known(self) -> tuple[bytes, tuple[bytes, ...]] | None:
        return None if self._tokens is None else self._tokens.known

    def _pem(self) -> Any:
        return None if self._certificates is None else self._certificates.pem

    def _order(self, name: str, *arguments: object, patience_s: float = _PATIENCE_S) -> Any:
        """Tell the process something, and return what it says; raises StartError."""
        assert self._orders is not None  # noqa: S101
        with self._ordering:
            try:
                self._orders.send((name, arguments))
                if not self._orders.poll(patience_s):
                    assert self._process is not None  # noqa: S101
                    self._process.kill()  # what it said later would be taken for the answer to something else
                    raise StartError("the process of the gRPC door does not answer")
                found, problem = self._orders.recv()
            except (EOFError, OSError):
                raise StartError("the process of the gRPC door has ended") from None
        if problem is not None:
            raise AddressError(problem)
        return found

    def _end(self) -> None:
        """End the process, which needs no more than that nobody is left to tell it anything."""
        assert self._orders is not None  # noqa: S101
        assert self._process is not None  # noqa: S101
        self._stopping = True
        self._orders.close()
        try:
            self._process.wait(_LAST_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.leave()
        with self._reading:
            self.gone = True
            os.close(self._up)
        self._process = None


def _widen(pipe: int) -> None:
    """Let a pipe hold as much as the system allows."""
    for size in _PIPE_BYTES:
        with suppress(OSError, AttributeError):  # not so much; or a system that has no such pipes
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)
            return
