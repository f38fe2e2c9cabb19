"""One client opens connections and never sends a request: others come in, at every listener."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from support.collector.http_client import PROTOBUF, RAW
from support.collector.tls_files import authority, signed
from support.commands import collector, wait_until
from support.patience import WAIT_S
from support.relay.process import relay

from otel_llm.collector.receive.grpc_worker.grpc_receiver import EXPORT

CONNECTIONS = 40
QUARTER = CONNECTIONS // 4
ATTACKER = "127.0.0.2"
LIMITS = f"limits: {{connections: {CONNECTIONS}, header_seconds: 600}}\n"


@dataclass(frozen=True)
class Listener:
    """A listener, and how an honest client from another address uses it."""

    address: str
    use: Callable[[], None]


def export(address: str) -> None:
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        channel.unary_unary(EXPORT)(RAW, timeout=WAIT_S)


def ask(address: str, method: str, path: str, *, context: ssl.SSLContext | None = None) -> None:
    host, _, port = address.rpartition(":")
    connection = (
        http.client.HTTPConnection(host, int(port), timeout=WAIT_S)
        if context is None
        else http.client.HTTPSConnection(host, int(port), timeout=WAIT_S, context=context)
    )
    connection.request(method, path, RAW if method == "POST" else None, PROTOBUF)
    assert connection.getresponse().status == 200
    connection.close()


@contextmanager
def listener(folder: Path, name: str, settings: str = LIMITS) -> Iterator[Listener]:
    """Run what has this listener."""
    config = folder / "settings.yaml"
    context = None
    if name.endswith("tls"):
        context = ssl.create_default_context(cafile=authority().certificate)
        settings += f"tls: {{certificate: {signed().certificate}, key: {signed().key}}}\n"
    if name.startswith("relay"):
        config.write_text("version: 1\nbackends: {a: {url: 'http://127.0.0.1:9'}}\n" + settings)
        with relay("--config", config) as running:
            at = running.web.removeprefix("http://")
            yield Listener(at, lambda: ask(at, "GET", "/healthz"))
        return
    config.write_text("version: 1\n" + settings)
    with collector(folder, "--config", config) as running:
        address = {"grpc": running.grpc, "web": running.web.partition("//")[2]}.get(name, running.http)
        uses: dict[str, Callable[[], None]] = {
            "grpc": lambda: export(address),
            "web": lambda: ask(address, "GET", "/healthz"),
        }
        yield Listener(address, uses.get(name, lambda: ask(address, "POST", "/v1/traces", context=context)))


def silent(address: str, count: int, sent: bytes = b"") -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    for _ in range(count):
        made = socket.create_connection((host, int(port)), WAIT_S, source_address=(ATTACKER, 0))
        made.sendall(sent)
        yield made


def closed(connections: list[socket.socket]) -> int:
    """Return how many of them the other side has closed."""
    count = 0
    for one in connections:
        one.setblocking(False)
        try:
            while one.recv(4096):
                pass
            count += 1
        except BlockingIOError:
            pass
        except OSError:
            count += 1
    return count


@pytest.mark.parametrize("name", ["grpc", "http", "http-tls", "web", "relay"])
@pytest.mark.parametrize("sent", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"], ids=["silent", "begun"])
def test_one_client_takes_a_quarter_at_most(tmp_path: Path, name: str, sent: bytes) -> None:
    if sent and name != "grpc":
        sent = b"\x16\x03\x01" if name == "http-tls" else b"GET / HTTP/1.1\r\nHost: localhost\r\n"
    with listener(tmp_path, name) as one, ExitStack() as stack:
        opened = [stack.enter_context(made) for made in silent(one.address, CONNECTIONS + 5, sent)]
        wait_until("the others are closed", lambda: len(opened) - closed(opened) <= QUARTER)
        assert closed(opened[-QUARTER:]) == 0  # the oldest went first
        one.use()
        assert len(opened) - closed(opened) == QUARTER


@pytest.mark.parametrize("name", ["grpc", "relay"])
def test_a_connection_without_a_request_is_closed(tmp_path: Path, name: str) -> None:
    limits = f"limits: {{connections: {CONNECTIONS}, header_seconds: 0.5}}\n"
    with listener(tmp_path, name, limits) as one, ExitStack() as stack:
        settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0" if name == "grpc" else b"GET /"
        opened = [stack.enter_context(made) for made in silent(one.address, 3, settings)]
        wait_until("they are closed", lambda: closed(opened) == 3)
        one.use()


def test_tls_handshakes_of_a_relay_are_bounded_too(tmp_path: Path) -> None:
    config = tmp_path / "relay.yaml"
    config.write_text(
        "version: 1\nbackends: {a: {url: 'http://127.0.0.1:9'}}\n"
        f"{LIMITS}tls: {{certificate: {signed().certificate}, key: {signed().key}, web: none}}\n"
    )
    with relay("--config", config) as running, ExitStack() as stack:
        address = running.url.partition("//")[2]
        opened = [stack.enter_context(made) for made in silent(address, CONNECTIONS + 20)]
        wait_until("the others are closed", lambda: len(opened) - closed(opened) <= QUARTER)


@pytest.mark.parametrize("name", ["grpc", "http", "relay"])
def test_established_connections_of_one_peer(tmp_path: Path, name: str) -> None:
    limits = f"limits: {{connections: {CONNECTIONS}, connections_per_peer: 2}}\n"
    with listener(tmp_path, name, limits) as one, ExitStack() as stack:
        if name == "grpc":
            options = [("grpc.use_local_subchannel_pool", 1)]
            channels = [stack.enter_context(grpc.insecure_channel(one.address, options=options)) for _ in range(3)]
            for channel in channels[:2]:
                channel.unary_unary(EXPORT)(RAW, timeout=WAIT_S)
            with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
                channels[2].unary_unary(EXPORT)(RAW, timeout=WAIT_S)
            channels[0].unary_unary(EXPORT)(RAW, timeout=WAIT_S)
            return
        host, _, port = one.address.rpartition(":")
        answers = []
        for _ in range(3):
            connection = http.client.HTTPConnection(host, int(port), timeout=WAIT_S)
            stack.callback(connection.close)
            connection.request("GET", "/healthz")
            answer = connection.getresponse()
            answers.append(answer.status)
            answer.read()
        assert answers == ([404, 404, 503] if name == "http" else [200, 200, 503])
