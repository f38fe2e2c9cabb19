"""What a collector says where its kernels are not compiled: that it carries less, and once when that is too little."""

from __future__ import annotations

from typing import Final

from otel_llm.core.compiling import mode
from otel_llm.core.kernel import PLAIN

TIMES_SLOWER: Final = "10 to 20"
"""CPU time of decoding by protobuf over that of the compiled scan, by size of segment (`decode_speed.py`)."""
BEHIND_NS: Final = 5_000_000_000
"""An export that waited longer is late for its window, with the default of `--lateness`."""


def notice(plain: str | None = PLAIN) -> str | None:
    """Return a line for the start; None where the kernels are compiled. `plain`: why they are not."""
    if plain is None:
        return None
    return (
        f"plain mode ({plain}): exports are decoded by protobuf, {TIMES_SLOWER} times slower than by compiled"
        f" kernels: enough for tests and small loads, else {_remedy(plain)}"
    )


def too_slow(plain: str | None = PLAIN) -> str | None:
    """Return a line for the moment at which the collector falls behind; None where the kernels are compiled.

    `plain`: why they are not.
    """
    if plain is None:
        return None
    return (
        f"this load is too high for plain mode ({plain}): exports wait longer than {BEHIND_NS // 10**9} s:"
        f" {_remedy(plain)}, or run several collectors"
    )


def _remedy(plain: str) -> str:
    if plain == mode.CHOSEN:
        return f"unset {mode.VARIABLE}"
    if plain == mode.ABSENT:
        return mode.REMEDY
    return "see to it that numba can be used"
