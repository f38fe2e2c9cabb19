"""A running collector's answers to the signals that stop it or reload its files."""

from __future__ import annotations

import fcntl
import http.client
import select
import signal
import socket
import sys
import termios
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.collector.http_client import RAW, head
from support.collector.tls_files import signed
from support.commands import Collector, collector, wait_until
from support.otlp import T0_NS, export, request_span, segment_span, stream_spans
from support.patience import WAIT_S
from support.recordings import received

from otel_llm.actions.sinks.console import Console
from otel_llm.collector.receive.listeners import Addresses
from otel_llm.collector.service import Service
from otel_llm.collector.settings import Limits, Settings
from otel_llm.evaluate.timers import Timeouts
from otel_llm.rules.files.load import load_rules
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.shared.web.address import Address

SLO = "version: 1\ndefault: {name}\nclasses:\n  {name}: {{reading_speed: 5}}\n"
RULE = (
    "version: 1\ngroups:\n- name: g\n  scope: stream\n  rules:\n"
    "  - {{rule: {name}, when: 'tokens == 1', actions: [alert: {{name: {name}, by: [model]}}]}}\n"
)
PIPE_BYTES = 65536
"""What a pipe of Linux holds (pipe(7))."""
TOKEN, OTHER = "first-token-of-this-test", "second-token-of-this-test"


def status(url: str, token: str | None = None) -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def post(running: Collector, raw: bytes, token: str | None = None) -> int:
    connection = http.client.HTTPConnection(running.http, timeout=WAIT_S)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        connection.request("POST", "/v1/traces", raw, {"Content-Type": "application/x-protobuf"} | headers)
        return connection.getresponse().status
    finally:
        connection.close()


def next_line(running: Collector, begins: str | tuple[str, ...]) -> str:
    """Return the next line that it says and that begins so."""
    stdout = running.process.stdout
    assert stdout is not None
    limit = time.monotonic() + WAIT_S
    while time.monotonic() < limit:
        line = stdout.readline()
        assert line, "it has ended"
        if line.startswith(begins):
            return line
    raise AssertionError(f"it did not say {begins!r}")


def both_lines(running: Collector) -> tuple[str, str]:
    """Return what it says was read anew and what was not, in whichever order the two lines come."""
    error, read = sorted(next_line(running, ("reloaded:", "error:")) for _ in range(2))
    return read, error


def unread(running: Collector) -> int:
    """Return how many bytes of its output are unread."""
    assert running.process.stdout is not None
    return int.from_bytes(fcntl.ioctl(running.process.stdout, termios.FIONREAD, bytes(4)), sys.byteorder)


def can_connect(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=WAIT_S).close()
    except ConnectionRefusedError:
        return False
    return True


@contextmanager
def half_an_export(running: Collector) -> Iterator[socket.socket]:
    """Begin an export over HTTP and leave it open."""
    host, _, port = running.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        connection.sendall(head("Content-Type: application/x-protobuf", f"Content-Length: {len(RAW)}") + RAW[:-1])
        assert status(f"{running.web}/readyz")[0] == 200  # it had time to be read
        yield connection


def config(folder: Path, text: str) -> Path:
    path = folder / "collector.yaml"
    path.write_text(f"version: 1\n{text}\n")
    return path


def test_stopping_is_reported_at_once_and_what_was_begun_is_finished(tmp_path: Path) -> None:
    with collector(tmp_path, "--config", config(tmp_path, "limits: {drain_seconds: 600}")) as running:
        with half_an_export(running) as connection:
            running.process.send_signal(signal.SIGTERM)
            wait_until("not ready", lambda: status(f"{running.web}/readyz") == (503, "stopping\n"))
            assert status(f"{running.web}/healthz")[0] == 200
            wait_until("the listener takes no new connection", lambda: not can_connect(running.http))
            connection.sendall(RAW[-1:])
            assert connection.recv(13) == b"HTTP/1.1 200 "
        reported = running.rest()
    assert running.process.returncode == 0, reported
    assert "stopped: 1 exports" in reported
    assert len(received([tmp_path / "journal"])) == 1


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_the_second_time_it_ends_at_once(tmp_path: Path, second: signal.Signals) -> None:
    with (
        collector(tmp_path, "--config", config(tmp_path, "limits: {drain_seconds: 600}")) as running,
        half_an_export(running),
    ):
        running.process.send_signal(signal.SIGTERM)
        wait_until("not ready", lambda: status(f"{running.web}/readyz")[0] == 503)
        running.process.send_signal(second)
        reported = running.rest()
        assert running.process.returncode == 128 + second
        assert "ended at once" in reported


