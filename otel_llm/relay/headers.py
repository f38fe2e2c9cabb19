"""What of a request goes on to a backend: its path, and the headers that are not for one hop (RFC 9110, 7.6.1)."""

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
    """Return path and query of a request's target, None for one without a path, which no backend is asked for.

    A target may be a whole URL (RFC 9112, 3.2.2): the host in it is ours, like that of `Host`, and does not go on.
    """
    found = _TARGET.fullmatch(target)
    return None if found is None else found[1]


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
