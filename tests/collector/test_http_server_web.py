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
from support.commands import wait_until
from support.live_feed import Fed, events
from support.patience import WAIT_S

from otel_llm.collector.receive.http_listener import HttpServer
from otel_llm.collector.web.app import web_app
from otel_llm.live.page import EVENTS_TYPE, static_files
from otel_llm.live.selection import Filter, Selection
from otel_llm.shared.errors import AddressError
from otel_llm.shared.web.address import Address, listen, parse_address

LOCAL = Address("127.0.0.1", 0)
FEED = Fed().feed(most_viewers=1)
"""A feed that no thread ticks."""
PAGE = static_files()["/"].content.decode()


class WebSource:
    """What the web port is asked for; a test changes it."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.streams: Any = {"streams": []}
        self.not_ready: str | None = None
        self.not_healthy: str | None = None
        self.selected: list[Selection] = []

    def metrics(self) -> bytes:
        return b"otel_llm_streams_in_flight 3.0\n"

    def get_streams(self, selection: Selection) -> Any:
        self.selected.append(selection)
        if isinstance(self.streams, Exception):
            raise self.streams
        return self.streams


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[HttpServer, WebSource]]:
    source = WebSource()
    app = web_app(
        metrics=source.metrics,
        streams=source.get_streams,
        requests=lambda _: {"requests": [{"met": None}]},
        feed=FEED,
        healthy=lambda: source.not_healthy,
        ready=lambda: source.not_ready,
    )
    server = HttpServer(app, LOCAL, option="--web")
    server.start()
    yield server, source
    server.stop(grace_s=0)


@pytest.fixture
def source(served: tuple[HttpServer, WebSource]) -> WebSource:
    served[1].forget()
    return served[1]


@pytest.fixture
def server(served: tuple[HttpServer, WebSource], source: WebSource) -> HttpServer:
    return served[0]


def get(server: HttpServer, path: str, method: str = "GET") -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
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
        "/": ("text/html; charset=utf-8", PAGE),
        **{path: (file.media_type, file.content.decode()) for path, file in static_files().items()},
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
    requested = (("/", "GET"), ("/live/main.js", "GET"), ("/v1/streams", "GET"), ("/nowhere", "GET"), ("/", "POST"))
    for path, method in (*requested, ("/v1/events?stream=none", "GET")):
        _, headers, _ = get(server, path, method)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        own = path in static_files() and method == "GET"
        assert ("script-src 'self'; style-src 'self'" in headers["content-security-policy"]) is own
        assert ("script-src" in headers["content-security-policy"]) is own
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert not any(name.startswith("access-control") for name in headers)
        assert "server" not in headers


def test_streams_are_selected_by_parameters(server: HttpServer, source: WebSource) -> None:
    assert get(server, "/v1/streams")[0] == 200
    assert get(server, "/v1/streams?sort=idle&model=a%26b")[0] == 200
    assert source.selected == [Selection(), Selection(Filter(model="a&b", sort="idle"))]
    assert get(server, "/v1/streams?sort=name")[::2] == (400, "unknown order: sort by runway, idle, age, tokens\n")
    assert len(source.selected) == 2


def test_events_go_to_a_bounded_number_of_viewers(server: HttpServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    connection.request("GET", "/v1/events?slo_class=chat")
    response = connection.getresponse()
    assert (response.status, response.headers["content-type"]) == (200, EVENTS_TYPE)
    assert response.headers["content-length"] is None
    status, headers, content = get(server, "/v1/events")
    assert (status, headers["retry-after"]) == (503, "5")
    assert "limits: viewers" in content
    assert get(server, "/v1/events", "HEAD")[0] == 200
    assert get(server, "/v1/events?stream=none")[::2] == (
        400,
        "stream is no key of a stream: write TRACE_ID-SPAN_ID-CHOICE[-TENANT], in lower-case hex\n",
    )
    FEED.tick()
    lines = b"".join(response.readline() for _ in range(9))
    assert [name for name, _ in events(lines)] == ["history", "fleet", "page"]
    connection.close()
    response.close()
    wait_until("the viewer has left", lambda: FEED.viewers == 0)


def test_states(server: HttpServer, source: WebSource) -> None:
    source.not_ready = "the journal cannot be written"
    assert get(server, "/readyz")[0] == 503
    assert get(server, "/readyz")[2] == "the journal cannot be written\n"
    assert get(server, "/healthz")[0] == 200
    source.not_healthy = "the evaluator has stopped"
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
    server: HttpServer, source: WebSource, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    source.streams = value
    assert get(server, "/v1/streams")[::2] == (500, "internal error\n")
    assert "/v1/streams could not be answered" in caplog.text


def test_a_busy_evaluator(server: HttpServer, source: WebSource) -> None:
    source.streams = TimeoutError()
    assert get(server, "/v1/streams")[0] == 503
    source.streams = {}
    assert json.loads(get(server, "/v1/streams")[2]) == {}


def test_a_slow_answer_does_not_hold_up_the_others(source: WebSource) -> None:
    go_on = Event()

    def slow(_: Selection) -> str:
        assert go_on.wait(WAIT_S)
        return "late"

    app = web_app(
        metrics=source.metrics,
        streams=slow,
        requests=lambda _: {},
        feed=FEED,
        healthy=lambda: None,
        ready=lambda: None,
    )
    server = HttpServer(app, LOCAL, option="--web")
    server.start()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(get, server, "/v1/streams")
        assert get(server, "/metrics")[0] == 200
        assert not waiting.done()
        go_on.set()
        assert waiting.result(WAIT_S)[2] == '"late"'
    server.stop()


def test_a_port_in_use_is_reported_before_anything_starts(server: HttpServer, source: WebSource) -> None:
    second = HttpServer(web_app_of(source), server.address, option="--web")
    with pytest.raises(AddressError, match=rf"127\.0\.0\.1:{server.port} is in use .* choose --web HOST:PORT"):
        second.bind()
    second.stop()
    with socket.create_server(("127.0.0.1", 0)) as other:
        third = HttpServer(web_app_of(source), Address("127.0.0.1", other.getsockname()[1]), option="--http")
        with pytest.raises(AddressError, match="--http HOST:PORT"):
            third.start()


def web_app_of(source: WebSource) -> Any:
    return web_app(
        metrics=source.metrics,
        streams=lambda _: {},
        requests=lambda _: {},
        feed=FEED,
        healthy=lambda: None,
        ready=lambda: None,
    )


def test_a_stopped_server_has_left_its_port(source: WebSource) -> None:
    server = HttpServer(web_app_of(source), LOCAL, option="--web")
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
