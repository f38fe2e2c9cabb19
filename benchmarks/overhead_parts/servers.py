"""Two processes beside the measured one: a sink for OTLP, and a streaming server that knows when it sent what."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from concurrent import futures
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADERS_AFTER_S = 0.2
TOKEN_AFTER_S = 0.1
"""From the headers and the first frame, which bears no text, to the first token."""


@contextmanager
def process(role: str, python: str = sys.executable) -> Iterator[list[int]]:
    """Run this file as `sink` or `replies` until the block ends; give its ports."""
    command = [python, str(Path(__file__).resolve()), role]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdin is not None
        try:
            yield json.loads(running.stdout.readline())
        finally:
            running.stdin.close()  # it ends with its input


class _Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, data: bytes = b"") -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def sink() -> list[int]:
    """Take OTLP over gRPC and HTTP, decode nothing."""
    import grpc

    class Anything(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:  # noqa: ARG002
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")  # noqa: ARG005

    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Anything(),))
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    class Handler(_Quiet):
        def do_POST(self) -> None:
            self.body()
            self.answer()

    _keep.append(server)
    return [grpc_port, _serve(Handler)]


def replies() -> list[int]:
    """Stream what is asked for: POST /script sets the parts of the replies, GET /truth says when the last was sent.

    A part (bytes, as Latin-1) is sent by a write of its own; those of `pauses` (index: seconds) wait before. The truth
    is from the instant at which the request was read, by this server's own clock.
    """
    script: dict[str, Any] = {"parts": [], "pauses": {}, "first": 0}
    truth: dict[str, float] = {}

    class Handler(_Quiet):
        def do_GET(self) -> None:
            self.answer(json.dumps(truth).encode())

        def do_POST(self) -> None:
            body = self.body()
            read = time.monotonic()
            if self.path == "/script":
                script.update(json.loads(body))
                self.answer()
                return
            for index, part in enumerate(script["parts"]):
                if pause := script["pauses"].get(str(index)):
                    time.sleep(pause)
                if index == 0:
                    self.send_response(200)
                    self.send_header("Content-Type", "text/event-stream")
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                data = part.encode("latin-1")
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                self.wfile.flush()
                if index == script["first"]:
                    truth["ttft_s"] = time.monotonic() - read
            self.wfile.write(b"0\r\n\r\n")

    return [_serve(Handler)]


_keep: list[object] = []


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that ended between two requests."""


def _serve(handler: type[BaseHTTPRequestHandler]) -> int:
    server = _Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


if __name__ == "__main__":
    print(json.dumps({"sink": sink, "replies": replies}[sys.argv[1]]()), flush=True)
    sys.stdin.read()  # until the parent is gone
