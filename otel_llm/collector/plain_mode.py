"""Warnings of a collector whose kernels are not compiled (plain mode): at the start, and once when it is too slow."""

from __future__ import annotations

import logging
from typing import Final

from otel_llm.core.compiling import mode
from otel_llm.core.kernel import PLAIN

TIMES_SLOWER: Final = "10 to 20"
"""CPU time of decoding by protobuf over that of the compiled scan, by size of segment (`decode_speed.py`)."""
BEHIND_NS: Final = 5_000_000_000
"""An export that waited longer is late for its window, with the default of `--lateness`."""
log = logging.getLogger(__name__)


class LagWarning:
    """Warns once, in plain mode, when exports wait too long."""

    def __init__(self, plain: str | None = PLAIN) -> None:
        self._line = too_slow(plain)

    def check(self, waited_ns: int) -> None:
        """Log the warning if an export has waited longer than BEHIND_NS."""
        if self._line is not None and waited_ns > BEHIND_NS:
            log.warning("otel-llm: %s", self._line)
            self._line = None


def notice(plain: str | None = PLAIN) -> str | None:
    """Return the warning for the start; None if the kernels are compiled. `plain`: why they are not."""
    if plain is None:
        return None
    return (
        f"plain mode ({plain}): exports are decoded by protobuf, {TIMES_SLOWER} times slower than by compiled"
        f" kernels: enough for tests and small loads, else {_remedy(plain)}"
    )


def too_slow(plain: str | None = PLAIN) -> str | None:
    """Return the warning for a collector that falls behind; None if the kernels are compiled.

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
    return "make numba usable"
