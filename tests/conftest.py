"""What holds for every test: its tier is known before it runs, and a skip has a reason that CONTRIBUTING names."""

from __future__ import annotations

import _posixsubprocess
import gc
import os
import platform
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from support.examples import register_profiles
from support.requirements import FIRST, REQUIREMENTS, WORLD, announced_skips
from support.tiers import RANDOM, needs_of_test, tier_of

register_profiles()
# Programs of the tests share few cores: at their exit they may take longer than those of users.
os.environ.setdefault("OTEL_LLM_EXIT_TIMEOUT", "5")

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
"""The audit events of a program that starts."""
UNANNOUNCED: list[str] = []
STARTED: list[str] = []
"""What has been started since the running test began."""


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts a command with `&` so that it ignores SIGINT, and so would every program that a test starts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, needed in REQUIREMENTS.items():
        config.addinivalue_line("markers", f"{name}: {needed.missing}: {needed.remedy} (set automatically)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        assert isinstance(item, pytest.Function)
        needs = needs_of_test(item.path, item.originalname, frozenset(item.fixturenames))
        marks = {mark.name for mark in item.iter_markers()}
        if getattr(item.obj, "is_hypothesis_test", False):
            needs |= {RANDOM}
        marks |= needs
        tier = tier_of(needs, marks)
        for name in needs | {tier}:
            item.add_marker(name)
        # No tier runs such a test, or one runs it beside others.
        assert not (tier == WORLD and marks & {"essential", RANDOM}), item.nodeid
        assert not ("alone" in marks and marks & {"essential", RANDOM}), item.nodeid
    # With xdist, start the files that wait for programs first and the small files last, so that no process ends with a
    # long one.
    if "PYTEST_XDIST_WORKER" in os.environ:
        sizes = Counter(item.path for item in items)
        waiting = {item.path for item in items if not is_first(item)}
        items.sort(key=lambda item: (item.path not in waiting, -sizes[item.path]))


def is_first(item: pytest.Item) -> bool:
    """Return whether a test is expected to start no program."""
    return item.get_closest_marker(FIRST) is not None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    # Half a million objects of modules and tests live to the end: looking among them for garbage finds none, now or
    # when a test collects.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        STARTED.clear()  # what modules start when they are imported


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in STARTS:
        STARTED.append(f"{event} {arguments[:2]}"[:300])


def watched(start: Callable[..., int]) -> Callable[..., int]:
    """Return the function by which multiprocessing starts processes, which raises no audit event, with one."""

    def starting(*arguments: Any) -> int:
        STARTED.append(f"fork_exec {arguments[0]}"[:300])
        return start(*arguments)

    return starting


platform.uname().processor  # noqa: B018  runs `uname` once, here, because SDKs report the platform
sys.addaudithook(watch)
_posixsubprocess.fork_exec = watched(_posixsubprocess.fork_exec)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    started, STARTED[:] = STARTED[:], []
    if started and report.passed and is_first(item):
        report.outcome = "failed"
        report.longrepr = (
            f"the test started a program ({started[0]}), and is in the tier of those that start none: "
            "mark it with pytest.mark.system if the product starts it, or see tests/support/tiers.py"
        )
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # With xdist this is called in the process that adds up, too.
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
