"""A local OTLP backend for all signals, gRPC and HTTP: it keeps the bytes that came and answers as a test says."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc

GRPC_METHODS = {
    f"/opentelemetry.proto.collector.{signal}.v1.{service}/Export": signal
    for signal, service in (("trace", "TraceService"), ("metrics", "MetricsService"), ("logs", "LogsService"))
}
HTTP_PATHS = {"/v1/traces": "trace", "/v1/metrics": "metrics", "/v1/logs": "logs"}


@dataclass(frozen=True)
class Refusal:
    """An answer that is no success: a `grpc.StatusCode` or an HTTP status, with trailers or headers."""

    status: Any
    headers: Sequence[tuple[str, Any]] = ()


@dataclass
class Backend:
    """The requests received, in order; `answer` returns a refusal, bytes, or None (fine) for each."""

    bodies: list[tuple[str, bytes]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    peers: set[str] = field(default_factory=set)
    attempts: int = 0
    answer: Callable[[bytes], Refusal | bytes | None] = lambda raw: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, signal: str, raw: bytes, headers: Mapping[str, str], peer: str) -> Refusal | bytes | None:
        with self.lock:
            self.attempts += 1
            self.headers.append(headers)
            self.peers.add(peer)
        answer = self.answer(raw)
        if not isinstance(answer, Refusal):
            with self.lock:
                self.bodies.append((signal, raw))
        return answer

    def raw(self, signal: str = "trace") -> bytes:
        """Return all accepted bytes of a signal, one behind the other."""
        with self.lock:
            return b"".join(body for of, body in self.bodies if of == signal)


def silent_until(event: threading.Event) -> Callable[[bytes], None]:
    """Return the answer of a backend that does not answer before an event."""

    def answer(raw: bytes) -> None:
        event.wait(60)

    return answer


@contextmanager
def grpc_backend(backend: Backend, port: int = 0, tls: tuple[Path, Path] | None = None) -> Iterator[int]:
    """Serve over gRPC; yield the port. `tls`: a key and its certificate, PEM."""

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            signal = GRPC_METHODS[details.method]

            def export(raw: bytes, context: Any) -> bytes:
                answer = backend.take(signal, raw, dict(context.invocation_metadata()), context.peer())
                if isinstance(answer, Refusal):
                    context.set_trailing_metadata(tuple(answer.headers))
                    context.abort(answer.status, "as the test says")
                return answer if isinstance(answer, bytes) else b""

            return grpc.unary_unary_rpc_method_handler(export)

    server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((Handler(),))
    if tls is None:
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
    else:
        pair = (tls[0].read_bytes(), tls[1].read_bytes())
        bound = server.add_secure_port(f"127.0.0.1:{port}", grpc.ssl_server_credentials([pair]))
    server.start()
    try:
        yield bound
    finally:
        server.stop(None).wait()


class _HttpServer(ThreadingHTTPServer):
    """A server that takes its connections with it."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: connections are cut here."""

    def cut(self) -> None:
        for request in list(self._open):
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


@contextmanager
def http_backend(backend: Backend, port: int = 0, tls: tuple[Path, Path] | None = None) -> Iterator[int]:
    """Serve over HTTP; yield the port. `tls`: a key and its certificate, PEM."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                raw = gzip.decompress(raw)
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = backend.take(HTTP_PATHS[self.path], raw, headers, str(self.client_address))
            body = answer if isinstance(answer, bytes) else b""
            self.send_response(answer.status if isinstance(answer, Refusal) else 200)
            for name, value in answer.headers if isinstance(answer, Refusal) else ():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = _HttpServer(("127.0.0.1", port), Handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls[1], tls[0])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.cut()
        server.server_close()
        thread.join()


BACKENDS = {"grpc": grpc_backend, "http/protobuf": http_backend}
