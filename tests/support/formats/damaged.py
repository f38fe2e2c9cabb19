"""Files with one byte changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

CHANGES: dict[str, Callable[[int], int]] = {
    "zero": lambda _: 0,
    "all bits": lambda _: 255,
    "one more": lambda byte: (byte + 1) % 256,
    "another type": lambda byte: byte ^ 4,
    "another field": lambda byte: byte ^ 16,
}
"""The last two: of Thrift, in which Parquet describes itself."""


def damaged(whole: bytes, change: str) -> Iterator[bytes]:
    """Yield a file with each of its bytes changed in turn."""
    for at, byte in enumerate(whole):
        yield whole[:at] + bytes([CHANGES[change](byte)]) + whole[at + 1 :]
