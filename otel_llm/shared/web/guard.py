"""The checks of a request to the web port: its host name, and its token."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from otel_llm.shared.errors import ForbiddenError, UnauthenticatedError

if TYPE_CHECKING:
    from otel_llm.shared.web.address import Address
    from otel_llm.shared.web.tokens import KnownTokens


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

    names: frozenset[str] = frozenset()
    """Allowed host names, besides `localhost` and IP addresses. This stops DNS rebinding: a page of another site can
    make a browser send requests here, but only with its own name. A browser sends an address as the host name only if
    its URL has that address, so a page at an address cannot be rebound; behind a NAT the address is not a local one."""
    tokens: KnownTokens | None = None
    """Each request must have one of them, or one of `operators`; None: it need not."""
    operators: KnownTokens | None = None
    """Tokens that show all tenants; None: the others do, if all are of one tenant."""

    def check(self, headers: Headers) -> str | None:
        """Check the headers of a request, and return the tenant that its viewer is confined to; None: all.

        Raises:
            ForbiddenError: its host name is not allowed.
            UnauthenticatedError: it has no known token.
        """
        self.check_host(headers)
        if self.tokens is None:
            return None
        given = headers.getlist("authorization")
        if self.operators is not None:
            with suppress(UnauthenticatedError):
                self.operators.check(given)
                return None
        tenant = self.tokens.check(given).tenant
        return None if self.operators is None and self.tokens.tenants == {tenant} else tenant

    def check_host(self, headers: Headers) -> None:
        """Check the host name alone, for an answer without telemetry.

        Raises:
            ForbiddenError: it is not allowed.
        """
        for header in headers.getlist("host"):
            name = host_name(header)
            if name not in self.names and name != "localhost" and _ip(name) is None:
                raise ForbiddenError("not under this name: list it in the settings file (web: hosts)")


def names_of(address: Address, configured: frozenset[str]) -> frozenset[str]:
    """Return the names of a `Guard` for a listener: those that are configured, and the one that it listens at."""
    return configured | {address.host.lower()}


def host_name(header: str) -> str:
    """Return the name in a Host header: without port, brackets and a last dot, in lower case."""
    whole = header.strip().lower()
    name, colon, port = whole.rpartition(":")
    if not colon or (port and not port.isdecimal()):
        name = whole
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
