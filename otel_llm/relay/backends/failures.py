"""The failures of one backend, and whether they eject it. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from typing import Final

EJECTS: Final = 3
"""The number of failures after which a backend is ejected: so many more than the requests that it served since."""
RECENT_S: Final = 30.0
"""The age at which a failure no longer counts (s)."""
MOST_SEEN: Final = 16


class Failures:
    """The last failures of one backend; `client` is the name of a client."""

    __slots__ = ("_counted", "_seen")

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=MOST_SEEN)
        """The instants of all failures, whatever their cause was."""
        self._counted: deque[tuple[float, str]] = deque(maxlen=EJECTS)
        """The instants and the clients of those that the backend is to blame for."""

    def see(self, now_s: float) -> None:
        """Note a failure whose cause is not known."""
        self._seen.append(now_s)

    def recent(self, now_s: float) -> int:
        """Return the number of recent failures, whatever their cause was; `MOST_SEEN` for more."""
        return sum(at_s > now_s - RECENT_S for at_s in self._seen)

    def count(self, client: str, now_s: float) -> bool:
        """Count a failure of the backend's own; return whether there are enough to eject it."""
        self._counted.append((now_s, client))
        return len(self._counted) == EJECTS and self._counted[0][0] > now_s - RECENT_S

    def served(self) -> None:
        """Note a request that was served to its end: it makes up for one failure."""
        if self._counted:
            self._counted.popleft()

    @property
    def only_client(self) -> str | None:
        """Return the client of all counted failures; None if there are several clients."""
        clients = {client for _, client in self._counted}
        return clients.pop() if len(clients) == 1 else None

    def forget(self) -> None:
        """Begin anew after an ejection."""
        self._counted.clear()
