"""Bound the connections of the gRPC door by peer, and close those whose first RPC does not come.

gRPC accepts connections itself, tells nobody of them, and bounds their number alone. A thread here looks at the sockets
of this process a few times a second, and shuts down those that may not stay: gRPC then sees the end of the connection,
as if the peer had closed it. gRPC lets in a quarter more than the limit, so that there is room for those that come in
between two looks; an RPC of one beyond the limit is refused.
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

    from otel_llm.collector.config.settings import Limits

    _End = tuple[str, int]
    """The host and the port at the other end of a connection."""

_DESCRIPTORS: Final = Path("/dev/fd")
_LOOK_S: Final = 0.25
_SOON_S: Final = 0.05
"""Until the next look while connections come and go."""
_SHARE: Final = 20
"""After a look, so many times as long as it took is waited: looking takes a twentieth of a core at most."""


def let_in(limits: Limits) -> int:
    """Return how many connections gRPC is to let in at once: the limit, and those that are not looked at yet."""
    return limits.connections + max(1, limits.connections // 4)


class ConnectionWatch:
    """Watch the connections of a port that gRPC has bound in this process: `start` and `stop`, each once."""

    def __init__(self, limits: Limits) -> None:
        self._first_s = limits.header_s
        self._peers: Peers[_End] = Peers(limits.connections, limits.connections_per_peer)
        self._known: set[_End] = set()
        self._since: dict[_End, float] = {}
        """When those whose first RPC has not come were first seen."""
        self._heard: set[str] = set()
        """The ends of established connections, as gRPC writes them."""
        self._unwanted: set[_End] = set()
        """To be shut down at the next look: their RPC is answered first."""
        self._shut: set[_End] = set()
        """Shut down, but not yet closed by gRPC."""
        self._looked_s = 0.0
        self._lock = Lock()
        self._port = 0
        self._stop = Event()
        self._thread = Thread(target=self._run, name="otlp-grpc-connections", daemon=True)

    def start(self, port: int) -> None:
        """Look from now on."""
        self._port = port
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def established(self, peer: str) -> bool:
        """Note an RPC from `peer`, in gRPC's words; return whether its connection may stay. From any thread."""
        if peer in self._heard:
            return True
        end = _end(peer)
        with self._lock:
            stays = self._establish(end)
            if not stays and monotonic_s() - self._looked_s > _SOON_S:  # some may have gone since
                self._look()
                stays = self._establish(end)
            if stays:
                self._heard.add(peer)
            else:
                self._unwanted.add(end)
        return stays

    def _run(self) -> None:
        wait_s = _LOOK_S
        while not self._stop.wait(wait_s):
            began_s = monotonic_s()
            with self._lock:
                changed = self._look()
            wait_s = max(_SOON_S if changed else _LOOK_S, (monotonic_s() - began_s) * _SHARE)

    # With the lock held.

    def _establish(self, end: _End) -> bool:
        if end not in self._known:
            self._arrive(end)
        self._since.pop(end, None)
        return self._peers.established(end)

    def _arrive(self, end: _End) -> None:
        admitted, displaced = self._peers.arrived(end, peer_of(end[0]))
        self._unwanted.update(displaced)
        if not admitted:
            self._unwanted.add(end)
        self._known.add(end)
        self._since[end] = monotonic_s()

    def _look(self) -> bool:
        """Compare what is known with the sockets that there are; return whether any came or went."""
        there = self._there()
        self._shut &= there.keys()
        came = [end for end in there if end not in self._known and end not in self._shut]
        gone = self._known - there.keys()
        for end in gone:
            self._forget(end)
        if gone:
            self._heard = {peer for peer in self._heard if _end(peer) in there}
        for end in came:
            self._arrive(end)
        now_s = self._looked_s = monotonic_s()
        for end, since_s in self._since.items():
            if now_s - since_s > self._first_s:
                self._unwanted.add(end)
        for end in self._unwanted & there.keys():
            self._forget(end)
            _shut_down(there[end], end)
            self._shut.add(end)
        self._unwanted.clear()
        return bool(came or gone)

    def _forget(self, end: _End) -> None:
        self._known.discard(end)
        self._since.pop(end, None)
        self._peers.left(end)

    def _there(self) -> dict[_End, int]:
        """Return the other ends of all connections with the descriptor of each, oldest descriptor first."""
        found = {}
        for fd, one in _sockets(self._port):
            with suppress(OSError):  # one that listens has no other end
                found[_name(one.getpeername())] = fd
        return found


def _shut_down(fd: int, end: _End) -> None:
    with suppress(OSError), _copy(fd) as one:
        if _name(one.getpeername()) == end:  # else it was closed, and its number is another's now
            one.shutdown(socket.SHUT_RDWR)


def _sockets(port: int) -> Iterator[tuple[int, socket.socket]]:
    """Yield this process's sockets of a port, each as a copy that is closed afterwards, and its descriptor."""
    for fd in sorted(int(path.name) for path in _DESCRIPTORS.iterdir()):
        with suppress(OSError), _copy(fd) as one:  # what is no socket
            if one.getsockname()[1:2] == (port,):
                yield fd, one


@contextmanager
def _copy(fd: int) -> Iterator[socket.socket]:
    copied = os.dup(fd)
    try:
        # The family is said, so that none is looked up; addresses come in that of the socket all the same.
        one = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=copied)
    except OSError:
        os.close(copied)
        raise
    with one:
        yield one


def _name(address: tuple[str, int]) -> _End:
    return address[0].removeprefix("::ffff:"), address[1]


def peer_host(peer: str) -> str:
    """Return the address of a peer in gRPC's words, `peer` itself where it has none."""
    return _end(peer)[0] or peer


def _end(peer: str) -> _End:
    """Return the end that gRPC names: `ipv4:127.0.0.1:80`, `ipv6:%5B::1%5D:80`."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0
