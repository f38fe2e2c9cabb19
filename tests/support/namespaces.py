"""Commands with mounts of their own (a full disk, a file system that cannot be written to) or their own network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from support.requirements import skip_without

LOOPBACK = """
import fcntl, socket, struct, sys
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1
with socket.socket() as one:
    fcntl.ioctl(one, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
print("up", flush=True)
sys.stdin.read()
"""
"""Keeps a network namespace until its standard input ends."""


def in_a_namespace_of_its_own() -> list[str]:
    """Return the start of a command with private mounts; skip the test if the kernel does not allow them."""
    for command in (["unshare", "-m"], ["unshare", "-Urm"]):
        tried = [*command, "mount", "-t", "tmpfs", "none", "/mnt"]
        if not subprocess.run(tried, capture_output=True, check=False).returncode:
            break
    else:
        skip_without("mount-namespace")
    return command


@contextmanager
def in_a_network_of_its_own() -> Iterator[list[str]]:
    """Give the start of commands that share a network with nothing but a loopback, so that all of its ports are free.

    Skip the test if the kernel does not allow one.
    """
    for flags, enter in (("-n", ["-n"]), ("-Urn", ["-U", "--preserve-credentials", "-n"])):
        command = ["unshare", flags, sys.executable, "-c", LOOPBACK]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet) as holder:
            assert holder.stdout is not None
            if holder.stdout.readline():
                yield ["nsenter", "-t", str(holder.pid), *enter]
                return
    skip_without("network-namespace")
