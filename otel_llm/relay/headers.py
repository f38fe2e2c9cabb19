"""Headers of HTTP messages that pass through: those that are not for one hop (RFC 9110, 7.6.1), as the bytes they were.

aiohttp reads header bytes that are no UTF-8 as lone surrogates; its own writers would drop these.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Final

from multidict import CIMultiDict

from otel_llm.instrumentation.request.propagation import SLO_CLASS_HEADER

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
_NO_TRAILERS: Final = frozenset(
    {
        *HOP_BY_HOP,
        *("content-length", "content-encoding", "content-range", "content-type", "host", "trailer"),
        *("authorization", "cookie", "set-cookie", "expect", "range", "max-forwards"),
        *("traceparent", "tracestate", "baggage", SLO_CLASS_HEADER),
    }
)
"""Fields that frame, route or authorize a message, or say how it is read: they count in its head only."""


def path_of(target: str) -> str | None:
    """Return path and query of a request's target, None for one without a path, which no backend can get.

    A target may be a whole URL (RFC 9112, 3.2.2): its host is ours, like that of `Host`, and is dropped.
    """
    found = _TARGET.fullmatch(target)
    return None if found is None else found[1]


def to_backend(headers: Mapping[str, str], *without: str) -> CIMultiDict[str]:
    """Return a client's headers for a backend; `without`: further ones to leave out (lower case).

    A client that takes trailers of an answer may ask for them. Which ones a request has, its body says: `Trailer` goes.
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


class Newest:
    """The newest bytes of a connection, as many as trailers may have."""

    __slots__ = ("_count", "_parts")

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def clear(self) -> None:
        """Forget them: another message begins."""
        self._parts.clear()
        self._count = 0

    def add(self, data: bytes) -> None:
        """Note what was received."""
        data = data[-TRAILER_BYTES:]  # an idle connection keeps no more
        self._parts.append(data)
        self._count += len(data)
        while self._count - len(self._parts[0]) > TRAILER_BYTES:
            self._count -= len(self._parts.popleft())

    def trailers(self) -> Sequence[bytes]:
        """Return the trailers of the chunked body that has just ended; see `trailers_of`."""
        return trailers_of(b"".join(self._parts))


def names_of(trailers: Sequence[bytes]) -> str:
    """Return the value of `Trailer` for these fields."""
    return ", ".join(one.partition(b":")[0].decode("ascii") for one in trailers)


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
