"""Addresses of listeners: `HOST:PORT`, listening sockets, and messages where an address cannot be bound."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from typing import Final

from otel_llm.shared.errors import AddressError

_MAX_PORT: Final = 65535


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port; port 0: the system picks a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Return the address of `HOST:PORT` or `[IPV6]:PORT`.

    Raises:
        AddressError: the text is no address.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > _MAX_PORT:
        raise AddressError(f"{text!r} is no address: write HOST:PORT, for example 127.0.0.1:4317 or [::1]:0")
    return Address(host, int(port))


def listen(address: Address, option: str) -> socket.socket:
    """Return a socket that listens at `address`; `option`: the command's flag for it, for the message.

    Raises:
        AddressError: the port is in use, or the address is not this machine's.
    """
    made: socket.socket | None = None
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        # It permits no second listener (SO_REUSEPORT does); it ignores past connections in TIME_WAIT.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
        made.listen(1024)
    except OSError as error:
        if made is not None:
            made.close()
        raise refused_address(address, option, error) from error
    return made


def refused_address(address: Address, option: str, error: OSError) -> AddressError:
    """Return the error of a listener that cannot be bound, with its remedy."""
    if error.errno == errno.EADDRINUSE:
        return AddressError(
            f"{address} is in use (another collector?): stop what listens there, or choose {option} HOST:PORT"
            " (port 0 picks a free one)"
        )
    reason = error.strerror or str(error)
    return AddressError(f"cannot listen at {address}: {reason}: choose another address with {option} HOST:PORT")
