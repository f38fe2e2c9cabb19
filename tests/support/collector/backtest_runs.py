"""A fleet as a collector received it live, its journal, and the backtest of that."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random

from support.core.core_fleets import Fleet, Seen, advances
from support.otlp import T0_NS, export

from otel_llm.backtest.backtest import Backtest, backtest
from otel_llm.backtest.backtest_evaluator import Terms
from otel_llm.backtest.journal_recordings import Recording
from otel_llm.collector.checkpoints import STOPPED_NS
from otel_llm.collector.settings import Limits
from otel_llm.journal.checkpoint import write_resume
from otel_llm.journal.journal import Journal
from otel_llm.rules.decisions.decision_records import Decision
from otel_llm.rules.files.ruleset import RuleSet


def lived(fleet: Fleet, random: Random) -> list[Decision]:
    """Return what a collector decides that looks at the clock at random.

    It is stopped when nothing is left to do.
    """
    seen = Seen(fleet)
    seen.run(advances=advances(random, fleet))
    return seen.decisions


def stops_ns(fleet: Fleet) -> int:
    """Return when `lived` is stopped: long after the last receipt."""
    timeouts = fleet.timeouts
    last_ns = fleet.deliveries[-1].receipt_ns if fleet.deliveries else T0_NS
    return last_ns + timeouts.lost_after_ns + 2 * timeouts.lateness_ns + 3 * fleet.window_ns


def journaled(fleet: Fleet, folder: Path, *, stopped: bool = True) -> Path:
    """Write the journal of a fleet, in several files; `stopped`: the collector was, and did not die."""
    with Journal(folder, fsync="never", compress=False, max_bytes=4096) as journal:
        for delivery in fleet.deliveries:
            journal.append(export(*delivery.spans).SerializeToString(), delivery.receipt_ns)
    if stopped:
        write_resume(folder, {STOPPED_NS: stops_ns(fleet)})
    return folder


def terms(fleet: Fleet) -> Terms:
    return Terms(fleet.classes, Limits(), fleet.timeouts, fleet.window_ns)


def backtested(
    fleet: Fleet,
    folder: Path,
    *,
    rules: RuleSet | None = None,
    against: RuleSet | None = None,
    decisions: Iterable[Path] = (),
) -> tuple[list[Decision], Backtest]:
    """Backtest a fleet's journal; return what was decided, in order, and what was found."""
    decided: list[Decision] = []
    found = backtest(
        Recording([folder]),
        rules=fleet.rules if rules is None else rules,
        terms=terms(fleet),
        against=against,
        decisions=list(decisions),
        decided=decided.extend,
    )
    return decided, found
