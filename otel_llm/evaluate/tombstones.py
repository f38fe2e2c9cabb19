"""Tombstones of judged streams: a late segment of one starts no new stream."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.formats.records import RequestKey


@dataclass(slots=True)
class _Generations:
    """The masks of a tenant's requests by their ids, the young ones and those before them."""

    young: dict[bytes, int] = field(default_factory=dict)
    old: dict[bytes, int] = field(default_factory=dict)

    def mask(self, ids: bytes) -> int:
        found = self.young.get(ids)
        return self.old.get(ids, 0) if found is None else found


class Tombstones:
    """The judged choices of at least the last `most` requests, and of at most twice as many.

    Of several tenants, of at least the last `most` / n requests of each, where n is their number: none can push out
    what is another's. Tenants are named by tokens, so there are few.

    A bit mask by the concatenated ids takes a fifth of the memory of a set of pairs. Two generations drop the oldest
    requests without an ordered structure.
    """

    __slots__ = ("_most", "_of")

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: defaultdict[str, _Generations] = defaultdict(_Generations)

    def __len__(self) -> int:
        return sum(len(one.young) + len(one.old) for one in self._of.values())

    def __contains__(self, key: RequestKey) -> bool:
        return self._mask(key) != 0

    def has(self, key: RequestKey, choice: int) -> bool:
        """Return whether a stream was judged."""
        return bool(self._mask(key) >> choice & 1)

    def choices(self, key: RequestKey) -> Iterator[int]:
        """Yield the judged choices of a request."""
        mask = self._mask(key)
        return (choice for choice in range(mask.bit_length()) if mask >> choice & 1)

    def add(self, key: RequestKey, choice: int) -> None:
        """Add a judged stream."""
        trace_id, span_id, tenant = key
        own, ids = self._of[tenant], trace_id + span_id
        mask = own.mask(ids) | 1 << choice
        own.old.pop(ids, None)
        own.young[ids] = mask
        if len(own.young) * len(self._of) >= self._most:
            own.old, own.young = own.young, {}

    def _mask(self, key: RequestKey) -> int:
        trace_id, span_id, tenant = key
        own = self._of.get(tenant)
        return 0 if own is None else own.mask(trace_id + span_id)
