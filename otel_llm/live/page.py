"""The files of the live page, and the headers of every answer of a web port.

The files hold no telemetry, so they need no token: a browser sends none when it opens an address. The page's script
fetches the events with the token that its user types in.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

PIECE_BYTES: Final = 65536
"""A long answer is written in pieces of this size, each when the last was read."""
PAGE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""The headers of every answer of the web port: an answer that is opened as a page runs and loads nothing."""
FILE_HEADERS: Final = {
    **PAGE_HEADERS,
    # Its own scripts, style and events; no inline code, no other site. Trusted types: text never becomes markup.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'",
}
"""The headers of the files of the page."""
EVENTS_PATH: Final = "/v1/events"
EVENTS_TYPE: Final = "text/event-stream; charset=utf-8"

_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_PREFIX: Final = "/live/"


class StaticFile(NamedTuple):
    """One file of the page."""

    content: bytes
    media_type: str


@cache
def static_files() -> dict[str, StaticFile]:
    """Return the files of the page by their path on the web port; `/` is the page itself."""
    found = {"/": StaticFile((_FOLDER / "index.html").read_bytes(), _TYPES[".html"])}
    for path in sorted(_FOLDER.iterdir()):
        if path.suffix in _TYPES and path.name != "index.html":
            found[_PREFIX + path.name] = StaticFile(path.read_bytes(), _TYPES[path.suffix])
    return found
