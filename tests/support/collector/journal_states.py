"""Journals for tests: a disk that is as slow or broken as a test wants, and waiting for a state."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import zstandard
from support.commands import wait_until, wait_until_equal
from support.patience import WAIT_S

from otel_llm.journal.journal import Journal


def wait_for(journal: Journal, **counts: int) -> None:
    """Wait until a journal has these counts."""
    wait_until_equal("the counts", lambda: {name: journal.counts()[name] for name in counts}, counts)


def tick_until_closed(journal: Journal, now_ns: int) -> None:
    """Tick as the service does, again and again: one tick does nothing while another thread has the lock."""

    def closed() -> bool:
        journal.tick(now_ns)
        return journal.path is None

    wait_until("the file is closed", closed)


class SlowDisk:
    """An `fsync` that waits at a gate, and fails when told so; it knows what it was asked for."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.gate = threading.Event()
        if is_open:
            self.gate.set()
        self.requested = threading.Event()
        """Set when a file's fsync began."""
        self.error: OSError | None = None
        self.files: list[tuple[int, int]] = []
        """(inode, bytes in the file) of each fsync of a file, in order of their begin."""
        self.folders: list[int] = []

    def __call__(self, fd: int) -> None:
        about = os.fstat(fd)
        if stat.S_ISDIR(about.st_mode):
            self.folders.append(about.st_ino)
            return
        self.files.append((about.st_ino, about.st_size))
        self.requested.set()
        assert self.gate.wait(WAIT_S)
        if self.error is not None:
            raise self.error


def plain_bytes(path: Path) -> bytes:
    """Return what a file of either form holds."""
    data = path.read_bytes()
    return zstandard.ZstdDecompressor().decompressobj().decompress(data) if path.name.endswith(".zst") else data
