"""The budget of hedges: requests that are sent to a second backend for being late. No I/O, no clock."""

from __future__ import annotations

from typing import Final

MOST_CREDIT: Final = 10.0
"""The most hedges at one instant, however few there were before."""


class HedgeBudget:
    """The hedges that a relay may send: one, and then a share of its requests, so that no overload is doubled."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._credit = 1.0 - share

    def request(self) -> None:
        """Note a request."""
        self._credit = min(MOST_CREDIT, self._credit + self._share)

    def take(self) -> bool:
        """Take one hedge; return whether there was one."""
        if not self._share or self._credit < 1.0 - 1e-9:
            return False
        self._credit -= 1.0
        return True
