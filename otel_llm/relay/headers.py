"""Which headers of a message are for the next hop only, and which go on (RFC 9110, section 7.6.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from multidict import CIMultiDict

if TYPE_CHECKING:
    from collections.abc import Mapping

HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


def to_backend(headers: Mapping[str, str], *without: str) -> CIMultiDict[str]:
    """Return a client's headers as a backend gets them; `without`: more that it does not get (lower case)."""
    return end_to_end(headers, "host", "expect", *without)


def end_to_end(headers: Mapping[str, str], *without: str) -> CIMultiDict[str]:
    """Return the headers that go on, in their order, repeated ones too; `without`: more that do not (lower case)."""
    named: set[str] = set()
    kept: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        if name.lower() == "connection":
            named.update(one.strip().lower() for one in value.split(","))
    dropped = HOP_BY_HOP | named | set(without)
    for name, value in headers.items():
        if name.lower() not in dropped:
            kept.add(name, value)
    return kept
