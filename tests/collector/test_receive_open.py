"""The listeners of a collector: settings, warnings, reloading."""

from __future__ import annotations

import itertools
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast

import pytest
from support.collector.fake_evaluator import FakeEvaluator
from support.collector.http_client import send
from support.collector.tls_files import authority, signed
from support.live_feed import Fed

from otel_llm.actions.settings import ActionSettings, AlertmanagerSettings, Engine, Receiver
from otel_llm.collector.receive.listeners import Addresses, Listeners, exposure
from otel_llm.collector.settings import Settings
from otel_llm.collector.web.views import Web
from otel_llm.config.errors import TlsFileError
from otel_llm.config.sections import Auth
from otel_llm.config.sections import Web as WebSettings
from otel_llm.config.tls import Tls
from otel_llm.config.yaml_file import ConfigError
from otel_llm.shared.clock import FakeClock
from otel_llm.shared.errors import AddressError
from otel_llm.shared.reloading import Reloader
from otel_llm.shared.web.address import Address

LOCAL = Address("127.0.0.1", 0)
ANYWHERE = Address("0.0.0.0", 0)
SECRET = "a-token-of-this-test"
BEARER = {"Authorization": f"Bearer {SECRET}"}


class WebSource:
    """What the web port shows."""

    def __init__(self) -> None:
        self.feed = Fed().feed()

    def metrics(self) -> bytes:
        return b"m 1\n"

    def streams(self) -> dict[str, object]:
        return {}

    def requests(self) -> dict[str, object]:
        return {}


def made(settings: Settings, grpc: Address = LOCAL) -> Listeners:
    received = cast("Web", WebSource())
    return Listeners(
        Addresses(grpc, LOCAL, LOCAL),
        settings,
        accept=FakeEvaluator(),
        attach=lambda _front: None,
        clock=FakeClock(),
        web=received,
        healthy=lambda: None,
        ready=lambda: None,
    )


@contextmanager
def opened(settings: Settings) -> Iterator[Listeners]:
    listeners = made(settings)
    listeners.open()
    try:
        yield listeners
    finally:
        listeners.close()


def mutual(web: Literal["same", "server", "none"]) -> Tls:
    return Tls(certificate=signed().certificate, key=signed().key, client_ca=authority("clients").certificate, web=web)


@pytest.fixture
def auth(tmp_path: Path) -> Auth:
    path = tmp_path / "tokens"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return Auth(tokens_file=path)


def client(*, certificate: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority().certificate)
    if certificate:
        pair = signed("app", "clients")
        context.load_cert_chain(pair.certificate, pair.key)
    return context


def test_the_web_port_without_tls() -> None:
    with opened(Settings(tls=mutual("none"))) as listeners:
        assert send(listeners.web.port, "GET", "/metrics", None, {})[0] == 200
        assert f"web http://{listeners.web.address} (mTLS)" in listeners.listening()
        with pytest.raises(OSError):  # noqa: PT011 - what is none for the web port is none for it alone
            send(listeners.http.port)


def test_the_web_port_with_our_certificate_only() -> None:
    with opened(Settings(tls=mutual("server"))) as listeners:
        assert send(listeners.web.port, "GET", "/metrics", None, {}, client(certificate=False))[0] == 200
        assert f"web https://{listeners.web.address} (mTLS)" in listeners.listening()
        with pytest.raises(OSError):  # noqa: PT011
            send(listeners.http.port, context=client(certificate=False))


def test_the_web_port_as_the_receivers() -> None:
    with opened(Settings(tls=mutual("same"))) as listeners:
        assert send(listeners.web.port, "GET", "/metrics", None, {}, client(certificate=True))[0] == 200
        with pytest.raises(OSError):  # noqa: PT011
            send(listeners.web.port, "GET", "/metrics", None, {}, client(certificate=False))


@pytest.mark.parametrize(("web", "without"), [("token", 401), ("open", 200)])
def test_the_web_port_and_tokens(auth: Auth, web: Literal["token", "open"], without: int) -> None:
    with opened(Settings(auth=auth.model_copy(update={"web": web}))) as listeners:
        assert send(listeners.web.port, "GET", "/metrics", None, {})[0] == without
        assert send(listeners.web.port, "GET", "/metrics", None, BEARER)[0] == 200
        assert send(listeners.web.port, "GET", "/healthz", None, {})[0] == 200
        assert send(listeners.http.port)[0] == 401


