"""Compress a closed file of the journal so that at every instant exactly one of the two forms counts.

The order is: write `X.otlp.zst` and make it last, then remove `X.otlp`. While both are there the `.zst` is unfinished
and nobody reads it (the journal's contract), so a crash at any point costs the work, never a record.
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
"""On a journal level 1 takes twice the time, level 3 four times, and they save nothing."""
_CHUNK_BYTES: Final = 2**20
"""Smaller ones cost a third more."""
_REST_S: Final = 0.006
"""After each of them, some three times what it takes: nobody waits for this, and others want the core now."""


def compress_file(path: Path, target: Path, *, fsync: Callable[[int], None], stopping: Callable[[], bool]) -> bool:
    """Replace `path` by its compressed form at `target`, byte for byte, a torn end included.

    Returns:
        False where `stopping` said so meanwhile; then, as after an error, `path` is as it was and `target` is gone.

    Raises:
        OSError: it could not be read, written (disk full ...) or made to last.
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
            time.sleep(_REST_S)
        file.write(compressor.flush())
        file.flush()
        fsync(file.fileno())
    return True
