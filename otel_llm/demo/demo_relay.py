"""The demo of the relay: readers use two servers, one that stalls and a sound one, without the relay and with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Any, Final, Literal

import requests

import otel_llm.audit
from otel_llm.demo import demo_children, demo_readers
from otel_llm.demo.children import Child
from otel_llm.shared.clock import monotonic_s
from otel_llm.shared.formatting import seconds, share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from otel_llm.demo.demo_readers import Reply


WAITED_S: Final = 0.1
"""A shorter wait is not noticed (Nielsen, Usability Engineering, 1993, section 5.5)."""
BARS: Final = 8
"""Rows of the picture at most."""
BAR_WIDTH: Final = 24
_NAME, _COLUMN = 42, 26


@dataclass(frozen=True, slots=True)
class Figures:
    """One run as its clients measured it. `waits_s`: of each recorded reader in mid-reply, the longest first."""

    readers: int
    waits_s: tuple[float, ...]
    completed: int
    same: int
    moves: Counter[str]
    """Outcomes of the migrations that were decided."""

    @classmethod
    def of(
        cls,
        rows: Sequence[Mapping[str, Any]],
        replies: Sequence[Reply],
        undisturbed: Sequence[Reply],
        decisions: Sequence[Mapping[str, Any]] = (),
    ) -> Figures:
        """Return the figures from an audit's rows, the readers' replies, and the decision records."""
        felt = [row for row in rows if row["measured_at"] == "client"]
        return cls(
            readers=len(replies),
            waits_s=tuple(sorted((row["idle_decode_s"] or 0.0 for row in felt), reverse=True)),
            completed=sum(row["outcome"] == "completed" for row in felt),
            same=sum(one.same(other) for one, other in zip(replies, undisturbed, strict=True)),
            moves=Counter(one["outcome"] for one in decisions if one["action"] == "migrate"),
        )

    @property
    def waited(self) -> int:
        """The readers who noticed a wait."""
        return sum(wait >= WAITED_S for wait in self.waits_s)

    @property
    def exact(self) -> bool:
        """Whether every reader was recorded and got the undisturbed reply."""
        return self.readers == len(self.waits_s) == self.completed == self.same


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return decision records; none if no file was written."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def lines(straight: Figures, relayed: Figures) -> Iterator[str]:
    """Yield the figures of both runs and a bar for each of the longest waits, as plain text."""
    both = (straight, relayed)
    yield _row("", "straight", "through the relay")
    yield _row(f"readers who waited in mid-reply (> {seconds(WAITED_S)})", *(_of(one.waited, one) for one in both))
    yield _row("longest wait of a reader", *(seconds(max(one.waits_s, default=None)) for one in both))
    yield _row("replies that came whole", *(share(one.completed / one.readers) for one in both))
    yield _row("replies identical, token for token", *(_of(one.same, one) for one in both))
    yield _row("moved to the other server in mid-reply", "-", _moves(relayed.moves))
    most = max((*straight.waits_s, *relayed.waits_s), default=0.0)
    shown = min(BARS, max(straight.waited, relayed.waited))
    yield ""
    if shown == 0:
        return
    yield f"{'the longest waits, a reader a row:':<{_NAME + 2}}straight, and through the relay"
    for i in range(shown):
        bars = [_bar(one.waits_s[i] if i < len(one.waits_s) else None, most) for one in both]
        yield f"  {bars[0]:<{_NAME}}{bars[1]}".rstrip()
    yield ""


def _row(name: str, *values: str) -> str:
    return f"{name:<{_NAME}}  " + "".join(f"{value:<{_COLUMN}}" for value in values).rstrip()


def _of(count: int, figures: Figures) -> str:
    return f"{count} of {figures.readers}"


def _moves(moves: Counter[str]) -> str:
    others = ", ".join(f"{count} {outcome}" for outcome, count in sorted(moves.items()) if outcome != "done")
    return f"{moves['done']}" + (f" (and {others})" if others else "")


def _bar(wait_s: float | None, most_s: float) -> str:
    if wait_s is None:
        return ""
    return f"{'#' * round(BAR_WIDTH * wait_s / most_s)} {seconds(wait_s)}".lstrip()


# A process of its own, so that the group continues even if this one is killed meanwhile.
_SCRIPT: Final = """\
trap 'kill -s CONT -- -$0; kill $sleeping; exit' TERM INT HUP
kill -s STOP -- -$0
sleep $1 & sleeping=$!
wait
kill -s CONT -- -$0
"""
_SHELL: Final = "/bin/sh"


@contextmanager
def stopped_group(group: int, seconds: float) -> Iterator[None]:
    """Stop a process group now, for `seconds` or until the block ends, whichever is first."""
    keeper = subprocess.Popen(  # noqa: S603  our own script, with numbers
        [_SHELL, "-c", _SCRIPT, str(group), f"{seconds:g}"], stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield
    finally:
        keeper.terminate()
        keeper.wait()
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGCONT)


Run = Literal["straight", "relay"]

REPLIES_S: Final = 60.0
READY_S: Final = 20.0
RELAYING: Final = r"relaying (http://\S+) to .* page and metrics on (http://\S+)"
STALLS: Final = ("--stall-every", "2", "--stall-after", "12", "--stall-for", "4")
FAST_READERS: Final = """\
# The tiny model writes faster than people read; these readers come near the end of its text.
version: 1
default: fast
classes:
  fast: {reading_speed: 20, deadline: {policy: reading, max_idle: 1s}}
