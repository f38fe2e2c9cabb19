"""Bound an HTTP exchange as a whole: the connection, TLS, the request and the answer share one deadline.

The timeout of `requests` bounds each wait for bytes, so a server that sends a byte now and then, as a status line,
headers or a body, holds the exchange for hours. Here each wait has what is left of the exchange's time. Only the
resolution of a name has the system's own timeout (`man resolv.conf`).
"""

from __future__ import annotations

import io
import math
import socket
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError
from urllib3.util.connection import allowed_gai_family

from otel_llm.export.clock import monotonic_s

if TYPE_CHECKING:
    from urllib3 import HTTPConnectionPool, PoolManager

ANSWER_BYTES: Final = 64 * 1024
"""No more of an answer's body is used."""
MOST_BYTES: Final = 4 * ANSWER_BYTES
"""No more bytes are read in an exchange, headers and framing included; then it fails."""
_until_s: ContextVar[float] = ContextVar("otel_llm_exchange_until_s", default=math.inf)
"""The deadline of the exchange that this thread begins, by `monotonic_s`."""


def bounded_session() -> requests.Session:
    """Return a session whose timeouts are those of whole exchanges."""
    made = requests.Session()
    for scheme in ("http://", "https://"):
        made.mount(scheme, BoundedAdapter())
    return made


class BoundedAdapter(HTTPAdapter):
    """An adapter for which `timeout` is the time of the whole exchange, its answer's body included."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Create the pools of direct connections."""
        super().init_poolmanager(*args, **kwargs)
        _bound(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        """Return the pools of connections by a proxy."""
        manager = super().proxy_manager_for(proxy, **kwargs)
        _bound(manager)
        return manager

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: dict[str, str] | None = None,
    ) -> requests.Response:
        """Send a request and return the answer; its body is read later, within the same deadline."""
        parts = timeout if isinstance(timeout, tuple) else (timeout,)
        outer = _until_s.set(math.inf if None in parts else monotonic_s() + sum(parts))
        try:
            return super().send(request, stream, timeout, verify, cert, proxies)
        finally:
            _until_s.reset(outer)


def _bound(manager: PoolManager) -> None:
    """Make the pools of a manager open bounded connections."""
    manager.pool_classes_by_scheme = {
        scheme: _bounded_pool(pool) for scheme, pool in manager.pool_classes_by_scheme.items()
    }


@cache
def _bounded_pool(pool: type[HTTPConnectionPool]) -> type[HTTPConnectionPool]:
    plain = pool.ConnectionCls
    if issubclass(plain, _BoundedConnection):
        return pool
    # A connection by SOCKS resolves and connects in its own way.
    direct = getattr(plain, "_new_conn", None) is HTTPConnection._new_conn
    base = _DirectConnection if direct else _BoundedConnection
    return type(pool.__name__, (pool,), {"ConnectionCls": type(plain.__name__, (base, plain), {})})


class _BoundedConnection(HTTPConnection):
    """A connection, plain or with TLS, whose every exchange ends at its deadline."""

    def connect(self) -> None:
        """Connect; the handshake of TLS has the time that was left when it began."""
        try:
            super().connect()
        except TimeoutError as error:  # of a handshake: no request was sent
            raise ConnectTimeoutError(self, f"Connection to {self.host} timed out") from error
        self.sock = _TimedSocket(self.sock)

    def request(self, *args: Any, **kwargs: Any) -> None:
        """Send a request, also as a later one of this connection."""
        if isinstance(self.sock, _TimedSocket):
            self.sock.begin()
        super().request(*args, **kwargs)

    def _tunnel(self) -> None:
        """Ask a proxy for the connection."""
        plain = self.sock
        self.sock = _TimedSocket(plain)
        super()._tunnel()
        plain.settimeout(left_s())
        self.sock = plain


class _DirectConnection(_BoundedConnection):
    """A bounded connection to an address of its host's name."""

    def _new_conn(self) -> socket.socket:
        """Connect to the first address that answers; all of them share the time."""
        problem: Exception = OSError("the name has no address")
        try:
            found = socket.getaddrinfo(self._dns_host.strip("[]"), self.port, allowed_gai_family(), socket.SOCK_STREAM)
            for family, kind, protocol, _, address in found:
                made = socket.socket(family, kind, protocol)
                try:
                    for option in self.socket_options or ():
                        made.setsockopt(*option)
                    made.settimeout(left_s())
                    made.connect(address)
                    made.settimeout(left_s())
                except OSError as error:
                    made.close()
                    problem = error
                else:
                    return made
            left_s()
        except TimeoutError as error:
            raise ConnectTimeoutError(self, f"Connection to {self.host} timed out") from error
        except (OSError, UnicodeError) as error:
            problem = error
        raise NewConnectionError(self, f"Failed to establish a new connection: {problem}") from problem


class _TimedSocket:
    """A socket whose operations have what is left of its exchange's time and bytes."""

    def __init__(self, plain: socket.socket) -> None:
        self._plain = plain
        self.begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def begin(self) -> None:
        """Begin an exchange with the deadline of this thread's."""
        self._until_s = _until_s.get()
        self._left_bytes = MOST_BYTES

    def sendall(self, data: bytes) -> None:
        """Send all bytes; raises TimeoutError."""
        rest = memoryview(data).cast("B")
        while rest:
            self.arm()
            rest = rest[self._plain.send(rest) :]

    def makefile(self, mode: str = "rb", buffering: int | None = None, **kwargs: Any) -> io.BufferedReader:  # noqa: ARG002
        """Return a file to read the answer from."""
        return io.BufferedReader(_TimedReader(self, self._plain.makefile("rb", buffering=0)))

    def arm(self) -> None:
        """Give the next operation the time that is left; raises TimeoutError if none is."""
        self._plain.settimeout(left_s(self._until_s))

    def spend(self, count: int) -> None:
        """Count bytes that were read; raises OSError beyond the limit."""
        self._left_bytes -= count
        if self._left_bytes < 0:
            raise OSError(f"an answer of more than {MOST_BYTES} bytes")


class _TimedReader(io.RawIOBase):
    """The raw file of a timed socket."""

    def __init__(self, timed: _TimedSocket, raw: socket.SocketIO) -> None:
        self._timed = timed
        self._raw = raw

    def readable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._raw.fileno()

    def readinto(self, buffer: Any) -> int | None:
        """Read what has come; raises TimeoutError, and OSError beyond the limit of bytes."""
        self._timed.arm()
        count = self._raw.readinto(buffer)
        self._timed.spend(count or 0)
        return count

    def close(self) -> None:
        """Close the file; the socket is closed once the connection has closed it, too."""
        self._raw.close()
        super().close()


def left_s(until_s: float | None = None) -> float | None:
    """Return the time that an exchange has left, in seconds, None without a deadline.

    `until_s`: its deadline by `monotonic_s`; None: that of this thread's exchange.

    Raises:
        TimeoutError: none is left.
    """
    until_s = _until_s.get() if until_s is None else until_s
    if until_s == math.inf:
        return None
    left = until_s - monotonic_s()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
