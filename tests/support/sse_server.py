"""A real HTTP server that streams OpenAI-compatible chat completions by script: paced, gated, cut, or failing."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from support.patience import WAIT_S

Json = dict[str, Any]


@dataclass(frozen=True)
class Raw:
    """Bytes for the wire as they are."""

    data: bytes


@dataclass(frozen=True)
class Wait:
    """A pause in the delivery."""

    seconds: float


@dataclass(frozen=True)
class Gate:
    """A pause until the test opens it: pacing without a clock."""

    opened: threading.Event = field(default_factory=threading.Event)

    def open(self) -> None:
        self.opened.set()


@dataclass(frozen=True)
class Cut:
    """The connection breaks here."""


@dataclass(frozen=True)
class BodyEnd:
    """The body ends here, as HTTP would have it, without the API's own end marker."""


Step = Json | Raw | Wait | Gate | Cut | BodyEnd
DONE = Raw(b"data: [DONE]\n\n")


@dataclass(frozen=True)
class Reply:
    """What the server does with one request: a status with an error body, or the steps of a stream."""

    steps: Iterable[Step] = ()
    status: int = 200
    before_headers: Gate | None = None
    message: str = "no"


def chunk(delta: Json | None = None, *, index: int = 0, finish: str | None = None, **more: Any) -> Json:
    """Return a chat completion chunk of one choice; `token_ids` belongs to the choice, other extras to the chunk."""
    choice: Json = {"index": index, "delta": delta or {}, "finish_reason": finish}
    if "token_ids" in more:
        choice["token_ids"] = more.pop("token_ids")
    return {**_envelope(), "choices": [choice], **more}


def usage(completion_tokens: int, prompt_tokens: int = 7) -> Json:
    """Return the closing chunk that carries the usage and no choice."""
    return {**_envelope(), "choices": [], "usage": usage_of(completion_tokens, prompt_tokens)}


def usage_of(completion_tokens: int, prompt_tokens: int = 7) -> Json:
    total = completion_tokens + prompt_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


def _envelope() -> Json:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "served"}


def words(count: int, index: int = 0) -> list[Step]:
    """Return chunks of one word of content each."""
    return [chunk({"content": f"w{i} "}, index=index) for i in range(count)]


def whole(count: int) -> Reply:
    """Return a reply of `count` words that ends as it should."""
    return Reply([chunk({"role": "assistant", "content": ""}), *words(count), chunk(finish="stop"), DONE])


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # of a queue that is full a client learns nothing: it tries again a second later
    accepted = 0

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and count it."""
        found = super().get_request()
        self.accepted += 1
        return found

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away between two requests."""


class SseServer:
    """Serves `replies`, chosen by the request's model; a context manager. `requests` and `headers` are what it got."""

    def __init__(self, replies: Mapping[str, Reply | Callable[[Json], Reply]] | None = None) -> None:
        self.replies: dict[str, Reply | Callable[[Json], Reply]] = dict(replies or {})
        self.requests: list[Json] = []
        self.headers: list[list[tuple[str, str]]] = []
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        """Return the base URL for an OpenAI client."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/v1"

    @property
    def connections(self) -> int:
        """Return how many connections were accepted."""
        return self._server.accepted

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Listen no more; may be called twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def reply_to(self, request: Json) -> Reply:
        """Return the reply that the request's model names."""
        self.requests.append(request)
        reply = self.replies[request["model"]]
        return reply if isinstance(reply, Reply) else reply(request)


def _handler(owner: SseServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            owner.headers.append([(name.lower(), value) for name, value in self.headers.items()])
            reply = owner.reply_to(body)
            # The client may be gone at any step: that is what half of the tests are about.
            with contextlib.suppress(ConnectionError, TimeoutError):
                if reply.before_headers is not None:
                    reply.before_headers.opened.wait(WAIT_S)
                if reply.status == 200:
                    self.stream(reply.steps)
                else:
                    self.refuse(reply.status, reply.message)

        def refuse(self, status: int, message: str) -> None:
            body = json.dumps({"error": {"message": message, "type": "test", "code": None}}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def stream(self, steps: Iterable[Step]) -> None:
            self.send_response(200)
            bedrock = self.path.endswith(("/converse-stream", "/invoke-with-response-stream"))
            self.send_header("Content-Type", "application/vnd.amazon.eventstream" if bedrock else "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for step in steps:
                if isinstance(step, Wait):
                    time.sleep(step.seconds)
                elif isinstance(step, Gate):
                    step.opened.wait(WAIT_S)
                elif isinstance(step, Cut):
                    self.cut()
                    return
                elif isinstance(step, BodyEnd):
                    break
                else:
                    data = step.data if isinstance(step, Raw) else b"data: " + json.dumps(step).encode() + b"\n\n"
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                    self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        def cut(self) -> None:
            # A reset, as from a process that was killed; what was written before is on its way already.
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
            self.connection.shutdown(socket.SHUT_WR)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler
