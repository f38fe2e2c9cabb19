"""Audit two days of exported spans: three forms of one day, a table, a comparison with a report, a gate that fails.

    python examples/offline-audit/run_audit.py [FOLDER]

Exits 0 when the forms agree and the gate stops Tuesday's version, 1 when not.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from make_days import FORMS, write_days

import otel_llm.audit

TABLE = "otel-llm audit monday.collector.jsonl"
GATE = (
    "otel-llm audit tuesday.clickhouse.jsonl --baseline monday.collector.jsonl --html report.html --fail-on-regression"
)


def main(folder: Path) -> None:
    """Write the days, audit them, and show the commands."""
    write_days(folder)
    print(f"two days of spans, each in three forms, are in {folder}\n")
    print("Monday, read from        requests   attainment   idle, 99 % at most   first token, 99 % at most")
    found = set()
    for ending in FORMS:
        file = folder / f"monday.{ending}"
        chat = otel_llm.audit.load(file).summary()["classes"]["chat"]["client"]
        figures = f"{chat['attainment']:12.1%} {chat['idle_p99_s']:18.3f} s {chat['ttft_p99_s']:25.3f} s"
        print(f"{file.name:<24} {chat['requests']:8} {figures}")
        found.add((chat["requests"], figures))
    if len(found) > 1:
        sys.exit("the forms do not agree")
    statuses = [show(command, folder) for command in (TABLE, GATE)]
    if statuses != [0, 1]:
        sys.exit(f"the exit codes were {statuses}, not 0 and 1: see above")
    print(f"\nthe gate stopped Tuesday's version; open {folder / 'report.html'}")


def show(command: str, folder: Path) -> int:
    """Print and run a command line of `otel-llm`; return its exit code."""
    print(f"\n$ {command}", flush=True)
    arguments = shlex.split(command)[1:]
    done = subprocess.run([sys.executable, "-m", "otel_llm.cli.main", *arguments], cwd=folder, check=False)
    print(f"exit code {done.returncode}")
    return done.returncode


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="offline-audit-")))
