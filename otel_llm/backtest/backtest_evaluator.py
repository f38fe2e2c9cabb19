"""One evaluator of a backtest: the collector's own, over journals, on their times of receipt.

The results are the decisions of a collector that received these exports at these instants: evaluator, rule engine,
prefilter and budgets are the service's, and so is the order. No clock is read, nothing is sent, nothing in the
journal's folder is written.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_llm.evaluate.evaluator import Evaluator
from otel_llm.evaluate.intake import read_export
from otel_llm.evaluate.timers import Timeouts
from otel_llm.evaluate.windowing import Windowing
from otel_llm.formats.records import DecodeError
from otel_llm.rules.engine.rule_engine import RuleEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from otel_llm.collector.settings import Limits
    from otel_llm.evaluate.streams.final_verdict import EndedStream
    from otel_llm.evaluate.streams.live_stream import LiveStream
    from otel_llm.evaluate.usage import Metered
    from otel_llm.formats.io.journal_format import Record
    from otel_llm.formats.rows import Row
    from otel_llm.rules.decisions.decision_records import Decision
    from otel_llm.rules.files.ruleset import RuleSet
    from otel_llm.slo.classes import SloClasses
    from otel_llm.slo.stated_total import StatedReply

log = logging.getLogger(__name__)
_PROGRESS_RECORDS: Final = 64


@dataclass(frozen=True, slots=True)
class Terms:
    """How streams are followed: the same options as `collect` has."""

    classes: SloClasses
    limits: Limits
    timeouts: Timeouts = field(default_factory=Timeouts)
    window_ns: int = 10_000_000_000


@dataclass(slots=True)
class Run:
    """One collector's evaluator over the records of a journal, under one set of rules.

    `decided` gets the decisions as they are made, in order.
    """

    terms: Terms
    rules: RuleSet
    decided: Callable[[list[Decision]], None]
    judged: int = 0
    """Streams that have ended."""
    headless: int = 0
    """Those of them without a first segment in the journal: they began before it, or the segment was lost."""
    counts: Counter[str] = field(default_factory=Counter)
    """`undecodable` records, and `internal_errors`: records that hit a bug of ours."""
    evaluator: Evaluator = field(init=False)

    def __post_init__(self) -> None:
        terms = self.terms
        windowing = Windowing(window_ns=terms.window_ns, lateness_ns=terms.timeouts.lateness_ns)
        self.evaluator = Evaluator(
            classes=terms.classes,
            rules=RuleEngine(self.rules),
            windowing=windowing,
            sink=_Found(self),
            timeouts=terms.timeouts,
        )

    def take(self, record: Record) -> None:
        """Evaluate the next record, which has a time of receipt."""
        assert record.receipt_ns is not None  # noqa: S101
        try:
            batch = read_export(record.raw, record.receipt_ns, self.terms.limits.intake, record.tenant)
        except DecodeError:
            self.counts["undecodable"] += 1
            return
        try:
            self.evaluator.apply(batch, record.receipt_ns)
        except Exception:  # the live collector goes on as well; logged once with its traceback, counted always
            if not self.counts["internal_errors"]:
                log.exception("otel-llm: a record could not be evaluated")
            self.counts["internal_errors"] += 1

    def until(self, instant_ns: int) -> None:
        """Let time pass up to this instant (unix ns), after the last record, as for a collector that is stopped."""
        self.evaluator.finish(instant_ns)

    @property
    def in_flight(self) -> int:
        """Return the number of streams that have not ended."""
        return len(self.evaluator.live)


@dataclass(frozen=True, slots=True)
class _Found:
    """The evaluator's sink: decisions are passed on, verdicts counted, all else is left to the collector."""

    run: Run

    def charged(self, metered: Metered) -> None:
        """Ignore: the counters are the collector's."""

    def streams_judged(self, ended: Sequence[EndedStream[LiveStream]]) -> None:
        """Count ended streams."""
        self.run.judged += len(ended)
        self.run.headless += sum(not one.stream.received.has(0) for one in ended)

    def reply_stated(self, reply: StatedReply) -> None:
        """Ignore: the counters are the collector's."""

    def foreign_judged(self, row: Row) -> None:
        """Ignore: no rule is about other instrumentations' spans."""

    def decided(self, decisions: list[Decision]) -> None:
        """Pass decisions on."""
        self.run.decided(decisions)


def replay(records: Iterable[Record], runs: Sequence[Run], progress: Callable[[], None] | None = None) -> None:
    """Apply all records to every run; `progress` is called at intervals."""
    for number, record in enumerate(records, 1):
        for run in runs:
            run.take(record)
        if progress is not None and number % _PROGRESS_RECORDS == 0:
            progress()
    if progress is not None:
        progress()
