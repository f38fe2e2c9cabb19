"""`otel-llm top` at collectors: open, with a token, with TLS; and at what is no collector."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from cli.top_terminal import top_of
from click.testing import CliRunner, Result
from support.collector.http_serving import serving
from support.collector.tls_files import authority, signed
from support.commands import Collector, collector
from support.commands import run as run_command
from support.patience import WAIT_S

from otel_llm.cli.commands.top_command import top
from otel_llm.cli.web_client import (
    Source,
    UnauthenticatedError,
    UnexpectedError,
    UnreachableError,
    UntrustedError,
    WebClientError,
)

TOKEN = "a-token-of-enough-characters"
NOTHING: dict[str, Any] = {
    "in_flight": 0,
    "starving": 0,
    "judged": 0,
    "matching": 0,
    **{name: [] for name in ("streams", "recent", "decisions", "slo_classes", "models", "instances")},
}
"""What a collector without streams answers."""


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(top, [str(argument) for argument in (*arguments, "--once")], catch_exceptions=False)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token.txt"
    path.write_text(f"# of the dashboard\n{TOKEN}\n")
    path.chmod(0o600)
    return path


@contextmanager
def guarded(folder: Path, token_file: Path) -> Iterator[Collector]:
    """Run a collector with TLS and tokens."""
    pair, settings = signed(), folder / "collector.yaml"
    settings.write_text(
        f"version: 1\ntls: {{certificate: {pair.certificate}, key: {pair.key}}}\nauth: {{tokens_file: {token_file}}}\n"
    )
    with collector(folder, "--config", settings) as running:
        yield running


def test_help_names_the_files_with_an_example() -> None:
    text = run("--help").output
    for word in ("--token-file", "--ca", "otel-llm top https://collector.example:9464 --token-file token.txt --ca ca"):
        assert word in text


def test_it_looks_through_tls_with_a_token(tmp_path: Path, token_file: Path) -> None:
    ca, other = authority().certificate, authority("two").certificate
    unknown = tmp_path / "unknown.txt"
    unknown.write_text(f"{TOKEN}-of-another\n")
    with guarded(tmp_path, token_file) as running:
        shown = run_command("top", running.web, "--once", "--token-file", token_file, "--ca", ca)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "0 in flight, 0 waiting, 0 judged" in shown.stdout
        refused: list[tuple[tuple[str | Path, ...], type[WebClientError], str]] = [
            ((running.web, "--ca", ca), UnauthenticatedError, "asks for a token: --token-file FILE"),
            ((running.web, "--ca", ca, "--token-file", unknown), UnauthenticatedError, "does not know this token"),
            ((running.web, "--token-file", token_file), UntrustedError, "--ca FILE names the authority that signed it"),
            ((running.web, "--ca", other), UntrustedError, "--ca FILE names the authority that signed it"),
            ((running.web.replace("https", "http"),), UnreachableError, "start one: otel-llm collect"),
        ]
        for arguments, kind, says in refused:
            wrong = run(*arguments)
            assert (wrong.exit_code, says in " ".join(wrong.output.split())) == (2, True), wrong.output
            assert TOKEN not in wrong.output
            options = dict(zip(arguments[1::2], arguments[2::2], strict=True))
            found = {str(name).strip("-").replace("-", "_"): Path(path) for name, path in options.items()}
            with pytest.raises(kind):
                Source(str(arguments[0]), token_file=found.get("token_file"), ca=found.get("ca")).streams()


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Be a web server that is no collector; give its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the library's name
            pass

    with serving(Handler) as port:
        yield f"http://127.0.0.1:{port}"


def saying(status: int, content: bytes, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(content)

    return answer


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (saying(200, b"<html>"), "is not a collector"),
        (saying(200, b"[]"), "is not a collector (no streams in its answer)"),
        (saying(200, b'{"streams": []}'), "is not a collector (no recent in its answer)"),
        (saying(200, b"\xff"), "is not a collector"),
        (saying(200, b"[" * 60_000), "is not a collector"),
        (lambda request: request.wfile.write(b"SSH-2.0-OpenSSH\r\n"), "is not a collector"),
        (saying(403, b"not under this name\x1b[2J\nmore"), "answers 403: not under this name\\u{1b}[2J"),
        (saying(404, b""), "answers 404: Not Found"),
    ],
)
def test_what_is_no_collector_is_reported(answer: Callable[[BaseHTTPRequestHandler], None], says: str) -> None:
    with answering(answer) as url:
        with pytest.raises(UnexpectedError) as found:
            Source(url).streams()
        assert says in str(found.value)
        assert run(url).exit_code == 2


def test_the_wrong_port_of_a_collector_is_reported_from_a_closed_one(tmp_path: Path) -> None:
    with collector(tmp_path) as running:
        port = running.http.rpartition(":")[2]
        for url, says in (
            (
                running.web.replace("http", "https"),
                f"{running.web.replace('http', 'https')} has no TLS: use {running.web}",
            ),
            (f"http://127.0.0.1:{port}", "that is its OTLP port: use its --web address (port 9464 by default)"),
            (
                f"http://{running.grpc}",
                "(no HTTP/1.1, as at a gRPC port: use its --web address (port 9464 by default))",
            ),
        ):
            wrong = run(url)
            text = " ".join(wrong.output.split())
            assert (wrong.exit_code, says in text, "start one" in text) == (2, True, False), text
            assert text.isprintable()
            with pytest.raises(UnexpectedError):
                Source(url).streams()


def test_a_token_is_taken_nowhere_else(token_file: Path) -> None:
    asked: list[str | None] = []

    def thief(request: BaseHTTPRequestHandler) -> None:
        asked.append(request.headers["authorization"])
        saying(200, json.dumps(NOTHING).encode())(request)

    with answering(thief) as elsewhere, answering(saying(302, b"", Location=elsewhere)) as url:
        with pytest.raises(UnexpectedError, match="answers 302"):
            Source(url, token_file=token_file).streams()
        assert asked == []
        assert Source(elsewhere, token_file=token_file).streams() == NOTHING
        assert asked == [f"Bearer {TOKEN}"]


def test_a_picture_for_a_file_has_a_line_for_what_there_is_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    model = "m" * 40
    stream = {"model": model, "trace_id": "0123456789abcdef", "slo_class": "chat", "tokens": 3, "ttfo_s": 0.25}
    of_readers = {"idle_s": 0.0, "runway_s": 1.5}
    reported = {"in_flight": 1, "starving": 0, "judged": 0, "recent": [], "streams": [stream | of_readers]}
    with answering(saying(200, json.dumps(reported).encode())) as url:
        lines = run(url).output.splitlines()
    assert [line.split()[:1] for line in lines] == [["1"], ["stream"], [model]]
    assert "runway: unread text, in seconds of reading" in lines[1]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_gives_the_terminal_back(signum: int) -> None:
    with answering(saying(200, json.dumps(NOTHING).encode())) as url, top_of(url) as terminal:
        terminal.wait_for("0 in flight")
        assert terminal.settings != terminal.before
        terminal.program.send_signal(signum)
        assert terminal.program.wait(WAIT_S) == 0
        assert "Traceback" not in terminal.wait_for("\x1b[?1049l"), "the screen of before"
        assert terminal.settings == terminal.before


def test_nobody_there() -> None:
    with pytest.raises(UnreachableError):
        Source("http://127.0.0.1:9").streams()
    wrong = run("http://127.0.0.1:9")
    assert wrong.exit_code == 2
    assert "no collector answers at http://127.0.0.1:9" in wrong.output
    assert "start one: otel-llm collect" in " ".join(wrong.output.split())


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("token-file", None, "No such file"),
        ("token-file", b"", "no token in this file"),
        ("token-file", b"two words", "not a bearer token"),
        ("token-file", b"short", "a token has 16 to 1024 characters"),
        ("ca", None, "No such file"),
        ("ca", b"", "no certificate in this file"),
        ("ca", b"-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n", "no certificate in this file"),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path: Path, name: str, content: bytes | None, says: str) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    wrong = run("https://127.0.0.1:9", f"--{name}", path)
    assert wrong.exit_code == 2
    text = " ".join(wrong.output.split())
    assert says in text
    assert "file" in text
    assert "two words" not in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ftp://127.0.0.1:9",), "no http:// or https:// address"),
        (("http://127.0.0.1:9", "--ca", os.devnull), "--ca goes with an https:// address"),
        (("http://user:S3CRET@127.0.0.1:9",), "no credentials or query in an address: --token-file FILE"),
        (("http://127.0.0.1:9/?key=S3CRET",), "no credentials or query in an address"),
        (("http://127.0.0.1:9/#S3CRET",), "no credentials or query in an address"),
        (("http://user:S3CRET",), "has no port that is one"),
        (("http://user:S3CRET", "--ca", os.devnull), "has no port that is one"),
        (("ftp://user:S3CRET@127.0.0.1:9",), "no http:// or https:// address"),
        (("--every", "0"), "not in the range 0.1<=x<=60"),
        (("--every", "nan"), "'nan' is no number"),
    ],
)
def test_options_that_cannot_be(arguments: tuple[str, ...], says: str) -> None:
    wrong = run(*arguments)
    assert (wrong.exit_code, says in " ".join(wrong.output.split())) == (2, True)
    assert "S3CRET" not in wrong.output
