"""The clients of a relay: each is known by its token, else by its address, and has a share of what all of them use."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_plus

from multidict import CIMultiDict

from otel_llm import semconv
from otel_llm.core.fair_shares import has_room
from otel_llm.instrumentation.request.propagation import SLO_CLASS_HEADER
from otel_llm.shared.web.peers import peer_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from otel_llm.shared.web.tokens import Bearer

BAGGAGE: Final = "baggage"


@dataclass(frozen=True, slots=True)
class Caller:
    """One client; `classes` are those that it may name, None: all."""

    name: str
    classes: frozenset[str] | None = None

    def raw_headers(self, pairs: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return a request's headers, without a class that the client may not name: it then counts as none."""
        if self.classes is None:
            return list(pairs)
        found = [(name, self._left(name.decode("latin-1"), value.decode("latin-1"))) for name, value in pairs]
        return [(name, value.encode("latin-1")) for name, value in found if value is not None]

    def headers(self, pairs: Mapping[str, str]) -> CIMultiDict[str]:
        """Return the same of decoded headers."""
        found = [(name, self._left(name, value)) for name, value in pairs.items()]
        return CIMultiDict([(name, value) for name, value in found if value is not None])

    def _left(self, name: str, value: str) -> str | None:
        """Return what is left of a header."""
        if name.lower() == SLO_CLASS_HEADER:
            return value if self._may_name(value) else None
        if name.lower() == BAGGAGE:
            return ",".join(member for member in value.split(",") if self._may_carry(member)) or None
        return value

    def _may_carry(self, member: str) -> bool:
        key, _, value = member.partition("=")
        return unquote_plus(key).strip() != semconv.SLO_CLASS or self._may_name(unquote_plus(value.partition(";")[0]))

    def _may_name(self, stated: str) -> bool:
        return self.classes is None or stated.strip() in self.classes


def caller_of(host: str, bearer: Bearer | None, classes: Mapping[str, frozenset[str]]) -> Caller:
    """Return the client at an address, with a token if it has one; `classes`: by the names before the tokens.

    If there are any, a client without may name none.
    """
    if bearer is None:
        return Caller(peer_of(host))
    return Caller(bearer.digest.hex(), classes.get(bearer.tenant, frozenset()) if classes else None)


class Shares:
    """A limited amount, `most`, that clients share; one client leaves an eighth to the others."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._by_caller: Counter[str] = Counter()

    def take(self, caller: Caller, amount: int = 1, *, leaving: int = 0) -> bool:
        """Take an amount for a client, unless that is more than there is, or than its share; return whether it has.

        `leaving`: what others are about to give back.
        """
        if not self.has_room(caller, amount, leaving=leaving):
            return False
        self.taken += amount
        self._by_caller[caller.name] += amount
        return True

    def has_room(self, caller: Caller, amount: int = 1, *, leaving: int = 0) -> bool:
        """Tell whether `take` would take it."""
        return has_room(self._by_caller[caller.name], self.taken - leaving, self.most, amount)

    def give_back(self, caller: Caller, amount: int = 1) -> None:
        """Give back an amount that was taken."""
        self.taken -= amount
        self._by_caller[caller.name] -= amount
        if not self._by_caller[caller.name]:
            del self._by_caller[caller.name]
