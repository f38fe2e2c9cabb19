"""Tombstones of judged streams: a late segment of one starts no new stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.readers.records import RequestKey


class Tombstones:
    """The judged choices of at least the last `most` requests, and of at most twice as many.

    A bit mask by the concatenated ids takes a fifth of the memory of a set of pairs. Two generations drop the oldest
    requests without an ordered structure.
    """

    __slots__ = ("_most", "_old", "_young")

    def __init__(self, most: int) -> None:
        self._most = most
        self._young: dict[bytes, int] = {}
        self._old: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __contains__(self, key: RequestKey) -> bool:
        return self._mask(b"".join(key)) != 0

    def has(self, key: RequestKey, choice: int) -> bool:
        """Return whether a stream was judged."""
        return bool(self._mask(b"".join(key)) >> choice & 1)

    def choices(self, key: RequestKey) -> Iterator[int]:
        """Yield the judged choices of a request."""
        mask = self._mask(b"".join(key))
        return (choice for choice in range(mask.bit_length()) if mask >> choice & 1)

    def add(self, key: RequestKey, choice: int) -> None:
        """Add a judged stream."""
        ids = b"".join(key)
        mask = self._mask(ids) | 1 << choice
        self._old.pop(ids, None)
        self._young[ids] = mask
        if len(self._young) >= self._most:
            self._old, self._young = self._young, {}

    def _mask(self, ids: bytes) -> int:
        found = self._young.get(ids)
        return self._old.get(ids, 0) if found is None else found
