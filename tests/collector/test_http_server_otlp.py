from __future__ import annotations

import gzip
import http.client
import json
import socket
import tracemalloc
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from support.collector.fake_evaluator import FakeEvaluator
from support.collector.http_client import otlp_listener, serving
from support.otlp import T0_NS, export, segment_span
from support.patience import WAIT_S

from otel_llm.collector.receive.errors import BusyError
from otel_llm.collector.receive.http_listener import HttpServer
from otel_llm.collector.receive.otlp_http import otlp_app
from otel_llm.collector.settings import Limits
from otel_llm.journal.journal_errors import JournalError
from otel_llm.shared.web.address import Address

RAW = export(segment_span(1, 0, [T0_NS])).SerializeToString()
PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json; charset=utf-8"}
GZIP = {"Content-Encoding": "gzip"}
JSON_SPAN = {
    "traceId": "00" * 15 + "01",
    "spanId": "00" * 7 + "02",
    "parentSpanId": "00" * 7 + "01",
    "name": "otel_llm.segment",
    "startTimeUnixNano": str(T0_NS),
    "endTimeUnixNano": str(T0_NS),
}
JSON_PLACE = [
    {"key": "otel_llm.segment.seq", "value": {"intValue": "0"}},
    {"key": "otel_llm.segment.first_token", "value": {"intValue": "0"}},
]
JSON_EXPORT = json.dumps(
    {"resourceSpans": [{"scopeSpans": [{"spans": [{**JSON_SPAN, "attributes": JSON_PLACE}]}]}]}
).encode()
JSON_NO_SEQ = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [JSON_SPAN]}]}]}).encode()
Answer = tuple[int, Mapping[str, str], bytes]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[HttpServer, FakeEvaluator]]:
    behind = FakeEvaluator()
    app = otlp_app(behind, limits=Limits(message_bytes=2**20))
    server = HttpServer(app, Address("127.0.0.1", 0), option="--http")
    server.start()
    yield server, behind
    server.stop(grace_s=0)


@pytest.fixture
def behind(served: tuple[HttpServer, FakeEvaluator]) -> FakeEvaluator:
    served[1].forget()
    return served[1]


@pytest.fixture
def server(served: tuple[HttpServer, FakeEvaluator], behind: FakeEvaluator) -> HttpServer:
    return served[0]


def send(
    server: HttpServer,
    body: bytes | None,
    headers: Mapping[str, str],
    *,
    method: str = "POST",
    path: str = "/v1/traces",
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read()
    finally:
        connection.close()


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_the_standard_exporter_delivers(server: HttpServer, behind: FakeEvaluator, compression: Compression) -> None:
    exporter = OTLPSpanExporter(endpoint=f"http://{server.address}/v1/traces", compression=compression)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    span = provider.get_tracer("t").start_span("otel_llm.segment", start_time=T0_NS)
    span.add_event("token", timestamp=T0_NS + 7)
    span.end(T0_NS + 9)
    provider.shutdown()
    (received,) = behind.spans
    assert [event.time_unix_nano for event in received.events] == [T0_NS + 7]


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(("body", "headers"), [(RAW, PROTOBUF), (JSON_EXPORT, JSON)])
def test_both_encodings(
    server: HttpServer, behind: FakeEvaluator, body: bytes, headers: dict[str, str], zipped: bool
) -> None:
    http_status, answered, content = send(
        server, gzip.compress(body) if zipped else body, headers | GZIP if zipped else headers
    )
    assert http_status == 200
    assert answered["content-type"] == headers["Content-Type"].partition(";")[0]
    assert content == (b"{}" if headers is JSON else b"")
    assert [span.name for span in behind.spans] == ["otel_llm.segment"]
    assert behind.spans[0].trace_id == bytes(15) + b"\x01"


def test_an_empty_export_is_fine(server: HttpServer) -> None:
    assert send(server, b"", PROTOBUF)[0] == 200
    assert send(server, b"{}", JSON)[0] == 200


def test_partial_success_in_both_encodings(server: HttpServer) -> None:
    raw = export(segment_span(1, 0), segment_span(None, 0)).SerializeToString()
    http_status, _, content = send(server, raw, PROTOBUF)
    partial = ExportTraceServiceResponse.FromString(content).partial_success
    assert (http_status, partial.rejected_spans, partial.error_message) == (200, 1, "missing_seq")
    http_status, _, content = send(server, JSON_NO_SEQ, JSON)
    assert http_status == 200
    assert json.loads(content) == {"partialSuccess": {"rejectedSpans": "1", "errorMessage": "missing_seq"}}


def test_errors_are_a_status_in_the_encoding_of_the_question(server: HttpServer, behind: FakeEvaluator) -> None:
    http_status, headers, content = send(server, b"\xff", PROTOBUF)
    made = Status.FromString(content)
    assert (http_status, headers["content-type"], made.code) == (400, "application/x-protobuf", 3)
    assert "not an OTLP trace export request" in made.message
    http_status, headers, content = send(server, b'{"resourceSpans": 3}', JSON)
    assert (http_status, headers["content-type"]) == (400, "application/json")
    assert json.loads(content) == {"code": 3, "message": "not OTLP JSON: resourceSpans: expected an array"}
    assert behind.messages == []


@pytest.mark.parametrize("body", [b"not gzip", gzip.compress(RAW)[:-3], gzip.compress(RAW) + b"tail", b""])
def test_broken_gzip(server: HttpServer, body: bytes) -> None:
    http_status, _, content = send(server, body, PROTOBUF | GZIP)
    assert http_status == 400
    assert "broken gzip" in Status.FromString(content).message


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({}, "content type must be"),
        ({"Content-Type": "text/plain"}, "content type must be"),
        ({"Content-Type": "application/octet-stream"}, "content type must be"),
        (PROTOBUF | {"Content-Encoding": "br"}, "content encoding must be gzip or none"),
        (PROTOBUF | {"Content-Encoding": "gzip, gzip"}, "content encoding must be gzip or none"),
    ],
)
def test_content_that_we_do_not_read(server: HttpServer, headers: dict[str, str], says: str) -> None:
    http_status, answered, content = send(server, RAW, headers)
    assert http_status == 415
    assert says.encode() in content
    assert answered["accept"] == "application/x-protobuf, application/json"


