"""The quickstart from beginning to end, as its page says it: its own lines and snippets, in order, in one folder.

The machine is a fresh one: a network namespace, if the default ports are free, and an empty home. What differs from
the page: packages are installed, the collector's kernels are compiled, `collector/` is a link to the repository's, and
Prometheus scrapes every second in place of every 15. Lines that take seconds run beside the next ones.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.commands import environment, wait_until
from support.integration.interop_prometheus import program
from support.namespaces import in_a_network_of_its_own
from support.patience import WAIT_S

SHELL = "shell"
FETCH = "import sys, urllib.request; sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1], timeout=30).read())"


@dataclass(frozen=True)
class Snippet:
    """A line for the shell, or a file in another language."""

    language: str
    text: str


def snippets(page: str) -> list[Snippet]:
    """Return the indented lines (for the shell) and the fenced blocks of a page, in order."""
    pattern = r"^(```)(\w*)\n(.*?)^```$|^ {4}(\S[^\n]*)$"
    return [
        Snippet(language, block) if fence else Snippet(SHELL, line)
        for fence, language, block, line in re.findall(pattern, page, re.MULTILINE | re.DOTALL)
    ]


def prose(page: str) -> str:
    """Return a page without its snippets."""
    return re.sub(r"^```.*?^```$|^ {4}\S[^\n]*$", "", page, flags=re.MULTILINE | re.DOTALL)


@dataclass
class Terminal:
    """Terminals in one folder, on one machine whose ports are all free; `exported` holds in all of them."""

    folder: Path
    enter: Sequence[str]
    exported: list[str] = field(default_factory=list)
    running: ExitStack = field(default_factory=ExitStack)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def run(self, line: str) -> str:
        """Run a line to its end, which must be a good one; return its output."""
        done = subprocess.run(
            self._command(line), env=self._environment(), cwd=self.folder, timeout=WAIT_S, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}"
        return done.stdout

    def serve(self, line: str, ready: str) -> str:
        """Start a line that serves until the terminal is closed; return its output once `ready` (a regex) is in it."""
        log = self.folder / f"{len(list(self.folder.glob('*.log')))}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                self._command(line), env=self._environment(), cwd=self.folder, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip
        self.running.callback(_end, process)

        def ready_or_gone() -> bool:
            return bool(re.search(ready, log.read_text(encoding="utf-8"))) or process.poll() is not None

        wait_until(line, ready_or_gone)
        said = log.read_text(encoding="utf-8")
        assert process.poll() is None, f"{line}\n{said}"
        return said

    def watch(self, line: str, until: str) -> None:
        """Run a line on a real terminal until it shows a text; Ctrl-C must end it well."""
        command = ["env", "--default-signal=INT", *self._command(line)]  # a shell may have started us to ignore it
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (30, 120))
        process = subprocess.Popen(
            command, env=self._environment() | {"TERM": "xterm"}, cwd=self.folder, start_new_session=True,
            stdin=theirs, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        shown = b""
        late = threading.Timer(WAIT_S, os.killpg, (process.pid, signal.SIGKILL))
        late.start()
        try:
            with suppress(OSError):  # at its end
                while until.encode() not in shown:
                    shown += os.read(ours, 65536)
            assert until.encode() in shown, f"{line}\n{shown.decode(errors='replace')}"
            os.killpg(process.pid, signal.SIGINT)
            with suppress(OSError):
                while os.read(ours, 65536):
                    pass
            assert process.wait(WAIT_S) == 0, line
        finally:
            late.cancel()
            os.close(ours)
            _end(process)

    def fetch(self, url: str) -> str:
        """Return what an address on this machine answers."""
        command = [*self.enter, sys.executable, "-I", "-S", "-c", FETCH, url]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT_S).stdout

    def _command(self, line: str) -> list[str]:
        return [*self.enter, "bash", "-c", "\n".join([*self.exported, line])]

    def _environment(self) -> dict[str, str]:
        others = ("OPENAI_", "XDG_STATE_HOME")
        kept = {name: value for name, value in environment().items() if not name.startswith(others)}
        path = os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])
        return kept | {"HOME": str(self.home), "PATH": path}


@contextmanager
def terminal(folder: Path) -> Iterator[Terminal]:
    """Give terminals in a folder; whatever serves in them ends with them."""
    with in_a_network_of_its_own() as enter:
        opened = Terminal(folder, enter)
        opened.home.mkdir()
        with opened.running:
            yield opened


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a line and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(WAIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
ELSEWHERE = {
    "pip install otel-llm": "test_wheel.py installs it into an empty environment",
    "pip install 'otel-llm[collector]'": "test_wheel.py",
    "make demo": "test_demo.py",
    "make demo-relay": "test_demo_relay.py",
}
"""Commands in the page's prose, and the tests that run them."""
REQUESTS = 4
"""Streams that the page's lines make: of the application three times, and of `track.py`."""

