"""Ports for servers that cannot say which port they picked."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path


def free_ports(count: int) -> list[int]:
    """Return ports without a listener a moment ago, below those that the system gives to clients.

    A client that tries to connect while the server is down could be given the server's own port otherwise.
    """
    first_of_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    chance = random.SystemRandom()
    found: set[int] = set()
    while len(found) < count:
        port = chance.randrange(first_of_clients // 2, first_of_clients)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.add(port)
    return list(found)
