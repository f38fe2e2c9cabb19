"""Headers of HTTP messages that pass through: those that are not for one hop (RFC 9110, 7.6.1), as the bytes they were.

aiohttp reads header bytes that are no UTF-8 as lone surrogates; its own writers would drop these.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from multidict import CIMultiDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "transfer-encoding",
        "upgrade",
    }
)
TRAILER_BYTES: Final = 2**14
"""The most bytes of trailers that are passed on; longer ones are left out."""

_TARGET: Final = re.compile(r"(?:https?://[^/?#]+)?(/[^#]*)", re.IGNORECASE)
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[\t\x20-\x7e\x80-\xff]*")
_LAST_CHUNK: Final = re.compile(rb"0+[ \t]*(?:;.*)?", re.DOTALL)
_NO_TRAILERS: Final = frozenset({*HOP_BY_HOP, "content-length", "host", "trailer"})


def path_of(target: str) -> str | None:
    """Return path and query of a request's target, None for one without a path, which no backend can get.

    A target may be a whole URL (RFC 9112, 3.2.2): its host is ours, like that of `Host`, and is dropped.
    """
    found = _TARGET.fullmatch(target)
    return None if found is None else found[1]


def to_backend(headers: Mapping[str, str], *without: str) -> CIMultiDict[str]:
    """Return a client's headers for a backend; `without`: further ones to leave out (lower case).

    Trailers of an answer are passed on, so a client that takes them may ask for them; those of a request are not.
    """
    sent = end_to_end(headers, "host", "expect", "trailer", *without)
    codings = [value for name, value in headers.items() if name.lower() == "te"]
    if any(one.strip().lower() == "trailers" for value in codings for one in value.split(",")):
        sent.add("TE", "trailers")
    return sent


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


def head_bytes(first: str, headers: Mapping[str, str]) -> bytes:
    """Return the head of a message, with the bytes of its headers as they were read.

    Raises ValueError for a control character, which would end a line.
    """
    lines = [first.encode("utf-8", "surrogateescape")]
    lines += [f"{name}: {value}".encode("utf-8", "surrogateescape") for name, value in headers.items()]
    if any(_CONTROL.search(line) for line in lines):
        raise ValueError("a header has a control character")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def trailers_of(end: bytes) -> Sequence[bytes]:
    """Return the trailer fields in the last bytes of a chunked message; none if these do not reach its last chunk.

    Those that frame or route a message are left out (RFC 9110, 6.5.1).
    """
    fields: list[bytes] = []
    lines = end.split(b"\r\n")
    if lines[-2:] != [b"", b""]:
        return ()
    for line in reversed(lines[:-2]):
        found = _FIELD.fullmatch(line)
        if found is None:
            return fields[::-1] if _LAST_CHUNK.fullmatch(line) else ()
        if found[1].decode("ascii").lower() not in _NO_TRAILERS:
            fields.append(line)
    return ()
