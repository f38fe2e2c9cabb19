"""Refuse to send to one of our own doors: what we send would come back for ever."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

from otel_llm.shared.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_llm.shared.otlp_target import OtlpTarget
    from otel_llm.shared.web.address import Address


def refuse_own_door(target: OtlpTarget, doors: Iterable[Address]) -> None:
    """Raise StartError when a target is one of our own doors: what we send would come back for ever.

    `doors`: where they listen, with the ports that were picked. A host that has no address now is let through; so is a
    way round through a proxy or another collector, which cannot be seen from here.
    """
    doors = [door for door in doors if door.port == target.port]
    if not doors:
        return
    theirs = _addresses(target.host)
    for door in doors:
        ours = _addresses(door.host)
        everywhere = any(address.is_unspecified for address in ours)
        here = any(address.is_unspecified or (everywhere and _is_local(address)) for address in theirs)
        if here or theirs & ours:
            raise StartError(
                f"{target.endpoint} is this collector's own door {door}: it would send to itself for ever; "
                "name another endpoint"
            )


_IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def _addresses(host: str) -> set[_IPAddress]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {_plain(ipaddress.ip_address(str(where[0]).partition("%")[0])) for *_, where in found}


def _plain(address: _IPAddress) -> _IPAddress:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_local(address: _IPAddress) -> bool:
    """Return whether this machine has an address: only then can a socket be bound to it."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
