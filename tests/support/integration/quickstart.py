"""A page read as its reader does it: snippets in order, and a terminal on a machine where nothing else runs."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.commands import environment, wait_until
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