REPLY = 20
"""Words of a reply, `max_tokens` of the application."""


def run(at: Terminal, text: str) -> None:
    at.run(text)


def serve_model(at: Terminal, text: str) -> None:
    at.serve(text, r"http://\S+/v1")


def write_app(at: Terminal, text: str) -> None:
    (at.folder / "app.py").write_text(text, encoding="utf-8")


def write_track(at: Terminal, text: str) -> None:
    (at.folder / "track.py").write_text(text, encoding="utf-8")


def collect(at: Terminal, text: str) -> None:
    command, _, comment = text.partition("#")
    said = at.serve(command, "listening: .*\n")
    ports = re.findall(r":(\d+)", comment)
    assert ports == re.findall(r"127\.0\.0\.1:(\d+)", said)
    (address,) = re.findall(r"`(http://127\.0\.0\.1:\d+/)`", prose(PAGE))
    assert "<html" in at.fetch(address)
    assert "/metrics" in comment
    assert served(at) == 0


def served(at: Terminal) -> float:
    """Return the requests that the collector's metrics have."""
    (address,) = re.findall(r"`(http://127\.0\.0\.1:\d+/)`", prose(PAGE))
    found = re.findall(r"^otel_llm_requests_total{.*} (\S+)$", at.fetch(f"{address}metrics"), re.MULTILINE)
    return sum(map(float, found))


def export(at: Terminal, text: str) -> None:
    at.exported.append(text)


def run_app(at: Terminal, text: str) -> None:
    """Run the application, and take its line from it: later commands promise to need none."""
    assert len(at.run(text).split()) == REPLY
    wait_until("it is recorded", lambda: served(at) == 1)
    app = at.folder / "app.py"
    lines = app.read_text(encoding="utf-8").splitlines(keepends=True)
    without = [line for line in lines if "otel_llm" not in line]
    assert len(without) == len(lines) - 2
    app.write_text("".join(without), encoding="utf-8")


def run_track(at: Terminal, text: str) -> None:
    assert at.run(text) == "Any iterator of chunks.\n"
    wait_until("it is recorded", lambda: served(at) == 2)


def run_bare(at: Terminal, text: str) -> None:
    assert len(at.run(text).split()) == REPLY


def run_doctor(at: Terminal, text: str) -> None:
    report = at.run(text)
    assert f"openai 1 ({REPLY} tokens)" in report
    assert "problem" not in report
    wait_until("all are recorded", lambda: served(at) == REQUESTS)


def top(at: Terminal, text: str) -> None:
    at.watch(text, "in flight")


def scrape_file(at: Terminal, text: str) -> None:
    at.run(text)
    written = at.folder / "monitoring" / "prometheus.yml"
    config = written.read_text(encoding="utf-8")
    assert '"127.0.0.1:9464"' in config
    assert config.count(": 15s") == 2
    written.write_text(config.replace(": 15s", ": 1s"), encoding="utf-8")


def check_prometheus_rules(at: Terminal, text: str) -> None:
    assert re.search(r"SUCCESS: \d+ rules found", at.run(text))


def serve_prometheus(at: Terminal, text: str) -> None:
    at.serve(text, "Server is ready to receive web requests")


def ask_prometheus(at: Terminal, text: str) -> None:
    def answered() -> bool:
        values = re.findall(r'slo_class="chat"} => (\S+) @', at.run(text))
        return sum(map(float, values)) == REQUESTS

    # Prometheus takes five seconds until it knows its targets.
    wait_until("it was scraped", answered, 0.5)


def write_rules(at: Terminal, text: str) -> None:
    (at.folder / "my-rules.yaml").write_text(text, encoding="utf-8")


def check_rules(at: Terminal, text: str) -> None:
    assert "1 rule in 1 file: 0 errors, 0 warnings" in at.run(text)


def backtest(at: Terminal, text: str) -> None:
    assert f" of {REQUESTS} streams" in at.run(text)


