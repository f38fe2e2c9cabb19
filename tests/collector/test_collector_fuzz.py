"""Any bytes at either door give a status, and the door stays open."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.doors import Behind
from support.otlp import T0_NS, export, request_span, segment_span

from otel_llm.collector.address import Address
from otel_llm.collector.grpc_server import EXPORT, GrpcReceiver
from otel_llm.collector.http_server import HttpServer
from otel_llm.collector.otlp_http import otlp_app

RAW = export(segment_span(1, 0, [T0_NS] * 9), request_span()).SerializeToString()


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    receiver = GrpcReceiver(Address("127.0.0.1", 0), Behind())
    receiver.start()
    with grpc.insecure_channel(str(receiver.address)) as made:
        yield made
    receiver.stop(0)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = HttpServer(otlp_app(Behind(), body_timeout_s=5), Address("127.0.0.1", 0), option="--http")
    server.start()
    yield server.port
    server.stop(0)


def mutated(changes: list[tuple[int, int]], kept: int, tail: bytes) -> bytes:
    raw = bytearray(RAW)
    for position, value in changes:
        raw[position % len(raw)] = value
    return bytes(raw[:kept]) + tail


mutations = st.builds(
    mutated,
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=5),
    st.integers(0, len(RAW)),
    st.binary(max_size=5),
)


@settings(max_examples=300, deadline=None)
@given(raw=st.one_of(st.binary(max_size=200), mutations))
def test_any_bytes_over_grpc(channel: grpc.Channel, raw: bytes) -> None:
    try:
        channel.unary_unary(EXPORT)(raw, timeout=30)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT  # noqa: PT017 - either is right
    channel.unary_unary(EXPORT)(RAW, timeout=30)


@settings(max_examples=300, deadline=None)
@given(
    body=st.one_of(st.binary(max_size=200), mutations, st.text(max_size=100).map(str.encode)),
    kind=st.sampled_from(["application/x-protobuf", "application/json"]),
    zipped=st.booleans(),
)
def test_any_body_over_http(port: int, body: bytes, kind: str, zipped: bool) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    encoding = {"Content-Encoding": "gzip"} if zipped else {}
    try:
        connection.request("POST", "/v1/traces", body, {"Content-Type": kind, **encoding})
        assert connection.getresponse().status in (200, 400)
    finally:
        connection.close()


@settings(max_examples=200, deadline=None)
@given(start=st.sampled_from([b"", b"POST /v1/traces HTTP/1.1\r\n", b"GET "]), data=st.binary(max_size=200))
def test_bytes_that_are_no_http(port: int, start: bytes, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(start + data)
        connection.shutdown(socket.SHUT_WR)
        try:
            while connection.recv(4096):
                pass
        except ConnectionResetError:
            pass
    again = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    again.request("POST", "/v1/traces", RAW, {"Content-Type": "application/x-protobuf"})
    assert again.getresponse().status == 200
    again.close()