"""


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a demo: servers, readers, classes, and how long server b is stopped (0: it stalls by itself)."""

    servers: str
    story: str
    readers: int
    speed: str
    """The readers' reading speed, by the class that judges them."""
    options: tuple[str, ...]
    slo: str | None
    stop_s: float


PACED: Final = Load(
    servers="two servers of scripted replies",
    story="b stalls under every second of its streams, for 4 s",
    readers=24,
    speed="5 tokens/s",
    options=("--model", "healthy", "--max-tokens", "80", "--within", "1"),
    slo=None,
    stop_s=0.0,
)
VLLM: Final = Load(
    servers="two real vLLM on this machine's CPU (their start takes a minute)",
    story="b is stopped (SIGSTOP) in the middle of its streams, for 6 s",
    readers=12,
    speed="20 tokens/s",
    options=("--model", "tiny", "--max-tokens", "300", "--within", "0.1"),
    slo=FAST_READERS,
    stop_s=6.0,
)


def rules_file() -> Path:
    """Return the rule that the demo enforces: inside an installed package, or the example of the repository.

    Raises FileNotFoundError if neither exists (a broken installation).
    """
    here = Path(__file__)
    for path in (here.with_name("demo_relay_rules.yaml"), here.parents[2] / "examples" / "relay" / "rules.yaml"):
        if path.is_file():
            return path
    raise FileNotFoundError(f"the demo's rule file is missing from {here.parent}: reinstall otel-llm")


def show_relay(console: Console, folder: Path, vllm: Path | None, *, watched: bool) -> bool:
    """Play both runs and print them side by side; return whether every reply through the relay was undisturbed.

    `watched`: the output is a terminal, where the progress line of a run is overwritten.
    """
    with ExitStack() as children:
        demo = _Demo(console, folder, PACED if vllm is None else VLLM, children, watched=watched)
        demo.start(vllm)
        undisturbed = demo.undisturbed()
        straight, relayed = demo.straight(), demo.through_the_relay()
    before = Figures.of(demo.rows("straight"), straight, undisturbed)
    after = Figures.of(demo.rows("relay"), relayed, undisturbed, read_records(demo.decisions))
    console.print(f"\nwhat {demo.readers} felt, measured at the clients")
    for line in lines(before, after):
        console.print(line, markup=False)
    baseline, recording = folder / "straight" / "journal", folder / "relay" / "journal"
    for name, words in {
        "rule": demo.rules,
        "decisions": demo.decisions,
        "recordings": f"{baseline} {recording}",
        "compare": f"otel-llm audit {recording} --baseline {baseline} --html {folder / 'relay.html'}",
    }.items():
        console.print(f"{name:<13}{words}", markup=False)
    return after.exact


