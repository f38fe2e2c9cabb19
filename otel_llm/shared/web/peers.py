"""Limits on the connections of a listener by peer."""

from __future__ import annotations

import ipaddress
from collections import Counter
from functools import lru_cache
from typing import Final, Generic, NamedTuple, TypeVar

C = TypeVar("C")

_BEGINNING_SHARE: Final = 4
_HOST_BITS: Final = 64
"""An IPv6 host can commonly use all addresses of a network of this size, in bits."""
_REMEMBERED: Final = 4096
"""Addresses whose peer is remembered."""


class Arrival(NamedTuple, Generic[C]):
    """The decision on a new connection."""

    admitted: bool
    closing: tuple[C, ...]
    """Connections to close for it; they are no longer counted."""


class Peers(Generic[C]):
    """The connections by peer. Not thread-safe.

    A connection is beginning until its first request, then established. A quarter of all connections may be beginning
    for one peer; one more closes that peer's oldest. At the total limit, one more closes the oldest beginning
    connection of any peer: an honest one needs milliseconds. An established one is never closed for another.

    Args:
        most: of all connections.
        most_per_peer: of established connections of one peer; None: no limit.
    """

    def __init__(self, most: int, most_per_peer: int | None) -> None:
        self._most = most
        self._most_per_peer = most_per_peer
        self._most_beginning = max(1, most // _BEGINNING_SHARE)
        self._beginning: dict[C, str] = {}
        """The oldest first."""
        self._beginning_of: dict[str, dict[C, None]] = {}
        self._established: dict[C, str] = {}
        self._established_of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._beginning) + len(self._established)

    def arrived(self, connection: C, peer: str) -> Arrival[C]:
        """Count a new connection, and return whether it is admitted and which are closed for it."""
        closing = []
        of_peer = self._beginning_of.get(peer, {})
        if len(of_peer) >= self._most_beginning:
            closing.append(next(iter(of_peer)))
        elif len(self) >= self._most:
            if not self._beginning:
                return Arrival(admitted=False, closing=())
            closing.append(next(iter(self._beginning)))
        for one in closing:
            self.left(one)
        self._beginning[connection] = peer
        self._beginning_of.setdefault(peer, {})[connection] = None
        return Arrival(admitted=True, closing=tuple(closing))

    def established(self, connection: C) -> bool:
        """Note the first request of a connection; return False if its peer has too many: the caller closes it."""
        peer = self._beginning.get(connection)
        if peer is None:
            return connection in self._established
        if self._most_per_peer is not None and self._established_of[peer] >= self._most_per_peer:
            return False
        self._forget_beginning(connection, peer)
        self._established[connection] = peer
        self._established_of[peer] += 1
        return True

    def left(self, connection: C) -> None:
        """Forget a connection, if it is known."""
        if (peer := self._beginning.get(connection)) is not None:
            self._forget_beginning(connection, peer)
        elif (peer := self._established.pop(connection, None)) is not None:
            self._established_of[peer] -= 1
            if not self._established_of[peer]:
                del self._established_of[peer]

    def _forget_beginning(self, connection: C, peer: str) -> None:
        del self._beginning[connection]
        of_peer = self._beginning_of[peer]
        del of_peer[connection]
        if not of_peer:
            del self._beginning_of[peer]


@lru_cache(maxsize=_REMEMBERED)
def peer_of(host: str) -> str:
    """Return the peer of an address: the address itself, or the /64 network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(address) >> _HOST_BITS << _HOST_BITS))
