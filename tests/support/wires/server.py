"""The server of all wires: chooses the reply, paces its frames, ends it as asked, and remembers what it received.

`python -m support.wires.server --port 0` prints one line with its URL and serves until it is stopped. A test in the
same process uses `WireServer` as a context manager. The reply is chosen by, in this order: the header `x-wire-reply`,
the model's name (an entry of `replies`, or the grammar of `reply.named`), the server's default.
`GET /_received` gives what was received as JSON, and `DELETE /_received` forgets it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from support.patience import WAIT_S
from support.wires import (
    anthropic_messages,
    bedrock_runtime,
    cohere,
    gemini,
    ollama,
    openai_chat,
    openai_completions,
    openai_responses,
    tgi,
)
from support.wires.reply import Reply, named, words
from support.wires.stubs import stub
from support.wires.wire import EngineRequest, Frame, Json, Wire

WIRES: tuple[Wire, ...] = tuple(
    wire
    for module in (
        openai_chat,
        openai_completions,
        openai_responses,
        anthropic_messages,
        bedrock_runtime,
        gemini,
        ollama,
        cohere,
        tgi,
    )
    for wire in module.WIRES
)
REPLY_HEADER = "x-wire-reply"


@dataclass
class Received:
    """One request as the server got it; header names in lower case, the last of equal ones.

    `stream`: whether it asked for a stream of a wire. `sent`: the tokens sent so far, of all choices.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: Json
    wire: str | None = None
    stream: bool = False
    sent: int = 0


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away; print the rest, which is a defect of a wire."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


@dataclass
class WireServer:
    """Serves all wires on one port; a context manager.

    `replies`: a model's name, or its last part after a slash, to the reply. `default`: the reply if neither a header
    nor the model's name states one. `received`: what it got, stubs included, in order.
    """

    replies: dict[str, Reply] = field(default_factory=dict)
    default: Reply = field(default_factory=lambda: Reply(words(20)))
    port: int = 0
    received: list[Received] = field(default_factory=list)
    more: tuple[Wire, ...] = ()
    """Wires of this server alone, which come before the others."""

    def __post_init__(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Return the server's URL, without a path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def reply_for(self, asked: EngineRequest, headers: Mapping[str, str]) -> Reply:
        """Return the reply that a request gets."""
        for name in (headers.get(REPLY_HEADER), asked.model):
            if name:
                found = self.replies.get(name) or self.replies.get(name.rpartition("/")[2]) or named(name)
                if found is not None:
                    return found
        return self.default

    def requests_of(self, wire: str) -> list[Received]:
        """Return what was received on one wire."""
        return [one for one in self.received if one.wire == wire]


def _find(path: str, wires: tuple[Wire, ...]) -> tuple[Wire, dict[str, str]] | None:
    for wire in wires:
        if (found := wire.path.fullmatch(path)) is not None:
            return wire, {name: value or "" for name, value in found.groupdict().items()}
    return None


def _paced(reply: Reply, frames: Iterator[Frame]) -> Iterator[Frame]:
    """Yield a reply's frames at its pace, up to the token after which it ends."""
    limit = None if reply.end == "complete" else reply.ends_after
    sent = 0
    due_s = time.monotonic() + reply.first_s
    for frame in frames:
        if limit is not None and sent >= limit and not frame.also:
            return
        if frame.tokens:
            if (gate := reply.gates.get(sent)) is not None:
                gate.wait(WAIT_S)
            time.sleep(max(0.0, due_s - time.monotonic()))
            due_s += reply.pace_s
            sent += frame.tokens
        yield frame


def _handler(owner: WireServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            path, query = self._target()
            body = self._body()
            headers = {name.lower(): value for name, value in self.headers.items()}
            found = None if (said := stub("POST", path, body)) is not None else _find(path, owner.more + WIRES)
            received = Received("POST", self.path, headers, body)
            owner.received.append(received)
            # A client may leave at any time.
            with contextlib.suppress(ConnectionError, TimeoutError):
                if found is None:
                    self._json(404 if said is None else 200, said or {"error": {"message": f"no wire at {path}"}})
                    return
                wire, groups = found
                asked = EngineRequest(path, body, groups, query)
                asked = replace(asked, reply=owner.reply_for(asked, headers))
                received.wire, received.stream = wire.name, wire.streams(asked)
                self._answer(wire, asked, received)

        def do_GET(self) -> None:
            path, _ = self._target()
            if path == "/_received":
                self._json(200, [asdict(one) for one in owner.received])
                return
            said = stub("GET", path, {})
            self._json(404 if said is None else 200, said or {"error": {"message": f"no wire at {path}"}})

        def do_DELETE(self) -> None:
            owner.received.clear()
            self._json(200, {})

        def _target(self) -> tuple[str, dict[str, str]]:
            url = urlsplit(self.path)
            return url.path, dict(parse_qsl(url.query))

        def _body(self) -> Json:
            raw = b""
            if "Content-Length" in self.headers:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
            elif self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    raw += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            with contextlib.suppress(ValueError):
                body = json.loads(raw)
                return body if isinstance(body, dict) else {}
            return {}

        def _json(self, status: int, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _answer(self, wire: Wire, asked: EngineRequest, received: Received) -> None:
            reply = asked.reply
            if reply.status != 200:
                self._json(reply.status, wire.refused(reply.status))
            elif not received.stream:
                self._json(200, wire.whole(asked))
            else:
                self._stream(wire, asked, received)

        def _stream(self, wire: Wire, asked: EngineRequest, received: Received) -> None:
            self.send_response(200)
            self.send_header("Content-Type", wire.content_type(asked))
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for frame in _paced(asked.reply, wire.frames(asked)):
                self._write(frame.data)
                received.sent += frame.tokens + frame.also
            end = asked.reply.end
            if end == "hang":
                self._wait_for_client()
            if end == "error":
                self._write(wire.error(asked))
            if end in {"cut", "hang"}:
                self._reset()
            else:
                self.wfile.write(b"0\r\n\r\n")

        def _write(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

        def _wait_for_client(self) -> None:
            self.connection.settimeout(WAIT_S)
            with contextlib.suppress(OSError):
                self.connection.recv(1)

        def _reset(self) -> None:
            # As from a process that was killed; what was written before is on its way.
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
            self.connection.shutdown(socket.SHUT_WR)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return "Thu, 01 Jan 2026 00:00:00 GMT"  # equal calls get equal headers, which some errors repeat

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--reply", default="tokens-20", help="the default reply, in the grammar of a model's name")
    given = parser.parse_args()
    default = named(given.reply)
    if default is None:
        parser.error(f"--reply {given.reply}: states no reply, see support.wires.reply")
    with WireServer(default=default, port=given.port) as server:
        print(server.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