class _Demo:
    """The processes and files of one demo; `children` always ends the processes."""

    def __init__(self, console: Console, folder: Path, load: Load, children: ExitStack, *, watched: bool) -> None:
        self.decisions = folder / "decisions.jsonl"
        self.rules = folder / "rules.yaml"
        self._console = console
        self._folder = folder
        self._load = load
        self._children = children
        self._watched = watched
        self._slo = None if load.slo is None else folder / "slo.yaml"
        self._servers: list[Child] = []
        self._urls: list[str] = []
        self._collectors: dict[Run, Child] = {}

    @property
    def readers(self) -> str:
        """The readers in words."""
        return f"{self._load.readers} readers of {self._load.speed}"

    def start(self, vllm: Path | None) -> None:
        """Start the servers and a collector for each run, all together; return when the servers serve."""
        self._console.print(f"{'servers':<13}a and b: {self._load.servers}\n{'':<13}{self._load.story}")
        copyfile(rules_file(), self.rules)
        if self._slo is not None and self._load.slo is not None:
            self._slo.write_text(self._load.slo, encoding="utf-8")
        for name, options in (("a", ()), ("b", STALLS)):
            log = self._folder / f"server-{name}.log"
            server = demo_children.paced_server(log, *options) if vllm is None else demo_children.vllm_server(log, vllm)
            self._servers.append(self._children.enter_context(server))
        url_of = demo_children.paced_url if vllm is None else demo_children.vllm_url
        self._urls = [url_of(server) for server in self._servers]
        for run in ("straight", "relay"):
            (self._folder / run).mkdir()
            self._collectors[run] = self._children.enter_context(demo_children.collector(self._folder / run))

    def undisturbed(self) -> list[Reply]:
        """Return the readers' replies from server a alone, which never stalls; not recorded."""
        return self._read("undisturbed", self._urls[:1], {"OTEL_SDK_DISABLED": "true"})

    def straight(self) -> list[Reply]:
        """Return the readers' replies from both servers in turn."""
        with self._recorded("straight") as grpc:
            return self._read("straight", self._urls, demo_children.telemetry(grpc, "readers"), disturbed=True)

    def through_the_relay(self) -> list[Reply]:
        """Return the readers' replies through the relay before both."""
        with self._recorded("relay") as grpc, self._relay(grpc) as url:
            return self._read("relay", [url], demo_children.telemetry(grpc, "readers"), disturbed=True)

    def rows(self, run: Run) -> Sequence[Mapping[str, Any]]:
        """Return the requests of a run as the audit judges its recording."""
        return otel_llm.audit.load(self._folder / run / "journal", slo=self._slo, windows=False).rows

    @contextmanager
    def _recorded(self, run: Run) -> Iterator[str]:
        """Yield the address of a run's collector, which is stopped after the run: its journal is complete then."""
        collector = self._collectors[run]
        yield collector.wait_for(demo_children.LISTENING, demo_children.START_S).group(1)
        status = collector.stop()
        if status != 0:
            raise collector.failure(f"stopped with status {status}")

    @contextmanager
    def _relay(self, grpc: str) -> Iterator[str]:
        command = [
            *(sys.executable, "-m", "otel_llm.cli.main", "relay", "--listen", "127.0.0.1:0", "--web", "127.0.0.1:0"),
            *("--rules", str(self.rules), "--decisions", str(self.decisions)),
            *(() if self._slo is None else ("--slo", str(self._slo))),
        ]
        for name, url in zip("ab", self._urls, strict=True):
            command += ["--backend", f"{name}={url.removesuffix('/v1')}"]
        env = demo_children.quiet_environment() | demo_children.telemetry(grpc, "relay")
        with Child("relay", command, env, self._folder / "relay.log") as relay:
            found = relay.wait_for(RELAYING, demo_children.START_S)
            _wait_until_ready(relay, found.group(2))
            yield f"{found.group(1)}/v1"

    def _read(
        self, name: str, urls: Sequence[str], telemetry: dict[str, str], *, disturbed: bool = False
    ) -> list[Reply]:
        """Let the readers read; stop server b in mid-stream if the load has it so."""
        path, count = self._folder / f"replies-{name}.jsonl", self._load.readers
        command = [
            *(sys.executable, "-m", "otel_llm.demo.demo_readers", *urls, "--replies", str(path)),
            *("--readers", str(count), *self._load.options),
        ]
        env = demo_children.quiet_environment() | telemetry
        began = monotonic_s()
        with ExitStack() as stack:
            client = stack.enter_context(Child("readers", command, env, self._folder / f"readers-{name}.log"))
            progress = stack.enter_context(self._progress(name))
            ended, stop_s = 0, self._load.stop_s if disturbed else 0.0
            while ended < count:
                found = client.wait_for(rf"(\d+) of {count} have (text|ended)", REPLIES_S)
                number, what = int(found.group(1)), found.group(2)
                if what == "ended":
                    ended = number
                    progress(f"{ended} of {count} replies")
                elif number == count and stop_s:
                    progress(f"all have text; b is stopped for {stop_s:g} s")
                    stack.enter_context(stopped_group(self._servers[1].process.pid, stop_s))
            if client.process.wait(REPLIES_S) != 0:
                raise client.failure("failed")
        self._console.print(f"{name:<13}{count} replies in {monotonic_s() - began:.0f} s")
        return demo_readers.read(path)

    @contextmanager
    def _progress(self, name: str) -> Iterator[Any]:
        """Yield a display of a run's progress: on a terminal only, where the line is overwritten."""
        if not self._watched:
            yield lambda _words: None
            return
        with self._console.status(f"{name:<13}...") as status:
            yield lambda words: status.update(f"{name:<13}{words}")


def _wait_until_ready(relay: Child, web: str) -> None:
    """Wait until the relay knows its backends' models. Raises ClickException with the relay's words."""
    limit = monotonic_s() + READY_S
    while monotonic_s() < limit:
        with suppress(requests.RequestException):
            if requests.get(f"{web}/readyz", timeout=1).ok:
                return
        time.sleep(0.05)
    raise relay.failure("found no healthy backend")
