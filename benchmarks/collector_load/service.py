"""A real `otel-llm collect`, seen from outside: its addresses, its CPU time, its memory, its metrics."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
RULES = HERE / "rules.yaml"
NO_RULES = HERE / "no-rules.yaml"
DRY_RULE = HERE / "dry.yaml"
RULE_SETS: dict[str, Path | None] = {"none": NO_RULES, "five": RULES, "shipped": None}
"""By name: no rule, the five of the benchmark, and the built-in ones (None)."""
LOG = "collect.log"
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_QUIET_SHARE = 0.15
_QUIET_LOOKS = 8
"""Two seconds: what rules decide once the streams fall silent belongs to what is measured, every time."""
_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Collector:
    """A running collector, and the folder in which it writes."""

    process: subprocess.Popen[bytes]
    grpc: str
    http: str
    web: str
    folder: Path

    @property
    def decisions(self) -> Path:
        return self.folder / "decisions.jsonl"

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process tree so far, ended children included."""
        total = 0
        for pid in _tree(self.process.pid):
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
            total += sum(map(int, stat.rpartition(")")[2].split()[11:15]))  # utime, stime, cutime, cstime
        return total * _TICK_S

    def waited_s(self) -> float:
        """Return the seconds its threads were ready and waited for a core: what else the machine had to do."""
        tasks = (task for pid in _tree(self.process.pid) for task in Path(f"/proc/{pid}/task").glob("*/schedstat"))
        return sum(int(task.read_text(encoding="ascii").split()[1]) for task in tasks) / 1e9

    def memory_mb(self) -> tuple[float, float]:
        """Return the resident memory of the process tree now and at its highest, MB (10^6 bytes)."""
        now = highest = 0
        for pid in _tree(self.process.pid):
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
            now += int(re.findall(r"VmRSS:\s+(\d+)", status)[0])
            highest += int(re.findall(r"VmHWM:\s+(\d+)", status)[0])
        return now * 1024 / 1e6, highest * 1024 / 1e6

    def when_quiet(self, limit_s: float = 60.0) -> float:
        """Wait until what was accepted is evaluated, as seen by the CPU falling silent; return its CPU seconds then."""
        limit = time.monotonic() + limit_s
        before, quiet, at_quiet = self.cpu_s(), 0, 0.0
        while quiet < _QUIET_LOOKS:
            if time.monotonic() > limit:
                print(f"# the collector is still busy {limit_s:.0f} s after the last export", file=sys.stderr)
                return before
            time.sleep(_LOOK_S)
            now = self.cpu_s()
            if now - before > _QUIET_SHARE * _LOOK_S:
                quiet = 0
            else:
                at_quiet = at_quiet if quiet else now
                quiet += 1
            before = now
        return at_quiet

    def complaints(self) -> list[str]:
        """Return what it logged, but for its first lines and its decisions."""
        lines = (self.folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if not line.startswith(("listening: ", "classes: ", "kept of ", "RULE "))]

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels, NaN while the collector is too busy to say."""
        try:
            with urllib.request.urlopen(f"{self.web}/metrics", timeout=60) as answer:
                text = answer.read().decode()
        except OSError:
            return math.nan
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    def decided(self, rule: str) -> list[dict[str, Any]]:
        """Return the records of a rule's firings."""
        with self.decisions.open(encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines if f'"{rule}"' in line]
        return [record for record in records if record["rule"] == rule and record.get("state") == "firing"]


@contextmanager
def collecting(folder: Path, *options: str, slo: Path, source: Path | None, rules: str = "five") -> Iterator[Collector]:
    """Run a collector with everything on: journal, windows, rules, decisions; `source` is another source tree."""
    path = RULE_SETS[rules]
    command = [
        *(sys.executable, "-m", "otel_llm.cli.main", "collect", "--slo", slo),
        *(() if path is None else ("--rules", path)),
        *("--journal", folder / "journal", "--decisions", folder / "decisions.jsonl"),
        *("--windows", folder / "windows.jsonl", "--verdicts", "none"),
        *("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--web", "127.0.0.1:0", *options),
    ]
    core = ("OTEL_LLM_CORE", "OTEL_LLM_CACHE_DIR")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_") or name in core}
    environment["PYTHONUNBUFFERED"] = "1"
    if source is not None:
        environment["PYTHONPATH"] = str(source.resolve())
    reported = folder / LOG
    with reported.open("wb") as log:
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=folder,  # what stands in the current folder would be imported first
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        collector = Collector(process, *_addresses(process, reported), folder)
        yield collector
        if complaints := collector.complaints():
            print(*(f"# collector: {line}" for line in complaints[-20:]), sep="\n", file=sys.stderr)
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _addresses(process: subprocess.Popen[bytes], reported: Path) -> tuple[str, str, str]:
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        text = reported.read_text(encoding="utf-8")
        if found := re.search(r"OTLP/gRPC (\S+), OTLP/HTTP (\S+), web (\S+)\n", text):
            return found[1], found[2], found[3]
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise SystemExit(f"the collector did not start; its output:\n{reported.read_text(encoding='utf-8')}")


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text(encoding="ascii").split():
            yield from _tree(int(child))
