"""Backtest rules over journals: compare their decisions with those made then, or with those of other rules."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_llm.backtest.backtest_evaluator import Run, Terms, replay
from otel_llm.backtest.comparison import Comparison, compare
from otel_llm.backtest.decision_store import NEW, THEN, Store
from otel_llm.formats.records import InputError
from otel_llm.rules.decisions.decision_records import LeftOut, read_left_out
from otel_llm.rules.decisions.files import decision_files, read_back

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from otel_llm.backtest.journal_recordings import Recording
    from otel_llm.rules.decisions.decision_records import Decision
    from otel_llm.rules.files.ruleset import RuleSet

VERBS: Final = frozenset({"migrate", "preempt", "abort", "drain", "scale", "webhook"})
"""The verbs that may be enforced: all, since a backtest does no action."""


@dataclass(slots=True)
class LiveDecisions:
    """The result of reading decision files."""

    lines: int = 0
    broken: int = 0
    """Lines that are no decision; the last line of a file that is being written may be one."""
    outside: int = 0
    """Decisions made before the journal begins or after it ends."""
    left_out: int = 0
    """Decisions without a record, as the counts in the files say."""
    found_again: int = 0
    """Decisions of the backtest that are taken for them."""
    counts: list[LeftOut] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Backtest:
    """The result of a backtest.

    `until_ns`: the end of the evaluated time, unix ns: the stop of the collector, if that is known; else the last
    receipt, or the last decision in its file.
    """

    recording: Recording
    until_ns: int
    judged: int
    in_flight: int
    headless: int
    counts: Counter[str]
    live: LiveDecisions | None
    comparison: Comparison = field(repr=False)

    @property
    def differs(self) -> bool:
        """Return whether both sides were compared and differ in any decision."""
        return self.comparison.compared and not self.comparison.records.identical


def backtest(
    recording: Recording,
    *,
    rules: RuleSet,
    terms: Terms,
    against: RuleSet | None = None,
    decisions: Sequence[Path] = (),
    notified: Collection[str] = (),
    progress: Callable[[int], None] | None = None,
    decided: Callable[[list[Decision]], None] | None = None,
) -> Backtest:
    """Evaluate journals by `rules`, and compare with the rules or the decisions of then.

    Args:
        recording: journals of `otel-llm collect`.
        rules: the rules under test.
        terms: how streams are followed.
        against: the rules of then, evaluated too.
        decisions: decision files of the run that wrote the journal, the oldest first.
        notified: receivers of `webhook` that only notify people.
        progress: called with the bytes of the journal read so far.
        decided: gets the decisions of `rules` as they are made.

    Raises:
        InputError: a file is no journal, cannot be read, or there is no record in any.
        ValueError: both `against` and `decisions` are given.
    """
    if against is not None and decisions:
        raise ValueError("either against other rules or against decisions, not both")
    with Store(notified) as store:
        live = _read_decisions(store, decisions) if decisions else None
        new = Run(terms, rules, _both(store, decided))
        runs = [new]
        if against is not None:
            runs.append(Run(terms, against, lambda found: store.decided(THEN, found)))
        replay(recording, runs, None if progress is None else lambda: progress(recording.done_bytes))
        if recording.first_ns is None or recording.last_ns is None:
            raise InputError(_nothing(recording))
        until_ns = _until(recording, store, live)
        for run in runs:
            run.until(until_ns)
        if live is not None:
            live.outside = store.leave_out(recording.first_ns, until_ns)
            live.found_again = store.take_for(live.counts)
        found = compare(store, compared=len(runs) > 1 or live is not None)
    return Backtest(
        recording,
        until_ns,
        new.judged,
        new.in_flight,
        new.headless,
        new.counts,
        live,
        found,
    )


def _both(store: Store, decided: Callable[[list[Decision]], None] | None) -> Callable[[list[Decision]], None]:
    def take(found: list[Decision]) -> None:
        store.decided(NEW, found)
        if decided is not None:
            decided(found)

    return take


def _read_decisions(store: Store, paths: Sequence[Path]) -> LiveDecisions:
    found = LiveDecisions()
    for path in paths:
        if not decision_files(path):
            raise InputError(f"{path}: no such file: name one that collect --decisions wrote")
        try:
            for line in read_back(path):
                found.lines += 1
                try:
                    record = json.loads(line)
                    count = read_left_out(record)
                    if count is None:
                        store.recorded(record)
                    else:
                        found.left_out += count.count
                        found.counts.append(count)
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    found.broken += 1
        except OSError as error:
            raise InputError(
                f"{path}: {error.strerror or error}: name a file that collect --decisions wrote"
            ) from error
    return found


def _until(recording: Recording, store: Store, live: LiveDecisions | None) -> int:
    last_ns = recording.last_ns or 0
    stopped_ns = recording.stopped_ns()
    if stopped_ns is not None and stopped_ns >= last_ns:
        return stopped_ns
    # It died, or it is running: it has lived until its last decision at least.
    return last_ns if live is None else max(last_ns, store.last_ns(THEN))


def _nothing(recording: Recording) -> str:
    names = ", ".join(map(str, recording.paths))
    unsealed = recording.skipped.counts["unsealed"]
    if unsealed:
        return f"{names}: {unsealed} records of another tool, without a time of receipt"
    return f"{names}: no record in this journal"