def test_the_web_port_and_names() -> None:
    with opened(Settings(web=WebSettings(hosts=("own.example",)))) as listeners:
        for host, status in (("evil.example", 403), ("own.example", 200), ("localhost", 200)):
            assert send(listeners.web.port, "GET", "/metrics", None, {"Host": host})[0] == status
            assert send(listeners.http.port, headers={"Content-Type": "application/x-protobuf", "Host": host})[0] == 200


def test_all_ports_are_taken_or_none(auth: Auth) -> None:
    with opened(Settings()) as first:
        second = made(Settings(), grpc=first.grpc.address)
        with pytest.raises(AddressError):
            second.open()
        second.close()
        with pytest.raises(OSError):  # noqa: PT011 - it never listened
            send(second.http.port)
        assert send(first.http.port)[0] == 200


def test_who_can_come_in_from_elsewhere_is_reported(auth: Auth) -> None:
    plain, by_anybody = "in plain text", "by anybody"
    tls = Tls(certificate=signed().certificate, key=signed().key)
    for settings, receivers, web in (
        (Settings(), {plain, by_anybody}, {plain, by_anybody}),
        (Settings(auth=auth), {plain}, {plain}),
        (Settings(auth=auth.model_copy(update={"web": "open"})), {plain}, {plain, by_anybody}),
        (Settings(tls=tls), {by_anybody}, {by_anybody}),
        (Settings(tls=mutual("same")), set(), set()),
        (Settings(tls=mutual("server")), set(), {by_anybody}),
        (Settings(tls=mutual("none")), set(), {plain, by_anybody}),
        (Settings(tls=mutual("server"), auth=auth), set(), set()),
        (Settings(tls=tls, auth=auth), set(), set()),
    ):
        assert exposure(settings, LOCAL, LOCAL, LOCAL) == []
        reported = exposure(settings, ANYWHERE, ANYWHERE, ANYWHERE)
        for option, lacks in (("--grpc", receivers), ("--http", receivers), ("--web", web)):
            lines = [line for line in reported if line.startswith(option)]
            assert len(lines) == bool(lacks)
            for line, words in itertools.product(lines, (plain, by_anybody)):
                assert (words in line) == (words in lacks)


def test_secrets_that_everybody_can_read_are_reported(auth: Auth) -> None:
    auth.tokens_file.chmod(0o644)
    (line,) = exposure(Settings(auth=auth), LOCAL, LOCAL, LOCAL)
    assert f"chmod o-r {auth.tokens_file}" in line


def test_secrets_of_receivers_and_engines_are_checked_too(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("hook", "bearer", "token", "secret")]
    for file in files:
        file.touch(0o644)
    hook, bearer, token, secret = files
    settings = Settings(
        receivers={
            "a": Receiver(url="http://b", secret_file=hook),
            "c": Receiver(url="http://d", secret_file=hook),
        },
        alertmanager=AlertmanagerSettings(urls=("http://e",), bearer_file=bearer),
        actions=ActionSettings(
            engines={
                "f": Engine(kind="vllm", instances={"*": "http://g"}, token_file=token),
                "h": Engine(kind="webhook", instances={"*": "http://i"}, secret_file=secret),
            }
        ),
    )
    reported = exposure(settings, LOCAL, LOCAL, LOCAL)
    assert [line.rpartition(" ")[2] for line in reported] == [str(file) for file in files]


def test_kinds_are_reloaded_each_as_a_whole_or_not_at_all(caplog: pytest.LogCaptureFixture) -> None:
    answers: dict[str, str | Exception] = {"rules": "2", "tokens": "3"}

    def answer(kind: str) -> str:
        result = answers[kind]
        if isinstance(result, Exception):
            raise result
        return result

    reloading = Reloader([("rules", lambda: answer("rules")), ("tokens", lambda: answer("tokens"))])
    assert reloading.run() == ("reloaded: rules (2), tokens (3)", [])
    answers["rules"] = ConfigError("rules.yaml", 3, 4, "when", "wrong", "right")
    assert reloading.run() == (
        "reloaded: tokens (3)",
        ["rules not reloaded, the old ones stay: rules.yaml:3:4: when: wrong (right)"],
    )
    answers["tokens"] = TlsFileError("key", "no key")
    assert reloading.run()[0] is None
    answers.update(rules=TimeoutError(), tokens=KeyError("bug"))
    _, refused = reloading.run()
    assert "not known" in refused[0]
    assert refused[1] == "tokens not reloaded, the old ones stay: internal error"
    assert "tokens could not be reloaded: this is a bug" in caplog.text
    assert (reloading.reloads, reloading.errors) == (3, 5)
