"""The path and headers of a request to a backend: those that are not for one hop (RFC 9110, 7.6.1)."""

from __future__ import annotations

import re
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

_TARGET: Final = re.compile(r"(?:https?://[^/?#]+)?(/[^#]*)", re.IGNORECASE)


def path_of(target: str) -> str | None:
    """Return path and query of a request's target, None for one without a path, which no backend can get.

    A target may be a whole URL (RFC 9112, 3.2.2): its host is ours, like that of `Host`, and is dropped.
    """
    found = _TARGET.fullmatch(target)
    return None if found is None else found[1]


def to_backend(headers: Mapping[str, str], *without: str) -> CIMultiDict[str]:
    """Return a client's headers for a backend; `without`: further ones to leave out (lower case)."""
    return end_to_end(headers, "host", "expect", *without)


def end_to_end(headers: Mapping[str, str], *without: str) -> CIMultiDict[str]:
    """Return the end-to-end headers in their order, repeated ones too; `without`: further ones to leave out."""
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