@pytest.mark.parametrize("path", ["/", "/v1/metrics", "/v1/logs", "/v1/traces/", "/v1/traces2"])
def test_other_paths(server: HttpServer, path: str) -> None:
    http_status, _, content = send(server, b"", JSON, path=path)
    assert (http_status, json.loads(content)) == (404, {"code": 5, "message": "POST /v1/traces is all there is"})


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_other_methods(server: HttpServer, method: str) -> None:
    http_status, headers, content = send(server, None, {"Origin": "http://evil.example"}, method=method)
    assert (http_status, headers["allow"], json.loads(content)["code"]) == (405, "POST", 12)
    assert not any(name.lower().startswith("access-control") for name in headers)


def test_size_limits(server: HttpServer, behind: FakeEvaluator) -> None:
    for body, headers in (
        (bytes(2**20 + 1), PROTOBUF),
        (gzip.compress(bytes(2**20 + 1)), PROTOBUF | GZIP),
        (b"x" * (2**20 + 1), JSON),
    ):
        http_status, _, content = send(server, body, headers)
        assert http_status == 413
        assert b"larger than 1048576 bytes" in content
    assert behind.messages == []


def test_a_client_that_was_refused_can_go_on_on_its_connection(server: HttpServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    for body, headers, http_status in (
        (bytes(2**24), PROTOBUF, 413),
        (bytes(2**22), {"Content-Type": "text/plain"}, 415),
        (RAW, PROTOBUF, 200),
    ):
        connection.request("POST", "/v1/traces", body, headers)
        response = connection.getresponse()
        assert response.status == http_status
        response.read()
    connection.close()


def test_a_body_without_a_length_is_bounded_too(server: HttpServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as connection:
        connection.sendall(
            b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"10000\r\n" + bytes(2**16) + b"\r\n"
        for _ in range(17):
            connection.sendall(chunk)
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_what_a_bomb_expands_to_is_never_held(server: HttpServer) -> None:
    bomb = gzip.compress(bytes(2**28))
    tracemalloc.start()
    http_status, _, _ = send(server, bomb, PROTOBUF | GZIP)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert http_status == 413
    assert peak < 2**24


def test_a_body_that_does_not_come() -> None:
    """At a server of its own: the others' bodies may take longer, on a machine that stands still."""
    with (
        serving(otlp_listener(Limits(body_s=0.5))) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as connection,
    ):
        connection.sendall(
            b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_goes_away_is_no_error(
    server: HttpServer, behind: FakeEvaluator, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as connection:
        connection.sendall(
            b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
    assert send(server, RAW, PROTOBUF)[0] == 200
    assert len(behind.messages) == 1
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("failure", "http_status", "retry"), [(JournalError("No space"), 503, "5"), (BusyError("behind"), 429, "1")]
)
def test_what_may_be_sent_again_says_when(
    server: HttpServer, behind: FakeEvaluator, failure: Exception, http_status: int, retry: str
) -> None:
    behind.fail_with = failure
    for headers in (PROTOBUF, JSON):
        answered: Any = send(server, RAW if headers is PROTOBUF else JSON_EXPORT, headers)
        assert (answered[0], answered[1]["retry-after"]) == (http_status, retry)
        assert b"No space" not in answered[2]


def test_a_bug_of_ours_is_logged_and_not_reported(
    server: HttpServer, behind: FakeEvaluator, caplog: pytest.LogCaptureFixture
) -> None:
    behind.fail_with = KeyError("secret")
    http_status, _, content = send(server, JSON_EXPORT, JSON)
    assert (http_status, json.loads(content)) == (500, {"code": 13, "message": "internal error"})
    assert "secret" in caplog.text


def test_many_clients_at_once(server: HttpServer, behind: FakeEvaluator) -> None:
    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
        for seq in range(10):
            raw = export(segment_span(seq, 0, request=number)).SerializeToString()
            connection.request("POST", "/v1/traces", raw, PROTOBUF)  # on one connection, kept alive
            response = connection.getresponse()
            assert response.status == 200
            response.read()
        connection.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(1, 17)))
    assert len({span.span_id for span in behind.spans}) == 160


def test_urllib_can_talk_to_it(server: HttpServer) -> None:
    request = urllib.request.Request(f"http://{server.address}/v1/traces", RAW, PROTOBUF)
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        assert response.status == 200
        assert "server" not in response.headers
