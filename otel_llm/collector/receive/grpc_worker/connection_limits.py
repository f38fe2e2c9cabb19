"""Limits on the connections of the gRPC receiver: by peer, and in the time to their first RPC.

gRPC accepts connections itself, without a callback, and limits only their number. A thread here scans the sockets of
this process a few times a second and shuts down those beyond the limits: to gRPC it looks as if the peer had closed
them. gRPC accepts a quarter more than the limit, for connections that arrive between two scans; an RPC on a connection
beyond the limit is refused.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from otel_llm.shared.clock import monotonic_s
from otel_llm.shared.web.peers import Peers, peer_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.collector.settings import Limits

    _End = tuple[str, int]
    """The host and the port at the other end of a connection."""

_DESCRIPTORS: Final = Path("/dev/fd")
_SCAN_S: Final = 0.25
_RESCAN_S: Final = 0.05
"""Between scans while connections open and close."""
_CPU_SHARE: Final = 20
"""The wait after a scan is this many times its duration: scans use a twentieth of a core at most."""


def accepted_connections(limits: Limits) -> int:
    """Return how many connections gRPC may accept at once: the limit, and a quarter for unscanned ones."""
    return limits.connections + max(1, limits.connections // 4)


class ConnectionWatch:
    """Limits the connections of a port that gRPC has bound in this process; call `start` and `stop` once each."""

    def __init__(self, limits: Limits) -> None:
        self._first_s = limits.header_s
        self._peers: Peers[_End] = Peers(limits.connections, limits.connections_per_peer)
        self._seen: set[_End] = set()
        self._silent_since: dict[_End, float] = {}
        """When each connection without an RPC was first seen."""
        self._allowed: set[str] = set()
        """The peers of established connections, as gRPC writes them."""
        self._rejected: set[_End] = set()
        """To be shut down at the next scan, after their RPC is answered."""
        self._shut_down_ends: set[_End] = set()
        """Shut down, but not yet closed by gRPC."""
        self._scanned_s = 0.0
        self._lock = Lock()
        self._port = 0
        self._stop = Event()
        self._thread = Thread(target=self._run, name="otlp-grpc-connections", daemon=True)

    def start(self, port: int) -> None:
        """Start scanning."""
        self._port = port
        self._thread.start()

    def stop(self) -> None:
        """Stop scanning."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def established(self, peer: str) -> bool:
        """Note an RPC from `peer`, as gRPC writes it, and return whether its connection may stay.

        Safe from any thread.
        """
        if peer in self._allowed:
            return True
        end = _end_of(peer)
        with self._lock:
            stays = self._establish(end)
            if not stays and monotonic_s() - self._scanned_s > _RESCAN_S:  # others may have closed since
                self._scan()
                stays = self._establish(end)
            if stays:
                self._allowed.add(peer)
            else:
                self._rejected.add(end)
        return stays

    def _run(self) -> None:
        wait_s = _SCAN_S
        while not self._stop.wait(wait_s):
            began_s = monotonic_s()
            with self._lock:
                changed = self._scan()
            wait_s = max(_RESCAN_S if changed else _SCAN_S, (monotonic_s() - began_s) * _CPU_SHARE)

    # With the lock held.

    def _establish(self, end: _End) -> bool:
        if end not in self._seen:
            self._arrive(end)
        self._silent_since.pop(end, None)
        return self._peers.established(end)

    def _arrive(self, end: _End) -> None:
        admitted, displaced = self._peers.arrived(end, peer_of(end[0]))
        self._rejected.update(displaced)
        if not admitted:
            self._rejected.add(end)
        self._seen.add(end)
        self._silent_since[end] = monotonic_s()

    def _scan(self) -> bool:
        """Compare the known connections with the open sockets; return whether any was opened or closed."""
        there = self._connections()
        self._shut_down_ends &= there.keys()
        opened = [end for end in there if end not in self._seen and end not in self._shut_down_ends]
        gone = self._seen - there.keys()
        for end in gone:
            self._forget(end)
        if gone:
            self._allowed = {peer for peer in self._allowed if _end_of(peer) in there}
        for end in opened:
            self._arrive(end)
        now_s = self._scanned_s = monotonic_s()
        for end, since_s in self._silent_since.items():
            if now_s - since_s > self._first_s:
                self._rejected.add(end)
        for end in self._rejected & there.keys():
            self._forget(end)
            _shut_down(there[end], end)
            self._shut_down_ends.add(end)
        self._rejected.clear()
        return bool(opened or gone)

    def _forget(self, end: _End) -> None:
        self._seen.discard(end)
        self._silent_since.pop(end, None)
        self._peers.left(end)

    def _connections(self) -> dict[_End, int]:
        """Return the remote ends of all connections with their descriptors, lowest first."""
        found = {}
        for fd, one in _sockets(self._port):
            with suppress(OSError):  # a listening socket has no remote end
                found[_name(one.getpeername())] = fd
        return found


def _shut_down(fd: int, end: _End) -> None:
    with suppress(OSError), _copy(fd) as one:
        if _name(one.getpeername()) == end:  # else it was closed, and another connection has its descriptor
            one.shutdown(socket.SHUT_RDWR)


def _sockets(port: int) -> Iterator[tuple[int, socket.socket]]:
    """Yield the descriptors of this process's sockets of a port, each with a copy that is closed afterwards."""
    for fd in sorted(int(path.name) for path in _DESCRIPTORS.iterdir()):
        with suppress(OSError), _copy(fd) as one:  # not a socket
            if one.getsockname()[1:2] == (port,):
                yield fd, one


@contextmanager
def _copy(fd: int) -> Iterator[socket.socket]:
    copied = os.dup(fd)
    try:
        # A given family saves a system call; addresses are still in the family of the socket.
        one = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=copied)
    except OSError:
        os.close(copied)
        raise
    with one:
        yield one


def _name(address: tuple[str, int]) -> _End:
    return address[0].removeprefix("::ffff:"), address[1]


def peer_host(peer: str) -> str:
    """Return the address of a peer as gRPC writes it; `peer` itself if it has none."""
    return _end_of(peer)[0] or peer


def _end_of(peer: str) -> _End:
    """Return the end of a peer as gRPC writes it: `ipv4:127.0.0.1:80`, `ipv6:%5B::1%5D:80`."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0
