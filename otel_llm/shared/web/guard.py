"""What the doors ask of a request before they answer it: a name that is ours, and a token."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from otel_llm.shared.errors import ForbiddenError

if TYPE_CHECKING:
    from otel_llm.shared.web.address import Address
    from otel_llm.shared.web.tokens import Tokens


class Headers(Protocol):
    """The headers of a request."""

    def getlist(self, key: str) -> list[str]:
        """Return all values of a header."""


@dataclass(frozen=True, slots=True)
class Guard:
    """The checks of the web ports of `collect` (Starlette) and `relay` (aiohttp).

    Starlette's TrustedHostMiddleware cannot say this rule: it takes a list of names, while any IP address passes here;
    it answers 400 instead of 403, also to a request without a Host, which no browser sends; and it lets no path through
    unchecked, as probes of `/healthz` need.
    """

    names: frozenset[str] | None = None
    """Host names under which it may be asked, besides `localhost` and any IP address; None: all. A page of another site
    can make a browser ask us under that site's name, which it let point here (DNS rebinding), not under one of ours."""
    tokens: Tokens | None = None
    """Of which each request must bring one; None: none."""

    def check(self, headers: Headers) -> None:
        """Raise ForbiddenError or UnauthenticatedError for a request that must not be answered."""
        if self.names is not None:
            for header in headers.getlist("host"):
                name = host_name(header)
                if name not in self.names and name != "localhost" and _ip(name) is None:
                    raise ForbiddenError("not under this name: list it in the settings file (web: hosts)")
        if self.tokens is not None:
            self.tokens.check(headers.getlist("authorization"))


def names_of(address: Address, more: frozenset[str]) -> frozenset[str] | None:
    """Return the names of a `Guard`: those configured; all where none is and not only this machine can ask."""
    if not more and not is_loopback(address.host):
        return None
    return more | {address.host.lower()}


def host_name(header: str) -> str:
    """Return the name in a Host header: without port, brackets and a last dot, in lower case."""
    name, colon, port = header.strip().lower().rpartition(":")
    if not colon or "]" in port:
        name = header.strip().lower()
    return name.removeprefix("[").removesuffix("]").removesuffix(".")


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach a door at `host`."""
    address = _ip(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _ip(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
