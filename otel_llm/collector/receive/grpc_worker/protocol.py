"""What the gRPC door's process and the evaluator's say to each other: frames on pipes, and numbers in shared memory.

Up goes each export, decompressed, with the instant of its receipt and who sent it; down goes the answer, or which
refusal it is. Both ends are this program: nothing here is a format for others.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_llm.collector.receive.errors import ANSWERS
from otel_llm.collector.receive.refusals import REASONS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from otel_llm.collector.config.settings import Limits
    from otel_llm.shared.errors import RefusalError
    from otel_llm.shared.web.address import Address
    from otel_llm.shared.web.tls import Pem

    Known: TypeAlias = tuple[bytes, tuple[bytes, ...]]
    """A key, and the digests of tokens under it."""

UP: Final = struct.Struct("<IQqQ")
"""Before an export: its length, its number, when it was received (monotonic ns, which both processes read alike), its
sender."""
DOWN: Final = struct.Struct("<IQB")
"""Before an answer: its length, the number of its export, 0 or the refusal's place in `ANSWERS` counted from 1."""
WAITING: Final = len(REASONS)
"""Where the number of exports that wait for their answer stands in the shared numbers; the counts of `REASONS` come
first."""
OLDEST: Final = WAITING + 1
"""Where it stands when the first of them was received (monotonic ns); 0: there is none."""
NUMBERS: Final = OLDEST + 1
_NUMBER_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Opening:
    """What the door is to be; `known`, `pem`: the tokens and certificates to begin with, None: without."""

    address: Address
    limits: Limits
    queued_bytes: int
    known: Known | None
    pem: Pem | None


def accepted(number: int, answer: bytes) -> bytes:
    """Return the frame of an OTLP answer."""
    return DOWN.pack(len(answer), number, 0) + answer


def refused(number: int, refusal: RefusalError) -> bytes:
    """Return the frame of a refusal; of one that has no row, that of a bug."""
    kinds = [kind for kind, _ in ANSWERS]
    place = next((at for at, kind in enumerate(kinds) if isinstance(refusal, kind)), len(kinds) - 1)
    words = str(refusal).encode("utf-8", "replace")
    return DOWN.pack(len(words), number, place + 1) + words


def refusal_of(place: int, words: bytes) -> RefusalError:
    """Return the refusal that a frame says; whoever raised it first has counted what it counts."""
    kind = ANSWERS[place - 1][0]
    refusal = kind.__new__(kind)  # not each of them is made of its message
    refusal.args = (words.decode("utf-8", "replace"),)
    return refusal


class Shared:
    """Memory that both processes see: 64-bit integers, which the door's process writes."""

    def __init__(self, fd: int) -> None:
        self.cells = memoryview(mmap.mmap(fd, NUMBERS * _NUMBER_BYTES)).cast("q")

    @classmethod
    def made(cls) -> tuple[Shared, int]:
        """Return such memory, all 0, and a descriptor by which another process finds it."""
        if hasattr(os, "memfd_create"):  # where a service may not write a file
            fd = os.memfd_create("otel-llm", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, NUMBERS * _NUMBER_BYTES)
        return cls(fd), fd


def write_all(fd: int, parts: Sequence[bytes]) -> None:
    """Write bytes one behind the other; raises OSError where nobody reads any more."""
    written, size = os.writev(fd, parts), sum(map(len, parts))
    if written == size:
        return
    left = memoryview(b"".join(parts))[written:]
    while left:
        left = left[os.write(fd, left) :]
