"""Access to the HTTP receiver: tokens, origins of browsers, host names."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from support.collector.fake_evaluator import FakeEvaluator
from support.collector.http_client import PROTOBUF, RAW, otlp_listener, send, serving
from support.live_feed import Fed
from support.patience import WAIT_S

from otel_llm.collector.receive.http_listener import HttpServer
from otel_llm.collector.receive.otlp_http import otlp_app
from otel_llm.collector.web.app import web_app
from otel_llm.live.web_routes import OPEN_PATHS
from otel_llm.shared.web.address import Address
from otel_llm.shared.web.guard import Guard, host_name, is_loopback, names_of
from otel_llm.shared.web.tokens import Tokens

SECRET = "a-token-of-this-test"
BEARER = {"Authorization": f"Bearer {SECRET}"}
PAGE = "https://app.example.com"
JSON = {"Content-Type": "application/json"}
WEB_PATHS = ("/metrics", "/v1/streams", "/v1/requests", "/v1/events?stream=none")
PAGE_PATHS = ("/", "/live/main.js", "/live/page.css")
"""Files without telemetry: a browser that opens them sends no token."""


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    (tmp_path / "tokens").write_text(f"{SECRET}\n")
    return Tokens(tmp_path / "tokens")


@contextmanager
def otlp(tokens: Tokens | None = None, origins: frozenset[str] = frozenset()) -> Iterator[tuple[int, FakeEvaluator]]:
    behind = FakeEvaluator()
    with serving(otlp_listener(app=otlp_app(behind, tokens=tokens, origins=origins))) as server:
        yield server.port, behind


@contextmanager
def web(guard: Guard) -> Iterator[int]:
    app = web_app(
        metrics=lambda: b"m 1\n",
        streams=lambda _: {},
        requests=lambda _: {},
        feed=Fed().feed(),
        healthy=lambda: None,
        ready=lambda: None,
        guard=guard,
    )
    with serving(HttpServer(app, Address("127.0.0.1", 0), option="--web")) as server:
        yield server.port


def get(port: int, path: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
    return send(port, "GET", path, None, headers)


def test_exports_bring_a_token(tokens: Tokens) -> None:
    with otlp(tokens) as (port, behind):
        for wrong in ({}, {"Authorization": "Bearer no"}, {"Authorization": SECRET}):
            status, headers, content = send(port, headers=PROTOBUF | wrong)
            made = Status.FromString(content)
            assert (status, headers["www-authenticate"], made.code) == (401, "Bearer", 16)
            status, headers, content = send(port, body=b"{}", headers=JSON | wrong)
            assert (status, headers["www-authenticate"], json.loads(content)["code"]) == (401, "Bearer", 16)
            assert SECRET.encode() not in content
        assert behind.messages == []
        assert send(port, headers=PROTOBUF | BEARER)[0] == 200
        assert send(port, body=b"{}", headers=JSON | BEARER)[0] == 200


def test_no_token_no_body(tokens: Tokens) -> None:
    """A request without a token is refused before its body is read, whatever else is wrong with it."""
    with otlp(tokens) as (port, _):
        for headers in ({"Content-Type": "text/plain"}, PROTOBUF | {"Content-Length": "99999999999"}):
            assert send(port, body=None, headers=headers)[0] == 401


@pytest.mark.parametrize("listed", [frozenset(), frozenset({PAGE})])
def test_pages_that_are_not_listed_are_shut_out(listed: frozenset[str]) -> None:
    with otlp(origins=listed) as (port, behind):
        for origin in ("https://evil.example", "null", PAGE + ".evil.example", PAGE.replace("https", "http"), "*", ""):
            preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            status, headers, _ = send(port, "OPTIONS", body=None, headers=preflight)
            assert status == (400 if listed else 405)
            assert "access-control-allow-origin" not in headers
            status, headers, content = send(port, headers=PROTOBUF | {"Origin": origin})
            assert (status, Status.FromString(content).code) == (403, 7)
            assert "access-control-allow-origin" not in headers
        assert behind.messages == []


def test_listed_pages_may_post(tokens: Tokens) -> None:
    with otlp(tokens, frozenset({PAGE, "http://localhost:3000"})) as (port, behind):
        preflight = {
            "Origin": PAGE,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        status, headers, _ = send(port, "OPTIONS", body=None, headers=preflight)
        assert status == 200
        assert headers["access-control-allow-origin"] == PAGE
        assert headers["access-control-allow-methods"] == "POST"
        assert {"authorization", "content-type"} <= set(headers["access-control-allow-headers"].lower().split(", "))
        assert "access-control-allow-credentials" not in headers
        assert "Origin" in headers["vary"]
        status, headers, _ = send(port, headers=PROTOBUF | BEARER | {"Origin": PAGE})
        assert (status, headers["access-control-allow-origin"], headers["vary"]) == (200, PAGE, "Origin")
        assert "retry-after" in headers["access-control-expose-headers"].lower()
        assert len(behind.messages) == 1
        status, headers, _ = send(port, headers=PROTOBUF | {"Origin": PAGE})  # the page can read why not
        assert (status, headers["access-control-allow-origin"]) == (401, PAGE)
        headers = send(port, headers=PROTOBUF | BEARER)[1]
        assert not [name for name in headers if name.startswith("access-control-")]
        assert send(port, "OPTIONS", body=None, headers={"Origin": PAGE})[0] == 405  # no preflight


def test_the_web_port_asks_for_a_token(tokens: Tokens) -> None:
    with web(Guard(tokens=tokens)) as port:
        for path in WEB_PATHS:
            status, headers, content = get(port, path, {})
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
            assert headers["x-content-type-options"] == "nosniff"
            assert b"token" in content
            assert get(port, path, BEARER)[0] in (200, 400)
        for path in (*OPEN_PATHS, *PAGE_PATHS):
            assert get(port, path, {})[0] == 200


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:9464", "localhost.", "127.0.0.1:1", "[::1]:9464", "127.8.8.8", "192.0.2.7", "own.example"],
)
def test_names_that_are_ours(host: str) -> None:
    with web(Guard(names=names_of(Address("0.0.0.0", 0), frozenset({"own.example"})))) as port:
        assert {get(port, path, {"Host": host})[0] for path in (*WEB_PATHS, *PAGE_PATHS)} <= {200, 400}


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "EVIL.example:9464", "evil.example.", "localhost.evil.example", "127.0.0.1.evil.example"),
        *("", "[evil]:1", "127.0.0.1:80@evil.example", "127.0.0.1/evil.example"),
    ],
)
@pytest.mark.parametrize("at", ["127.0.0.1", "0.0.0.0", "::", "own.example"])
def test_names_that_are_not(at: str, host: str) -> None:
    """A page whose name points at this machine can make a browser ask us, but under that name."""
    with web(Guard(names=names_of(Address(at, 0), frozenset()))) as port:
        for path in (*WEB_PATHS, *PAGE_PATHS):
            status, _, content = get(port, path, {"Host": host})
            assert status == 403
            assert b"web: hosts" in content
        for path in OPEN_PATHS:
            assert get(port, path, {"Host": host})[0] == 200


@pytest.mark.parametrize(
    ("target", "hosts", "status"),
    [
        (b"/metrics", [], 200),  # HTTP/1.0: no browser sends it
        (b"/metrics", [b"localhost", b"own.example"], 200),
        (b"/metrics", [b"localhost", b"evil.example"], 403),
        (b"/metrics", [b"evil.example", b"localhost"], 403),
        (b"http://own.example:9464/metrics", [b"own.example:9464"], 200),
        (b"http://evil.example/metrics", [b"localhost"], 403),
        (b"http://localhost/metrics", [b"evil.example"], 403),
    ],
)
def test_every_name_of_a_request_counts(target: bytes, hosts: list[bytes], status: int) -> None:
    lines = [b"GET %b HTTP/1.%d" % (target, bool(hosts)), *(b"Host: %b" % host for host in hosts)]
    with web(Guard(names=frozenset({"own.example"}))) as port, socket.create_connection(("127.0.0.1", port)) as asking:
        asking.settimeout(WAIT_S)
        asking.sendall(b"\r\n".join([*lines, b"Connection: close", b"", b""]))
        with asking.makefile("rb") as answer:
            assert answer.readline().split()[1] == str(status).encode()


def test_which_names_are_ours() -> None:
    here, anywhere = Address("Here.example", 0), Address("0.0.0.0", 0)
    assert names_of(here, frozenset()) == frozenset({"here.example"})
    assert names_of(here, frozenset({"a.example"})) == frozenset({"here.example", "a.example"})
    assert names_of(anywhere, frozenset()) == frozenset({"0.0.0.0"})


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("a.example", "a.example"),
        (" A.Example.:80 ", "a.example"),
        ("[::1]:80", "::1"),
        ("[::1]", "::1"),
        ("a:", "a"),
        ("a:b", "a:b"),
        ("", ""),
    ],
)
def test_the_name_in_a_host_header(header: str, name: str) -> None:
    assert host_name(header) == name


@pytest.mark.parametrize(
    ("host", "only_here"),
    [
        ("127.0.0.1", True),
        ("127.255.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("collector.example", False),
        ("127.0.0.1.example", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(host: str, only_here: bool) -> None:
    assert is_loopback(host) is only_here


def test_a_body_of_the_right_token_and_the_wrong_page(tokens: Tokens) -> None:
    with otlp(tokens) as (port, behind):
        assert send(port, headers=PROTOBUF | BEARER | {"Origin": PAGE}, body=RAW)[0] == 403
        assert behind.messages == []
