"""Compression of closed journal files; at every instant exactly one of the two forms is valid.

`X.otlp.zst` is written and synced before `X.otlp` is removed. While both exist the `.zst` is unfinished and readers
ignore it (the journal's contract): a crash at any point loses no record.
"""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING, Final

import zstandard

from otel_llm.rules.decisions.output_file import replace_inside
from otel_llm.shared.whole_files import sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LEVEL: Final = -1
"""On a journal, level 1 takes twice the time, level 3 four times, and neither saves bytes."""
_CHUNK_BYTES: Final = 2**20
"""Smaller chunks take a third more time."""
_PAUSE_S: Final = 0.006
"""The pause after each chunk, about three times its CPU time: compression yields the core to the evaluator."""


def compress_file(path: Path, target: Path, *, fsync: Callable[[int], None], stopping: Callable[[], bool]) -> bool:
    """Replace `path` by its compressed form at `target`, byte for byte, a torn end included.

    Returns:
        False if `stopping` became true; then, as after an error, `path` is unchanged and `target` is removed.

    Raises:
        OSError: it could not be read, written (disk full ...) or synced.
    """
    try:
        if not _write(path, target, fsync, stopping):
            target.unlink(missing_ok=True)
            return False
        sync_folder(target.parent, fsync)
    except OSError:
        target.unlink(missing_ok=True)
        raise
    path.unlink()
    return True


def _write(path: Path, target: Path, fsync: Callable[[int], None], stopping: Callable[[], bool]) -> bool:
    parameters = zstandard.ZstdCompressionParameters.from_level(LEVEL, write_checksum=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with path.open("rb", buffering=0) as source, io.BufferedWriter(replace_inside(target)) as file:
        while chunk := source.read(_CHUNK_BYTES):
            if stopping():
                return False
            file.write(compressor.compress(chunk))
            time.sleep(_PAUSE_S)
        file.write(compressor.flush())
        file.flush()
        fsync(file.fileno())
    return True
