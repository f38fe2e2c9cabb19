"""What telemetry, a server or a file says reaches a terminal and a log as text: nothing of it acts there."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import unicodedata
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import collector, environment, run, wait_until
from support.otlp import export, segment_span
from support.patience import WAIT_S

from otel_llm import semconv
from otel_llm.cli.output.echo import SafeLog, echo
from otel_llm.cli.output.live_view import view
from otel_llm.cli.output.terminal_console import SafeConsole
from otel_llm.shared.printable import one_line, printable, printable_lines

HOSTILE = (
    "m\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\u202e\u2066"
    "\nMISSED 00000000000000000000000000000001 chat gpt completed: 9 tokens\r\x85\u2028\u2029MISSED \x00\ud800"
)
ACTING = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def acts(text: str) -> set[str]:
    """Return the characters of text, but line feeds, that a terminal could obey."""
    return {letter for letter in text if letter != "\n" and unicodedata.category(letter) in ACTING}


@given(st.text())
def test_nothing_acts_and_what_is_printable_stays(text: str) -> None:
    shown = printable(text, 10**6)
    assert not acts(shown)
    assert "\n" not in shown
    if not (acts(text) or "\n" in text):
        assert shown == text
    assert printable(shown, 10**6) == shown
    assert printable_lines(text).count("\n") == text.count("\n")
    assert one_line(text, 10**6).split() == printable(" ".join(text.split()), 10**6).split()


def test_a_line_of_ours_stays_one(capsys: pytest.CaptureFixture[str]) -> None:
    echo(f"error: {HOSTILE[:20]}", err=True)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert not acts(said)


def test_a_record_of_the_log_is_one_line_and_a_traceback_as_many_as_it_has() -> None:
    def raised() -> None:
        raise ValueError(HOSTILE)

    try:
        raised()
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "otel-llm: %s", (HOSTILE,), sys.exc_info())
    text = SafeLog().format(record)
    assert not acts(text)
    assert text.split("\n")[0].startswith("otel-llm: m\\u{1b}]52")
    assert "Traceback" in text.split("\n")[1]


def test_what_rich_writes_has_no_control_but_its_own_styles() -> None:
    out = io.StringIO()
    console = SafeConsole(file=out, force_terminal=True, width=400, highlight=False)
    console.print(HOSTILE, style="bold", markup=False)
    plain = out.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert not acts(plain)
    assert "]52;c" in plain


def snapshot(text: Any) -> dict[str, Any]:
    stream = {"slo_class": text, "model": text, "trace_id": text, "tokens": text, "ttfo_s": 1.0, "idle_s": 0.5}
    row = {**stream, "met": None, "outcome": text, "fluidity_index": None}
    return {
        "in_flight": text,
        "starving": text,
        "judged": text,
        "streams": [{**stream, "runway_s": -1.0}],
        "recent": [row],
        "decisions": [],
    }


def test_the_live_view_shows_names_as_text() -> None:
    out = io.StringIO()
    SafeConsole(file=out, width=800).print(view(snapshot(HOSTILE)))
    assert not acts(out.getvalue())
    assert "\nMISSED" not in out.getvalue()


def test_top_at_a_hostile_server() -> None:
    with serving({"/v1/streams": json.dumps(snapshot(HOSTILE)).encode()}) as url:
        shown = run("top", url, "--once")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert not acts(shown.stdout)
    assert "]52;c" in shown.stdout
    with serving({}) as url:
        refused = run("top", url, "--once")
    assert refused.returncode == 2
    assert not acts(refused.stderr)
    assert "no\\u{1b}[2J" in refused.stderr


def test_a_collector_writes_a_hostile_name_as_one_line(tmp_path: Path) -> None:
    with collector(tmp_path, "--verdicts", "all") as running:
        name = HOSTILE.replace("\ud800", "")
        identity = {
            semconv.GEN_AI_OPERATION_NAME: "chat",
            semconv.GEN_AI_REQUEST_MODEL: name,
            semconv.INSTANCE: name,
            semconv.SLO_CLASS: name,
        }
        ends: dict[str, str | int] = {semconv.OUTCOME: "completed", semconv.TOKENS: 0, semconv.SEGMENTS: 2}
        body = export(
            segment_span(seq=0, attributes=identity), segment_span(seq=1, attributes=ends)
        ).SerializeToString()
        request = urllib.request.Request(
            f"http://{running.http}/v1/traces", body, {"Content-Type": "application/x-protobuf"}
        )
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            assert answer.status == 200

        def judged() -> bool:
            with urllib.request.urlopen(f"{running.web}/v1/requests", timeout=WAIT_S) as answer:
                return bool(json.load(answer)["requests"])

        wait_until("the stream is judged", judged)
        status, said = running.stop()
    assert status == 0
    assert not acts(said)
    (line,) = [line for line in said.splitlines() if "]52;c" in line]
    assert "\\u{a}MISSED 0000" in line


@pytest.mark.parametrize("command", [["rules", "explain"], ["alerts", "resend"], ["top"]])
def test_what_only_writes_lines_loads_no_kernel(command: list[str]) -> None:
    program = (
        "import sys; from otel_llm.cli.main import main\n"
        f"try: main({[*command, '--help']!r})\n"
        "except SystemExit: pass\n"
        "print(sorted({'numba', 'numpy', 'pandas', 'pyarrow', 'otel_llm.core.kernel'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["audit", f"/nowhere/{HOSTILE[:30]}"],
        ["rules", "check", f"/nowhere/{HOSTILE[:30]}"],
        ["collect", "--grpc", f"{HOSTILE[:30]}:x"],
        ["collect", "--config", f"/nowhere/{HOSTILE[:30]}"],
        ["relay", "--backend", f"{HOSTILE[:30]}"],
    ],
)
def test_an_error_shows_what_was_given_as_text(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert not acts(done.stderr + done.stdout)


@contextmanager
def serving(answers: dict[str, bytes]) -> Iterator[str]:
    """Answer these paths, and others with 503 and hostile words."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path)
            body = b"no\x1b[2J\xc2\x9b31m" if found is None else found
            self.send_response(503 if found is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
