"""Memory that ends where a page begins that nothing may touch: a read beyond the end stops the process."""

from __future__ import annotations

import ctypes
import mmap
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

_PROT_NONE = 0


class GuardedMemory:
    """Holds messages of up to `size` bytes, each right before the guard page, and reads nothing before it either."""

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        self._room = -(-size // page) * page
        self._map = mmap.mmap(-1, self._room + 2 * page)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._whole: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        for at in (0, self._room + page):
            self._protect(at, _PROT_NONE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for at in (0, self._room + mmap.PAGESIZE):
            self._protect(at, mmap.PROT_READ | mmap.PROT_WRITE)

    def put(self, raw: bytes) -> npt.NDArray[np.uint8]:
        """Return an array of these bytes whose end is the end of what may be read."""
        end = self._room + mmap.PAGESIZE
        self._whole[end - len(raw) : end] = np.frombuffer(raw, np.uint8)
        return self._whole[end - len(raw) : end]

    def _protect(self, at: int, how: int) -> None:
        if self._libc.mprotect(ctypes.c_void_p(self._address + at), mmap.PAGESIZE, how) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
