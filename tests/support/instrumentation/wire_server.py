"""An HTTP server that answers every POST with given bytes under given headers, and remembers what it was sent.

A GET lists one model, as a relay's probe of a backend asks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Self

from support.collector.http_serving import serving
from support.patience import WAIT_S
from support.sse_server import Gate

EVENT_STREAM: Mapping[str, str] = {"Content-Type": "text/event-stream; charset=utf-8"}

MODELS = b'{"data": [{"id": "m"}]}'


@dataclass
class Sent:
    """One request as the server got it; header names in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class WireServer:
    """Answers with `pieces`, an HTTP chunk each unless `headers` say how the body ends; a context manager."""

    pieces: Sequence[bytes | Gate] = ()
    headers: Mapping[str, str] = field(default_factory=lambda: EVENT_STREAM)
    status: int = 200
    chunked: bool = True
    close: bool = False
    """Whether each connection is closed after its reply."""
    before_headers: Gate | None = None
    requests: list[Sent] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._serving = serving(_handler(self))
        self._port = self._serving.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._serving.__exit__(None, None, None)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"


def _handler(owner: WireServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            owner.requests.append(Sent(self.path, headers, self._body()))
            with contextlib.suppress(ConnectionError, TimeoutError):
                if owner.before_headers is not None:
                    owner.before_headers.opened.wait(WAIT_S)
                self.send_response(owner.status)
                for name, value in owner.headers.items():
                    self.send_header(name, value)
                if owner.close:
                    self.send_header("Connection", "close")
                if owner.chunked:
                    self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for piece in owner.pieces:
                    if isinstance(piece, Gate):
                        piece.opened.wait(WAIT_S)
                    else:
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if owner.chunked else piece)
                if owner.chunked:
                    self.wfile.write(b"0\r\n\r\n")

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(MODELS)))
            self.end_headers()
            self.wfile.write(MODELS)

        def _body(self) -> bytes:
            if "Content-Length" in self.headers:
                return self.rfile.read(int(self.headers["Content-Length"]))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler
