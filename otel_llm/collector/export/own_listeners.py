"""The check that no target is a listener of this collector."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

from otel_llm.config.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_llm.config.otlp_target import OtlpTarget
    from otel_llm.shared.web.address import Address


def refuse_own_listener(target: OtlpTarget, listeners: Iterable[Address]) -> None:
    """Refuse a target that is a listener of this collector: every export would be forwarded for ever.

    `listeners`: their addresses, with the ports that the system picked. A host that does not resolve now passes; so
    does a circle through a proxy or another collector, which is not visible from here.

    Raises:
        StartError: it is.
    """
    listeners = [listener for listener in listeners if listener.port == target.port]
    if not listeners:
        return
    theirs = _addresses(target.host)
    for listener in listeners:
        ours = _addresses(listener.host)
        everywhere = any(address.is_unspecified for address in ours)
        here = any(address.is_unspecified or (everywhere and _is_local(address)) for address in theirs)
        if here or theirs & ours:
            raise StartError(
                f"{target.endpoint} is this collector's own listener {listener}: it would send to itself for ever; "
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
