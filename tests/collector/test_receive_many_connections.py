"""Ten thousand connections at the listeners of a real collector."""

from __future__ import annotations

import http.client
import os
import re
import resource
import selectors
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from support.collector.http_client import RAW
from support.commands import Collector, collector, wait_until
from support.patience import WAIT_S

from otel_llm.collector.receive.grpc_worker.grpc_receiver import EXPORT
from otel_llm.collector.settings import Limits
from otel_llm.shared.web.open_files import allow_open_files

CROWD = 10_000
SPARE_FILES = 1000
SOURCES = 8
"""Addresses that a crowd comes from: each has ports of its own, some 28,000, also those that wait for their time."""
NO_PORT_YET = 24
"""Linux's IP_BIND_ADDRESS_NO_PORT: the port is chosen when it is known where to, not for all the world."""
MIB = 2**20


@pytest.fixture(scope="module", autouse=True)
def _files() -> Iterator[None]:
    """Let this process have so many files, too."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = CROWD + SPARE_FILES
    hard = before[1] if before[1] == resource.RLIM_INFINITY else max(before[1], needed)  # more than is there: for root
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0], hard))


def source(number: int) -> str:
    """Return an address of this machine that is this process's alone, as far as its number tells it apart."""
    process = os.getpid()
    return f"127.{1 + number % SOURCES}.{process >> 8 & 255}.{1 + process % 254}"


def connect(host: str, port: int, number: int) -> socket.socket:
    """Connect from one of our addresses: other runs, and the ports that they listen at, are none of our business."""
    connection = socket.socket()
    try:
        connection.settimeout(WAIT_S)
        connection.setsockopt(socket.IPPROTO_IP, NO_PORT_YET, 1)
        connection.bind((source(number), 0))
        connection.connect((host, port))
    except OSError:
        connection.close()
        raise
    return connection


@contextmanager
def crowd(address: str, count: int = CROWD) -> Iterator[list[socket.socket]]:
    """Open connections that say nothing."""
    host, _, port = address.rpartition(":")
    opened: list[socket.socket] = []
    try:
        for number in range(count):
            try:
                opened.append(connect(host, int(port), number))
            except ConnectionResetError:
                continue  # turned away before we could see it
        yield opened
    finally:
        for connection in opened:
            connection.close()


def still_open(connections: list[socket.socket]) -> int:
    """Return how many of them the other side has not closed."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ)
        closed = 0
        for key, _ in selector.select(timeout=0):
            assert isinstance(key.fileobj, socket.socket)
            try:
                while chunk := key.fileobj.recv(4096):  # gRPC's settings, a 503
                    del chunk
                closed += 1
            except BlockingIOError:
                pass
            except OSError:
                closed += 1
    return len(connections) - closed


def of_process(running: Collector) -> tuple[int, int, int]:
    """Return its open files, threads and resident bytes."""
    process = Path("/proc", str(running.process.pid))
    status = (process / "status").read_text()
    found = {name: int(value) for name, value in re.findall(r"^(Threads|VmRSS):\s+(\d+)", status, re.MULTILINE)}
    return len(list((process / "fd").iterdir())), found["Threads"], found["VmRSS"] * 1024


def export_over_http(address: str) -> None:
    request = urllib.request.Request(f"http://{address}/v1/traces", RAW, {"Content-Type": "application/x-protobuf"})
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        assert answer.status == 200


def export_over_grpc(address: str) -> None:
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        channel.unary_unary(EXPORT)(RAW, timeout=WAIT_S, wait_for_ready=True)


def healthy(running: Collector) -> bool:
    with urllib.request.urlopen(f"{running.web}/readyz", timeout=WAIT_S) as answer:
        return bool(answer.status == 200)


def test_those_beyond_the_limit_harm_nobody(tmp_path: Path) -> None:
    settings = tmp_path / "collector.yaml"
    settings.write_text("version: 1\nlimits: {header_seconds: 600}\n")
    most = Limits().connections
    with (
        collector(tmp_path, "--config", settings) as running,
        grpc.insecure_channel(running.grpc) as channel,
    ):
        connection = http.client.HTTPConnection(running.http, timeout=WAIT_S)
        for _ in range(2):
            export_over_http(running.http)
            channel.unary_unary(EXPORT)(RAW, timeout=WAIT_S)
        connection.request("POST", "/v1/traces", RAW, {"Content-Type": "application/x-protobuf"})
        connection.getresponse().read()  # one that has made a request is never closed for others
        files, threads, resident = of_process(running)
        for address in (running.http, running.grpc):
            with crowd(address) as connections:
                wait_until("the others are closed", lambda: still_open(connections) < most)
                assert still_open(connections) > most / 2
                connection.request("POST", "/v1/traces", RAW, {"Content-Type": "application/x-protobuf"})
                answer = connection.getresponse()
                assert (answer.status, answer.read()) == (200, b"")
                channel.unary_unary(EXPORT)(RAW, timeout=WAIT_S)
                assert healthy(running)
                assert of_process(running)[0] < files + most + 100
        wait_until("the files are given back", lambda: of_process(running)[0] < files + 50)
        export_over_http(running.http)
        export_over_grpc(running.grpc)
        connection.close()
        _, threads_after, resident_after = of_process(running)
        assert threads_after <= threads + 10
        assert resident_after < resident + 150 * MIB
        assert running.stop()[0] == 0


def test_as_many_as_are_let_in_are_served(tmp_path: Path) -> None:
    settings = tmp_path / "collector.yaml"
    settings.write_text(f"version: 1\nlimits: {{connections: {CROWD + 100}, header_seconds: 600}}\n")
    with collector(tmp_path, "--config", settings) as running:
        export_over_http(running.http)
        files, _, resident = of_process(running)
        with crowd(running.http) as connections:
            wait_until("they are in", lambda: of_process(running)[0] >= files + CROWD - 10)
            export_over_http(running.http)
            export_over_grpc(running.grpc)
            assert healthy(running)
            assert still_open(connections) == CROWD
            assert of_process(running)[2] < resident + 300 * MIB
        wait_until("the files are given back", lambda: of_process(running)[0] < files + 50)
        assert running.stop()[0] == 0


def test_what_does_not_fit_into_the_limit_of_open_files_is_reported() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert allow_open_files(10) is None
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (CROWD, before[1]))
        assert allow_open_files(CROWD // 3) is None
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > CROWD
        if before[1] != resource.RLIM_INFINITY:
            assert "raise the hard limit" in (allow_open_files(before[1]) or "")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