def audit(at: Terminal, text: str) -> None:
    assert f"{REQUESTS} of {REQUESTS} requests could be judged" in at.run(text)
    assert f"{REQUESTS} requests" in (at.folder / "report.html").read_text(encoding="utf-8")


STEPS: tuple[tuple[str, str, Callable[[Terminal, str], None]], ...] = (
    (SHELL, "python -m otel_llm.demo.paced_server", serve_model),
    ("python", "import openai", write_app),
    ("python", "import otel_llm", write_track),
    (SHELL, "otel-llm collect", collect),
    (SHELL, "export", export),
    (SHELL, "python app.py", run_app),
    (SHELL, "python track.py", run_track),
    (SHELL, "opentelemetry-instrument", run_bare),
    (SHELL, "otel-llm doctor", run_doctor),
    (SHELL, "otel-llm top", top),
    (SHELL, "mkdir", run),
    (SHELL, "sed", scrape_file),
    (SHELL, "otel-llm rules prometheus", run),
    (SHELL, "promtool check rules", check_prometheus_rules),
    (SHELL, "prometheus", serve_prometheus),
    (SHELL, "promtool query", ask_prometheus),
    ("yaml", "version: 1", write_rules),
    (SHELL, "otel-llm rules check", check_rules),
    (SHELL, "otel-llm rules backtest", backtest),
    (SHELL, "otel-llm audit", audit),
)
"""What is done with each snippet: its language, how it begins, and how it is run and checked."""

BESIDE = (run_bare, run_doctor, ask_prometheus, backtest)
"""Steps that take seconds: those that follow are done meanwhile."""


def matched(page: str) -> list[tuple[Callable[[Terminal, str], None], str]]:
    """Return what to do with each snippet; fail if the page has another one, one less, or another order."""
    found = snippets(page)
    for at, (snippet, (language, begins, _)) in enumerate(zip(found, STEPS, strict=False)):
        known = snippet.language == language and (snippet.text + " ").startswith((begins + " ", begins + "\n"))
        assert known, f"snippet {at} of the page is {snippet}, not {begins!r}"
    assert len(found) == len(STEPS), found[len(STEPS) :] or STEPS[len(found) :]
    return [(step, snippet.text) for snippet, (_, _, step) in zip(found, STEPS, strict=True)]


def test_every_line_of_the_page_works_in_order(tmp_path: Path) -> None:
    for needed in ("prometheus", "promtool"):
        program(needed)
    (tmp_path / "collector").symlink_to(ROOT / "collector")
    with terminal(tmp_path) as opened:
        beside: list[Future[None]] = []
        with ThreadPoolExecutor(len(BESIDE)) as others:
            for step, text in matched(PAGE):
                if step is backtest:  # it needs all requests
                    for one in beside:
                        one.result()
                if step in BESIDE:
                    beside.append(others.submit(step, opened, text))
                else:
                    step(opened, text)
        for one in beside:
            one.result()


@pytest.mark.parametrize(
    "change",
    [
        lambda page: page.replace("    python track.py\n", ""),
        lambda page: page.replace("    python track.py\n", "    python track.py\n    otel-llm rules check rules/\n"),
        lambda page: page + "\n    otel-llm top\n",
        lambda page: page + "\n```sh\notel-llm top\n```\n",
        lambda page: page.replace("```yaml", "```yml"),
        lambda page: page.replace("    python app.py\n", "").replace("track.py\n", "track.py\n    python app.py\n"),
    ],
    ids=["a line less", "a line more", "a line at the end", "a block at the end", "language", "order"],
)
def test_a_page_that_says_something_else_fails(change: Callable[[str], str]) -> None:
    assert change(PAGE) != PAGE
    with pytest.raises(AssertionError):
        matched(change(PAGE))


def test_commands_in_the_prose_have_tests_of_their_own() -> None:
    programs = "otel-llm|opentelemetry-instrument|pip|python|make|promtool|prometheus|curl|docker"
    assert set(re.findall(rf"`((?:{programs}) [^`]+)`", prose(PAGE))) == ELSEWHERE.keys()


def test_snippets_are_found_in_order() -> None:
    page = "text\n\n    one --option  # why\n    two\n\n```python\nif x:\n    y\n```\n\n- item\n    three\n"
    assert snippets(page) == [
        Snippet(SHELL, "one --option  # why"),
        Snippet(SHELL, "two"),
        Snippet("python", "if x:\n    y\n"),
        Snippet(SHELL, "three"),
    ]
    assert prose(page).split() == ["text", "-", "item"]
