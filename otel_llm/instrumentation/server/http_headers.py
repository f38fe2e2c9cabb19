"""The headers of an HTTP message as ASGI and WSGI allow them: any iterable, of anything like bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from otel_llm.instrumentation.parse.http_body import coding_of
from otel_llm.instrumentation.parse.sse_chunks import media_type

if TYPE_CHECKING:
    Headers = Iterable[tuple[bytes, bytes]]


def octets(value: object) -> bytes:
    """Return the bytes of a header, or of a piece of a body; of anything else none."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("latin-1", "replace")
    try:
        return bytes(memoryview(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return b""


def kept(headers: object) -> object:
    """Return headers that may be read more than once: themselves if they are a list or a tuple, else a list of them.

    Anything that is not iterable stays what it is. Errors of the iterable are its owner's, and pass through.
    """
    if not isinstance(headers, Iterable):
        return headers
    if isinstance(headers, list | tuple) and not any(isinstance(pair, Iterator) for pair in headers):
        return headers
    return [tuple(pair) if isinstance(pair, Iterator) else pair for pair in headers]


def pairs_of(headers: object) -> Headers:
    """Return the names, in lower case, and values of headers; what is no pair is left out."""
    pairs = []
    for pair in headers if isinstance(headers, Iterable) else ():
        try:
            name, value = pair
        except (TypeError, ValueError):
            continue
        pairs.append((octets(name).lower(), octets(value)))
    return pairs


def header(headers: Headers, names: tuple[bytes, ...]) -> str | None:
    """Return the first of the headers with one of these names (lower case), at most 256 characters of it."""
    for name, value in headers:
        if name in names:
            return value.decode("latin-1")[:256]
    return None


def media_type_of(headers: Headers) -> str:
    """Return the content type that a reply's headers state, without its parameters; empty if they state none."""
    return media_type(header(headers, (b"content-type",)) or "")


def content_coding(headers: Headers) -> str:
    """Return the codings that headers state and that change the body, empty if there are none."""
    return coding_of(header(headers, (b"content-encoding",)) or "")
