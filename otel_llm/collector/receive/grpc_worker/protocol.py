"""The protocol between the gRPC worker and the service: frames on two pipes, and counters in shared memory.

Up: each export, decompressed, with its receipt time and its sender. Down: its OTLP answer, or its refusal. Both ends
are of one version.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_llm.collector.receive.errors import ANSWERS
from otel_llm.collector.receive.refusal_counts import REASONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.collector.settings import Limits
    from otel_llm.config.tls import Pem
    from otel_llm.shared.errors import RefusalError
    from otel_llm.shared.web.address import Address
    from otel_llm.shared.web.tokens import Digests

UP: Final = struct.Struct("<IQqQB")
"""Header of an export: the length of its message, its number, its receipt time (ns of the monotonic clock, one for all
processes), its sender's number, the length of its tenant's name (0: no tokens are in use). Name and message follow."""
DOWN: Final = struct.Struct("<IQB")
"""Header of an answer: its length, the number of its export, 0 or the refusal's row in `ANSWERS` counted from 1."""
WAITING: Final = len(REASONS)
"""Index of the number of exports that wait for an answer, in the shared memory; the counts of `REASONS` come first."""
OLDEST: Final = WAITING + 1
"""Index of the receipt time (monotonic ns) of the oldest of them; 0: none waits."""
NUMBERS: Final = OLDEST + 1
_NUMBER_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The configuration of the worker; `digests`, `pem`: tokens and certificates, None if there are none."""

    address: Address
    limits: Limits
    queued_bytes: int
    digests: Digests | None
    pem: Pem | None


def accepted(number: int, answer: bytes) -> bytes:
    """Return the frame of an OTLP answer."""
    return DOWN.pack(len(answer), number, 0) + answer


def refused(number: int, refusal: RefusalError) -> bytes:
    """Return the frame of a refusal; one without a row is an internal error."""
    kinds = [kind for kind, _ in ANSWERS]
    row = next((at for at, kind in enumerate(kinds) if isinstance(refusal, kind)), len(kinds) - 1)
    message = str(refusal).encode("utf-8", "replace")
    return DOWN.pack(len(message), number, row + 1) + message


def refusal_of(row: int, message: bytes) -> RefusalError:
    """Return the refusal of a frame; `row`: in `ANSWERS`, counted from 1."""
    kind = ANSWERS[row - 1][0]
    refusal = kind.__new__(kind)  # some constructors take no message
    refusal.args = (message.decode("utf-8", "replace"),)
    return refusal


class Shared:
    """Memory of both processes: 64-bit integers; the worker is their single writer."""

    def __init__(self, fd: int) -> None:
        self.cells = memoryview(mmap.mmap(fd, NUMBERS * _NUMBER_BYTES)).cast("q")

    @classmethod
    def made(cls) -> tuple[Shared, int]:
        """Return new memory, all 0, and a descriptor by which another process maps it."""
        if hasattr(os, "memfd_create"):  # if a service may not write a file
            fd = os.memfd_create("otel-llm", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, NUMBERS * _NUMBER_BYTES)
        return cls(fd), fd


def write_all(fd: int, parts: Sequence[bytes]) -> None:
    """Write all bytes.

    Raises:
        OSError: the other end is closed.
    """
    written, size = os.writev(fd, parts), sum(map(len, parts))
    if written == size:
        return
    left = memoryview(b"".join(parts))[written:]
    while left:
        left = left[os.write(fd, left) :]
