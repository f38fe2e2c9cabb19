"""Temporary files for pending requests beyond the memory limit, partitioned by key."""

from __future__ import annotations

import pickle
import tempfile
import zlib
from typing import IO, TYPE_CHECKING, Final

import numpy as np

from otel_llm.formats.records import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_llm.formats.assemble.pending_requests import PendingRequest
    from otel_llm.formats.assemble.stream_rows import Rows

PARTS: Final = 64
"""The number of files: of 100 M tokens each takes some 15 MB."""


class Spill:
    """Temporary files of requests; they have no name, so they vanish with the process."""

    def __init__(self) -> None:
        self._files: list[IO[bytes]] = []

    def put(self, requests: Sequence[PendingRequest], rows: Rows | None) -> None:
        """Append requests and their rows, whose `slot` is that of one of the requests.

        Raises InputError where the folder of temporary files has no room.
        """
        part = {one.slot: zlib.crc32(one.key) % PARTS for one in requests}
        by_part: list[list[PendingRequest]] = [[] for _ in range(PARTS)]
        for one in requests:
            by_part[part[one.slot]].append(one)
        of_slot = np.zeros(max(part) + 1, np.int64)
        of_slot[list(part)] = list(part.values())
        of = None if rows is None else of_slot[rows.slot]
        try:
            if not self._files:
                self._files = [tempfile.TemporaryFile() for _ in range(PARTS)]  # noqa: SIM115  closed by close()
            for number, mine in enumerate(by_part):
                if mine:
                    own = None if rows is None or of is None else rows.only(of == number)
                    pickle.dump((mine, own), self._files[number], protocol=pickle.HIGHEST_PROTOCOL)
        except OSError as error:
            raise InputError(
                f"no room for what waits for its end in {tempfile.gettempdir()} ({error.strerror or error}); "
                "let TMPDIR name a folder with room"
            ) from error

    def partitions(self) -> Iterator[Iterator[tuple[list[PendingRequest], Rows | None]]]:
        """Yield each file's entries in the order in which they were put; a file is closed when it was read."""
        for file in self._files:
            file.seek(0)
            yield self._entries(file)
            file.close()

    def close(self) -> None:
        """Delete everything."""
        for file in self._files:
            file.close()
        self._files = []

    def _entries(self, file: IO[bytes]) -> Iterator[tuple[list[PendingRequest], Rows | None]]:
        while True:
            try:
                yield pickle.load(file)  # noqa: S301  our own, without a name by which others could open it
            except EOFError:
                return
