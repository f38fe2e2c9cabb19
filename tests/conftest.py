"""What holds for every test: a skip must be announced in CONTRIBUTING's table, or the run fails."""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

# These machines are noisy: an example that takes long says nothing about the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

ROOT = Path(__file__).parent.parent
UNANNOUNCED: list[str] = []
PROGRAMS = re.compile(r"\bsubprocess\b|\bsupport\.(commands|hosts|interop_service|kernel_modes|relay\.process)\b")
"""What a file imports whose tests start processes."""


def announced_skips() -> tuple[str, ...]:
    """Return the reasons that CONTRIBUTING's table of allowed skips names, as prefixes."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("## Allowed skips")[2].partition("\n## ")[0]
    return tuple(re.findall(r"^\| `([^`]+)`", table, flags=re.MULTILINE))


def waits_for_programs(path: Path) -> int:
    """Return 0 where the tests of a file run programs of others, 1 where they run ours, 2 where they run none."""
    if {"integration", "compat"} & set(path.parts):
        return 0
    return 1 if PROGRAMS.search(path.read_text(encoding="utf-8")) else 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Spread over processes, files that wait for programs begin and small ones end: no process is left with a long one.
    if "PYTEST_XDIST_WORKER" in os.environ:
        sizes = Counter(item.path for item in items)
        places = {path: (waits_for_programs(path), -size) for path, size in sizes.items()}
        items.sort(key=lambda item: places[item.path])


def pytest_collection_finish() -> None:
    # Half a million objects of modules and tests live to the end: a test that collects garbage need not search them.
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # Where tests are spread over processes this is called in the one that adds up, too.
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not reason.removeprefix("Skipped: ").startswith(announced_skips()):
            UNANNOUNCED.append(f"{report.nodeid}: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in UNANNOUNCED:
        terminalreporter.write_line(f"SKIP THAT CONTRIBUTING DOES NOT NAME: {line}", red=True, bold=True)
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.write_line(
            f"!!! {len(skipped)} tests did NOT run (skipped, not passed): the reasons are above", yellow=True, bold=True
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    if UNANNOUNCED:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
