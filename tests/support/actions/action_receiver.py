"""A receiver of actions on this machine: real HTTP, keeps the requests, answers as a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.collector.http_serving import serving


@dataclass(frozen=True)
class Came:
    """One request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Say:
    """An answer; `drop`: none at all, the connection is closed."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    drop: bool = False


@dataclass
class Receiver:
    """The requests in order of arrival; `answer` is asked for each, with how many came before it."""

    answer: Callable[[Came, int], Say] = lambda came, before: Say()
    came: list[Came] = field(default_factory=list)
    port: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ids(self) -> list[str]:
        with self.lock:
            return [one.headers["webhook-id"] for one in self.came]


@contextmanager
def receiving(receiver: Receiver) -> Iterator[Receiver]:
    """Serve on a free port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def take(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            came = Came(self.command, self.path, headers, body)
            with receiver.lock:
                before = len(receiver.came)
                receiver.came.append(came)
            said = receiver.answer(came, before)
            if said.drop:
                self.close_connection = True
                return
            self.send_response(said.status)
            for name, value in said.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(said.body)))
            self.end_headers()
            self.wfile.write(said.body)

        def do_GET(self) -> None:
            self.take()

        def do_POST(self) -> None:
            self.take()

        def do_DELETE(self) -> None:
            self.take()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with serving(Handler) as receiver.port:
        yield receiver
