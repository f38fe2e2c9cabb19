"""The index of slots by key: a hash table with open addressing and linear probing.

`index`: (C, 5) int64, C a power of two: the three words of a key, the number of its tenant, and its slot plus one, 0 if
a bucket is free. The owner keeps half of the buckets free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.core.kernel import COMPILED, kernel
from otel_llm.core.stream_columns import INDEX_WIDTH

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

_TENANT: Final = 3
_SLOT: Final = 4
_ODD: Final = 0x9E3779B97F4A7C15 - (1 << 64)

if TYPE_CHECKING or not COMPILED:

    def _wrapped(value: int) -> int:
        return (value + 2**63) % 2**64 - 2**63

else:

    @kernel()
    def _wrapped(value: int) -> int:
        return value  # machine arithmetic wraps at 64 bits


@kernel()
def _home(first: int, second: int, third: int, tenant: int, seed: int, mask: int) -> int:
    """Return the first bucket of a key's probe sequence."""
    found = _wrapped((int(first) ^ seed) * _ODD + int(second))
    found = _wrapped((found ^ (found >> 32)) * _ODD + int(tenant))
    found = _wrapped((found ^ (found >> 32)) * _ODD + int(third))
    found = _wrapped((found ^ (found >> 32)) * _ODD)
    return (found >> 32) & mask


@kernel()
def _find_entry(index: Ints, first: int, second: int, third: int, tenant: int, seed: int) -> int:
    """Return the bucket of a key, or the free bucket for it."""
    mask = len(index) - 1
    bucket = _home(first, second, third, tenant, seed, mask)
    while index[bucket, _SLOT] != 0 and (
        index[bucket, 0] != first
        or index[bucket, 1] != second
        or index[bucket, 2] != third
        or index[bucket, _TENANT] != tenant
    ):
        bucket = (bucket + 1) & mask
    return bucket


@kernel("void(int64[:, ::1], int64, int64, int64[:, ::1], int64[::1])")
def find(index: Ints, seed: int, tenant: int, keys: Ints, found: Ints) -> None:
    """Fill `found` (N,) with the slot of each of a tenant's `keys` (N, 3), -1 for none."""
    for at in range(len(keys)):
        found[at] = index[_find_entry(index, keys[at, 0], keys[at, 1], keys[at, 2], tenant, seed), _SLOT] - 1


@kernel("void(int64[:, ::1], int64, int64, Array(int64, 1, 'C', readonly=True), int64)")
def put(index: Ints, seed: int, tenant: int, key: Ints, slot: int) -> None:
    """Set the slot of a tenant's key, (3,)."""
    bucket = _find_entry(index, key[0], key[1], key[2], tenant, seed)
    index[bucket, 0], index[bucket, 1], index[bucket, 2] = key[0], key[1], key[2]
    index[bucket, _TENANT], index[bucket, _SLOT] = tenant, slot + 1


@kernel("void(int64[:, ::1], int64, int64, Array(int64, 1, 'C', readonly=True), int64)")
def drop(index: Ints, seed: int, tenant: int, key: Ints, slot: int) -> None:
    """Remove a tenant's key, (3,), if its slot is `slot`."""
    mask = len(index) - 1
    free = _find_entry(index, key[0], key[1], key[2], tenant, seed)
    if index[free, _SLOT] != slot + 1:
        return
    bucket = (free + 1) & mask
    while index[bucket, _SLOT] != 0:
        home = _home(index[bucket, 0], index[bucket, 1], index[bucket, 2], index[bucket, _TENANT], seed, mask)
        if (bucket - home) & mask >= (bucket - free) & mask:  # else it would be before the start of its probe sequence
            for word in range(INDEX_WIDTH):
                index[free, word] = index[bucket, word]
            free = bucket
        bucket = (bucket + 1) & mask
    index[free, _SLOT] = 0


@kernel("void(int64[:, ::1], int64, int64[:, ::1])")
def move(index: Ints, seed: int, larger: Ints) -> None:
    """Copy all keys to `larger`, an empty index."""
    for at in range(len(index)):
        if index[at, _SLOT] != 0:
            bucket = _find_entry(larger, index[at, 0], index[at, 1], index[at, 2], index[at, _TENANT], seed)
            for word in range(INDEX_WIDTH):
                larger[bucket, word] = index[at, word]
