from __future__ import annotations

import http.client
import json
import math
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from otel_llm.collector.receive.http_listener import HttpServer
from otel_llm.collector.web.app import web_app
from otel_llm.shared.errors import AddressError
from otel_llm.shared.web.address import Address, listen, parse_address

LOCAL = Address("127.0.0.1", 0)


class Told:
    """What the web port is asked for; a test changes it."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.streams: Any = {"streams": []}
        self.not_ready: str | None = None
        self.not_healthy: str | None = None

    def metrics(self) -> bytes:
        return b"otel_llm_streams_in_flight 3.0\n"

    def get_streams(self) -> Any:
        if isinstance(self.streams, Exception):
            raise self.streams
        return self.streams


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[HttpServer, Told]]:
    told = Told()
    app = web_app(
        metrics=told.metrics,
        streams=told.get_streams,
        requests=lambda: {"requests": [{"met": None}]},
        page=lambda: "<!doctype html><title>ö</title>",
        healthy=lambda: told.not_healthy,
        ready=lambda: told.not_ready,
    )
    server = HttpServer(app, LOCAL, option="--web")
    server.start()
    yield server, told
    server.stop(grace_s=0)


@pytest.fixture
def told(served: tuple[HttpServer, Told]) -> Told:
    served[1].forget()
    return served[1]


@pytest.fixture
def server(served: tuple[HttpServer, Told], told: Told) -> HttpServer:
    return served[0]


def get(server: HttpServer, path: str, method: str = "GET") -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return (
            response.status,
            {name.lower(): text for name, text in response.headers.items()},
            response.read().decode(),
        )
    finally:
        connection.close()


def test_what_each_path_answers(server: HttpServer) -> None:
    expected = {
        "/": ("text/html; charset=utf-8", "<!doctype html><title>ö</title>"),
        "/metrics": ("text/plain; version=0.0.4; charset=utf-8", "otel_llm_streams_in_flight 3.0\n"),
        "/healthz": ("text/plain; charset=utf-8", "ok\n"),
        "/readyz": ("text/plain; charset=utf-8", "ok\n"),
        "/v1/streams": ("application/json", '{"streams": []}'),
        "/v1/requests?limit=3": ("application/json", '{"requests": [{"met": null}]}'),
    }
    for path, (kind, text) in expected.items():
        http_status, headers, content = get(server, path)
        assert (http_status, headers["content-type"], content) == (200, kind, text)
        assert get(server, path, "HEAD")[0] == 200


def test_every_answer_carries_the_security_headers(server: HttpServer) -> None:
    for path, method in (("/", "GET"), ("/v1/streams", "GET"), ("/nowhere", "GET"), ("/", "POST")):
        _, headers, _ = get(server, path, method)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "script-src" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert not any(name.startswith("access-control") for name in headers)
        assert "server" not in headers


def test_states(server: HttpServer, told: Told) -> None:
    told.not_ready = "the journal cannot be written"
    assert get(server, "/readyz")[0] == 503
    assert get(server, "/readyz")[2] == "the journal cannot be written\n"
    assert get(server, "/healthz")[0] == 200
    told.not_healthy = "the evaluator has stopped"
    assert get(server, "/healthz")[0] == 503


def test_nothing_else_and_nothing_to_change(server: HttpServer) -> None:
    http_status, _, content = get(server, "/nowhere")
    assert http_status == 404
    assert "/v1/streams" in content
    for path in ("/", "/v1/streams", "/metrics"):
        http_status, headers, _ = get(server, path, "POST")
        assert (http_status, sorted(headers["allow"].split(", "))) == (405, ["GET", "HEAD"])


@pytest.mark.parametrize("value", [{"x": math.nan}, [math.inf], {"x": object()}])
def test_what_is_no_json_is_our_error(
    server: HttpServer, told: Told, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    told.streams = value
    assert get(server, "/v1/streams")[::2] == (500, "internal error\n")
    assert "/v1/streams could not be answered" in caplog.text


def test_a_busy_evaluator(server: HttpServer, told: Told) -> None:
    told.streams = TimeoutError()
    assert get(server, "/v1/streams")[0] == 503
    told.streams = {}
    assert json.loads(get(server, "/v1/streams")[2]) == {}


def test_a_slow_answer_does_not_hold_up_the_others(told: Told) -> None:
    go_on = Event()

    def slow() -> str:
        assert go_on.wait(30)
        return "late"

    app = web_app(
        metrics=told.metrics,
        streams=dict,
        requests=dict,
        page=slow,
        healthy=lambda: None,
        ready=lambda: None,
    )
    server = HttpServer(app, LOCAL, option="--web")
    server.start()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(get, server, "/")
        assert get(server, "/metrics")[0] == 200
        assert not waiting.done()
        go_on.set()
        assert waiting.result(30)[2] == "late"
    server.stop()


def test_a_port_in_use_is_said_before_anything_starts(server: HttpServer, told: Told) -> None:
    second = HttpServer(web_app_of(told), server.address, option="--web")
    with pytest.raises(AddressError, match=rf"127\.0\.0\.1:{server.port} is in use .* choose --web HOST:PORT"):
        second.bind()
    second.stop()
    with socket.create_server(("127.0.0.1", 0)) as other:
        third = HttpServer(web_app_of(told), Address("127.0.0.1", other.getsockname()[1]), option="--http")
        with pytest.raises(AddressError, match="--http HOST:PORT"):
            third.start()


def web_app_of(told: Told) -> Any:
    return web_app(
        metrics=told.metrics, streams=dict, requests=dict, page=str, healthy=lambda: None, ready=lambda: None
    )


def test_a_stopped_server_has_left_its_port(told: Told) -> None:
    server = HttpServer(web_app_of(told), LOCAL, option="--web")
    assert server.port == 0
    server.bind()
    address = server.address
    assert address.port > 0
    server.start()
    assert get(server, "/healthz")[0] == 200
    server.stop()
    server.stop()
    listen(address, "--web").close()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:4317", Address("127.0.0.1", 4317)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:65535", Address("::1", 65535)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "4317", ":4317", "a:", "a:x", "a:-1", "a:65536", "::1:80", "a:٣", "[]:1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(AddressError, match="write HOST:PORT"):
        parse_address(text)


def test_a_host_that_is_none() -> None:
    with pytest.raises(AddressError, match="cannot listen at"):
        listen(Address("no.such.host.invalid", 0), "--web")
