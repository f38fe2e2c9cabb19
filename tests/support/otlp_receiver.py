"""A local OTLP receiver, gRPC and HTTP: keeps what it decoded and the headers, answers as a test says."""

from __future__ import annotations

import gzip
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.collector.http_serving import serving

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@dataclass
class Answer:
    """One answer: a status of the transport (0 and 200 are fine), headers or trailing metadata, a body."""

    status: Any = None
    metadata: Sequence[tuple[str, Any]] = ()
    rejected: int = 0


@dataclass
class Received:
    """What arrived, in order; each request is taken `pause_s` after it came."""

    messages: list[ExportTraceServiceRequest] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)  # used up one a request; fine when there are none left
    attempts: int = 0
    pause_s: float = 0.0
    hand_on: Callable[[bytes], None] | None = None  # called with each message that is kept
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, raw: bytes, headers: Mapping[str, str]) -> Answer:
        time.sleep(self.pause_s)
        with self.lock:
            self.attempts += 1
            self.headers.append(headers)
            answer = self.answers.pop(0) if self.answers else Answer()
            if answer.status is None:
                self.messages.append(ExportTraceServiceRequest.FromString(raw))
        if answer.status is None and self.hand_on is not None:
            self.hand_on(raw)
        return answer

    def distinct(self) -> list[ExportTraceServiceRequest]:
        """Return the messages, one that came again, byte for byte, once.

        gRPC itself sends a call again on a new connection, now and then the first on a busy machine, and reports one.
        """
        with self.lock:
            return list({message.SerializeToString(deterministic=True): message for message in self.messages}.values())

    def spans(self) -> list[Span]:
        """Return the spans of the distinct messages."""
        return [
            span
            for message in self.distinct()
            for resource_spans in message.resource_spans
            for scope_spans in resource_spans.scope_spans
            for span in scope_spans.spans
        ]


def _body(answer: Answer) -> bytes:
    response = ExportTraceServiceResponse()
    if answer.rejected:
        response.partial_success.rejected_spans = answer.rejected
        response.partial_success.error_message = "too many"
    return response.SerializeToString()


class GrpcReceiver(Received):
    """Receives over gRPC; a context manager. An answer's status is a `grpc.StatusCode`; `tls` a key, a certificate."""

    def __init__(self, tls: tuple[str, str] | None = None) -> None:
        super().__init__()
        self._tls = tls

    def __enter__(self) -> Self:
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers((_GrpcHandler(self),))
        if self._tls is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            pair = tuple(Path(name).read_bytes() for name in self._tls)
            self.port = self._server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        self._server.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.stop(None).wait()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class _GrpcHandler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, received: Received) -> None:
        self._received = received

    def service(self, details: Any) -> Any:
        assert details.method == EXPORT

        def export(raw: bytes, context: Any) -> bytes:
            answer = self._received.take(raw, dict(context.invocation_metadata()))
            if answer.status is not None:
                context.set_trailing_metadata(tuple(answer.metadata))
                context.abort(answer.status, "as the test says")
            return _body(answer)

        return grpc.unary_unary_rpc_method_handler(export)


class HttpReceiver(Received):
    """Receives over HTTP; a context manager. An answer's status is a number."""

    def __enter__(self) -> Self:
        self._serving = serving(_http_handler(self))
        self._port = self._serving.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._serving.__exit__(None, None, None)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"


def _http_handler(received: Received) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            encoding = self.headers.get("Content-Encoding")
            raw = gzip.decompress(raw) if encoding == "gzip" else zlib.decompress(raw) if encoding == "deflate" else raw
            answer = received.take(raw, {**self.headers, "path": self.path, "peer": str(self.client_address)})
            body = _body(answer)
            self.send_response(answer.status or 200)
            for name, value in answer.metadata:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler
