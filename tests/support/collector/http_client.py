"""A client of the HTTP receiver that sends raw bytes."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.types import ASGIApp
from support.collector.fake_evaluator import FakeEvaluator
from support.otlp import T0_NS, export, segment_span
from support.patience import WAIT_S

from otel_llm.collector.receive.http_listener import CONNECTION_AGE_S, HttpServer
from otel_llm.collector.receive.otlp_http import otlp_app
from otel_llm.collector.settings import Limits
from otel_llm.shared.web.address import Address

RAW = export(segment_span(1, 0, [T0_NS])).SerializeToString()
PROTOBUF = {"Content-Type": "application/x-protobuf"}
Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def serving(server: HttpServer) -> Iterator[HttpServer]:
    server.start()
    try:
        yield server
    finally:
        server.stop(0)


def otlp_listener(
    limits: Limits | None = None, app: ASGIApp | None = None, age_s: float = CONNECTION_AGE_S
) -> HttpServer:
    """Return an OTLP/HTTP listener on a free port, not started."""
    app = otlp_app(FakeEvaluator(), limits=limits) if app is None else app
    return HttpServer(app, Address("127.0.0.1", 0), option="--http", limits=limits, age_s=age_s)


def send(
    port: int,
    method: str = "POST",
    path: str = "/v1/traces",
    body: bytes | None = RAW,
    headers: Mapping[str, str] = PROTOBUF,
    context: ssl.SSLContext | None = None,
) -> Answer:
    """Send one request on a connection of its own; header names of the answer are in lower case."""
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        if context is None
        else http.client.HTTPSConnection("localhost", port, timeout=WAIT_S, context=context)
    )
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.headers.items()}, response.read()
    finally:
        connection.close()


def takes_an_export(port: int) -> bool:
    """Return whether an export is accepted."""
    status, _, content = send(port)
    return status == 200 and ExportTraceServiceResponse.FromString(content) == ExportTraceServiceResponse()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)


def head(*headers: str, start: str = "POST /v1/traces HTTP/1.1") -> bytes:
    """Return the bytes of a request up to its body."""
    return "\r\n".join((start, "Host: localhost", *headers, "", "")).encode()


def rest(connection: socket.socket) -> bytes:
    """Return what still comes until the other side closes the connection, or cuts it."""
    got = b""
    try:
        while chunk := connection.recv(65536):
            got += chunk
    except ConnectionResetError:
        pass
    return got
