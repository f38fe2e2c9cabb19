"""Ports for servers that cannot say which port they picked."""

from __future__ import annotations

import os
import random
import socket
from collections import deque
from contextlib import suppress
from pathlib import Path

NEWEST: deque[int] = deque(maxlen=50)
"""Ports that this process was given: more than a test has servers that still start."""


def free_ports(count: int) -> list[int]:
    """Return ports without a listener a moment ago, below those that the system gives to clients.

    A client that tries to connect while the server is down could be given the server's own port otherwise. A server
    binds its port when its process has started, seconds later. So each process of pytest-xdist draws from its own
    ports, and does not return its newest ports again.
    """
    first_of_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    chance = random.SystemRandom()
    found: list[int] = []
    while len(found) < count:
        port = chance.randrange(first_of_clients // 2 + own, first_of_clients, processes)
        if port in NEWEST:
            continue
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
            NEWEST.append(port)
    return found