def test_stopping_has_a_limit(tmp_path: Path) -> None:
    """Its output pipe is full and unread: it ends nonetheless, and the journal has everything."""
    settings = config(tmp_path, "limits: {drain_seconds: 0.5}")
    rules = tmp_path / "rules.yaml"
    enforced = "actions: [{alert: {name: Read}, mode: enforce}]"  # lines of shadow decisions and verdicts are limited
    rules.write_text(RULE.format(name="Read").replace("actions: [alert: {name: Read, by: [model]}]", enforced))
    spans = [
        span
        for request in range(1, 2001)
        for span in stream_spans([T0_NS + 1] * 2, request=request, end_ns=T0_NS + 2, segment_tokens=1)[:2]  # no end
    ]
    with collector(tmp_path, "--config", settings, "--rules", rules, "--lateness", "100ms") as running:
        assert post(running, export(*spans).SerializeToString()) == 200
        wait_until("it cannot say more", lambda: unread(running) >= PIPE_BYTES - 4096)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(WAIT_S) == 1
    messages = [one.message for one in received([tmp_path / "journal"])]  # a large export is several records
    scopes = [scope for message in messages for one in message.resource_spans for scope in one.scope_spans]
    assert sum(len(scope.spans) for scope in scopes) == len(spans)


def test_files_are_read_anew(tmp_path: Path) -> None:
    slo, rules, tokens = tmp_path / "slo.yaml", tmp_path / "rules.yaml", tmp_path / "tokens"
    slo.write_text(SLO.format(name="old"))
    rules.write_text(RULE.format(name="Old"))
    tokens.write_text(f"{TOKEN}\n")
    tokens.chmod(0o600)
    settings = config(tmp_path, "auth: {tokens_file: tokens}")
    with collector(tmp_path, "--slo", slo, "--rules", rules, "--config", settings) as running:
        assert "classes: old; rules: 1" in next_line(running, "classes:")
        assert (post(running, RAW, TOKEN), post(running, RAW, OTHER)) == (200, 401)
        slo.write_text(SLO.format(name="new"))
        tokens.write_text(f"{OTHER}\n{OTHER}-too\n")
        running.process.send_signal(signal.SIGHUP)
        reported = next_line(running, "reloaded:")
        assert "classes and rules (classes: new; rules: 1)" in reported
        assert "tokens (2)" in reported
        assert (post(running, RAW, TOKEN), post(running, RAW, OTHER)) == (401, 200)

        # Each kind as a whole or not at all: the rules are right, but what they belong to is not.
        slo.write_text("version: 1\ndefault: chat\nclasses:\n  chat: {reading_sped: 5}\n")
        rules.write_text(RULE.format(name="New"))
        tokens.write_text(f"{TOKEN}\n")
        running.process.send_signal(signal.SIGHUP)
        read, error = both_lines(running)
        assert read == "reloaded: tokens (1)\n"
        assert error.startswith(f"error: classes and rules not reloaded, the old ones stay: {slo}:4:10: ")
        assert post(running, RAW, TOKEN) == 200
        slo.write_text(SLO.format(name="new"))
        tokens.write_text("")
        running.process.send_signal(signal.SIGHUP)
        read, error = both_lines(running)
        assert "tokens" not in read
        assert "tokens not reloaded, the old ones stay: " in error
        assert (post(running, RAW, TOKEN), post(running, RAW, OTHER)) == (200, 401)
        assert running.stop()[0] == 0


