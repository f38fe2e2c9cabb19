"""SIGHUP while exports come: files that are broken in any way change nothing, and no export is refused meanwhile."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from support.collector.http_client import PROTOBUF, RAW
from support.collector.tls_files import signed
from support.commands import Collector, collector, wait_until
from support.patience import WAIT_S

from otel_llm.collector.receive.grpc_worker.grpc_receiver import EXPORT
from otel_llm.collector.receive.listeners import exposure
from otel_llm.collector.settings import load_settings
from otel_llm.config.errors import TlsFileError
from otel_llm.config.tls import Certificates, Tls
from otel_llm.shared.errors import UnauthenticatedError
from otel_llm.shared.web.address import Address
from otel_llm.shared.web.tokens import KnownTokens, Tokens

TOKEN = "the-token-of-this-test"
RULES = (
    "version: 1\ngroups:\n- {name: g, scope: stream, rules: ["
    "{rule: R, when: 'tokens == 1', actions: [alert: {name: A, by: [model]}]}]}\n"
)


def as_text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10**9)


BROKEN: dict[str, Callable[[Path], object]] = {
    "empty": Path.touch,
    "bytes": lambda path: path.write_bytes(os.urandom(2000)),
    "a folder": Path.mkdir,
    "a pipe that nobody writes": os.mkfifo,
    "a device without end": lambda path: path.symlink_to("/dev/zero"),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a gigabyte": sparse,
    "brackets": as_text("version: 1\nx: " + "[" * 60_000),
    "aliases": as_text("a: &a [x, x]\nb: &b [*a, *a]\nversion: 1\n"),
    "gone": lambda path: None,
}


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@dataclass
class Load:
    """Exports one after the other over HTTP and gRPC, each on a connection of its own now and then."""

    collector: Collector
    answers: dict[str, int] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def over_http(self) -> None:
        connection = http.client.HTTPConnection(self.collector.http, timeout=WAIT_S)
        while not self._stop.is_set():
            connection.request("POST", "/v1/traces", RAW, PROTOBUF | {"Authorization": f"Bearer {TOKEN}"})
            answer = connection.getresponse()
            answer.read()
            self._count(f"HTTP {answer.status}")
        connection.close()

    def over_grpc(self) -> None:
        with grpc.insecure_channel(self.collector.grpc) as channel:
            call = channel.unary_unary(EXPORT)
            while not self._stop.is_set():
                try:
                    call(RAW, timeout=WAIT_S, metadata=[("authorization", f"Bearer {TOKEN}")])
                    self._count("gRPC OK")
                except grpc.RpcError as error:
                    self._count(f"gRPC {error.code()}")

    def _count(self, answer: str) -> None:
        self.answers[answer] = self.answers.get(answer, 0) + 1

    @contextmanager
    def running(self) -> Iterator[Load]:
        threads = [threading.Thread(target=target) for target in (self.over_http, self.over_grpc)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(WAIT_S)


def told(running: Collector, lines: int) -> list[str]:
    """Return the next so many lines about a reload."""
    assert running.process.stdout is not None
    late = threading.Timer(WAIT_S, running.process.kill)
    late.start()
    found: list[str] = []
    while len(found) < lines:
        line = running.process.stdout.readline()
        assert line, "it has ended"
        if line.startswith(("reloaded:", "error:")):
            found.append(line)
    late.cancel()
    return sorted(found)


def test_broken_files_change_nothing_and_hold_up_nobody(tmp_path: Path) -> None:
    rules, tokens, settings = tmp_path / "rules.yaml", tmp_path / "tokens", tmp_path / "settings.yaml"
    rules.write_text(RULES)
    tokens.write_text(f"{TOKEN}\n")
    settings.write_text("version: 1\nauth: {tokens_file: tokens}\n")
    with collector(tmp_path, "--rules", rules, "--config", settings) as running, Load(running).running() as load:
        for name, broken in BROKEN.items():
            for path in (rules, tokens):
                remove(path)
                broken(path)
            running.process.send_signal(signal.SIGHUP)
            first, second = told(running, 2)
            assert first.startswith("error: classes and rules not reloaded, the old ones stay: "), name
            assert second.startswith("error: tokens not reloaded, the old ones stay: "), name
            assert all(str(tmp_path) in line for line in (first, second)), name
            before = sum(load.answers.values())
            wait_until("exports go on", lambda before=before: sum(load.answers.values()) > before + 2)
        for path in (rules, tokens):
            remove(path)
        rules.write_text(RULES)
        tokens.write_text(f"{TOKEN}\n")
        running.process.send_signal(signal.SIGHUP)
        (line,) = told(running, 1)
        assert line.startswith("reloaded: classes and rules")
        assert load.answers.keys() == {"HTTP 200", "gRPC OK"}


def another_key(path: Path) -> object:
    return path.write_bytes(signed("later", "two").key.read_bytes())


@pytest.mark.parametrize("name", [*BROKEN, "another key"])
def test_broken_certificates_change_nothing(tmp_path: Path, name: str) -> None:
    files = Tls(certificate=tmp_path / "server.pem", key=tmp_path / "server.key")
    good = signed()
    for path, raw in zip((files.certificate, files.key), good.pem, strict=True):
        path.write_bytes(raw)
    loaded = Certificates(files)
    before = loaded.context(), loaded.pem
    for path in (files.certificate, files.key):
        remove(path)
        BROKEN.get(name, another_key)(path)
        with pytest.raises(TlsFileError, match=str(path) if name != "another key" else "server"):
            loaded.reload()
        assert (loaded.context(), loaded.pem) == before
        remove(path)
        path.write_bytes(good.pem[path == files.key])


def test_a_token_that_stays_is_known_at_every_instant_of_a_reload(tmp_path: Path) -> None:
    known = []
    for number in range(2):
        path = tmp_path / f"{number}"
        path.write_text(f"{TOKEN}\nthe-other-token-{number}\n")
        known.append(Tokens(path).digests)
    served = KnownTokens()
    served.replace(known[0])
    stop, refused = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            try:
                served.check([f"Bearer {TOKEN}"])
            except UnauthenticatedError as error:
                refused.append(error)

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    for number in range(20_000):
        served.replace(known[number % 2])
    stop.set()
    for thread in asking:
        thread.join()
    assert not refused


def test_headers_and_keys_that_everybody_can_read_are_warned_about(tmp_path: Path) -> None:
    names = ("forward", "metrics", "windows")
    for name in names:
        (tmp_path / name).write_text("api-key: secret\n")
        (tmp_path / name).chmod(0o644)
    path = tmp_path / "settings.yaml"
    target = "endpoint: 'http://127.0.0.1:9', headers_file"
    path.write_text(
        f"version: 1\nforward: {{{target}: forward}}\n"
        f"otlp: {{metrics: {{{target}: metrics}}, windows: {{{target}: windows}}}}\n"
    )
    at = Address("127.0.0.1", 0)
    said = exposure(load_settings(path), at, at, at)
    assert said == [
        f"{tmp_path / name} can be read by every user of this machine: chmod o-r {tmp_path / name}" for name in names
    ]
    for name in names:
        (tmp_path / name).chmod(0o640)
    assert exposure(load_settings(path), at, at, at) == []
