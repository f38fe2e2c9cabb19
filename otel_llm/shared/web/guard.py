"""The checks of a request to the web port: its host name, and its token."""

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
    """Allowed host names, besides `localhost` and IP addresses; None: all. This stops DNS rebinding: a page of another
    site can make a browser send requests here, but only with its own name."""
    tokens: Tokens | None = None
    """Each request must have one of them; None: it need not."""

    def check(self, headers: Headers) -> None:
        """Check the headers of a request.

        Raises:
            ForbiddenError: its host name is not allowed.
            UnauthenticatedError: it has no known token.
        """
        self.check_host(headers)
        if self.tokens is not None:
            self.tokens.check(headers.getlist("authorization"))

    def check_host(self, headers: Headers) -> None:
        """Check the host name alone, for an answer without telemetry.

        Raises:
            ForbiddenError: it is not allowed.
        """
        if self.names is not None:
            for header in headers.getlist("host"):
                name = host_name(header)
                if name not in self.names and name != "localhost" and _ip(name) is None:
                    raise ForbiddenError("not under this name: list it in the settings file (web: hosts)")


def names_of(address: Address, more: frozenset[str]) -> frozenset[str] | None:
    """Return the names of a `Guard`; None (all names) where none is configured and other machines can connect."""
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
    """Return whether only this machine can reach a listener at `host`."""
    address = _ip(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _ip(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