def test_a_collector_with_everything_on(tmp_path: Path) -> None:
    for path, raw in zip((tmp_path / "server.pem", tmp_path / "server.key"), signed().pem, strict=True):
        path.write_bytes(raw)
        path.chmod(0o644)
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    (tmp_path / "tokens").chmod(0o644)
    settings = config(
        tmp_path, "tls: {certificate: server.pem, key: server.key, web: none}\nauth: {tokens_file: tokens}"
    )
    with collector(tmp_path, "--config", settings) as running:
        warned = {next_line(running, "warning:") for _ in range(2)}
        assert {line.split()[1] for line in warned} == {str(tmp_path / "tokens"), str(tmp_path / "server.key")}
        assert running.web.startswith("http://")
        assert status(f"{running.web}/readyz")[0] == 200
        assert (status(f"{running.web}/metrics")[0], status(f"{running.web}/metrics", TOKEN)[0]) == (401, 200)
        running.process.send_signal(signal.SIGHUP)
        assert "certificates (unchanged)" in next_line(running, "reloaded:")
        assert running.stop()[0] == 0


def test_a_listener_that_others_can_reach_is_reported(tmp_path: Path) -> None:
    with collector(tmp_path, "--grpc", "0.0.0.0:0", "--http", "0.0.0.0:0") as running:
        warned = sorted(next_line(running, "warning:") for _ in range(2))
        for option, line in zip(("--grpc", "--http"), warned, strict=True):
            assert line.startswith(f"warning: {option} 0.0.0.0:0 can be reached from elsewhere")
            assert "in plain text (see tls) and by anybody (see auth)" in line
        stdout = running.process.stdout
        assert stdout is not None
        assert not select.select([stdout], [], [], 0)[0]
        assert running.stop()[0] == 0


def test_what_was_not_evaluated_in_time_is_reported(tmp_path: Path) -> None:
    """Two lines to the terminal hold the evaluator up, each until the test lets it go: the second one over the stop."""
    stuck = threading.Event()
    first, second = threading.Event(), threading.Event()
    holding = [first, second]

    def echo(_line: str) -> None:
        if holding:
            held = holding.pop(0)
            stuck.set()
            held.wait(WAIT_S)

    local = Address("127.0.0.1", 0)
    service = Service(
        classes=load_slo(),
        rules=load_rules(()),
        settings=Settings(limits=Limits(drain_s=0.5)),
        journal_folder=tmp_path / "journal",
        decisions_path=None,
        windows_path=None,
        at=Addresses(local, local, local),
        window_ns=1_000_000_000,
        timeouts=Timeouts(lateness_ns=1_000_000, lost_after_ns=1_000_000_000),
        console=Console(echo=echo, verdicts="all"),
        load=lambda: (load_slo(), load_rules(())),
    )
    service.prepare()
    service.serve()
    pipeline = service.pipeline
    spans = stream_spans([T0_NS + 1], end_ns=T0_NS + 2)
    pipeline.accept(export(*spans, request_span()).SerializeToString())
    assert stuck.wait(WAIT_S)
    stuck.clear()
    with ThreadPoolExecutor(1) as sender:
        raw = export(segment_span(0, 0, request=2)).SerializeToString()
        answer = sender.submit(pipeline.accept, raw)
        wait_until("it waits", lambda: pipeline.counts()["queue"] == 1)
        first.set()
        assert answer.result(WAIT_S) == b""
    assert stuck.wait(WAIT_S)  # it says that the second stream is lost
    stopped = service.stop()
    assert not stopped.clean
    assert "stopped after 0.5 s: 2 exports" in stopped.line
    assert "exports were not evaluated (they are in the journal)" in stopped.line
    second.set()
    wait_until("drained", lambda: service.drained)
    assert len(received([tmp_path / "journal"])) == 2
