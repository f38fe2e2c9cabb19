"""A collector that dies at some instant and is started again on its journal, beside one that never died."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.core.core_fleets import Fleet, Seen
from support.otlp import export

from otel_llm.actions.sinks.console import Console
from otel_llm.actions.sinks.sinks import Sinks
from otel_llm.collector.checkpoints import FROM_NS, WINDOWS_NS
from otel_llm.collector.export.egress import Egress
from otel_llm.collector.pipeline import Pipeline
from otel_llm.collector.restart import Windows, replay
from otel_llm.collector.service import build_pipeline
from otel_llm.collector.settings import Limits, Settings
from otel_llm.evaluate.streams.final_verdict import EndedStream
from otel_llm.evaluate.streams.stream_in_flight import StreamInFlight
from otel_llm.evaluate.usage import Metered
from otel_llm.evaluate.windowing import GROUP_NAMES
from otel_llm.formats.rows import Row
from otel_llm.journal.checkpoint import write_resume
from otel_llm.journal.journal import Journal
from otel_llm.live.user_metrics import UserMetrics
from otel_llm.rules.decisions.decision_records import Decision
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.shared.clock import FakeClock
from otel_llm.slo.stated_total import StatedReply


@dataclass(frozen=True)
class Crash:
    """Where a run ends: after these many exports were journaled, evaluated, and covered by the checkpoint.

    `at_ns`: up to where time had passed by then; `checkpoint` None: it was never written.
    """

    journaled: int
    evaluated: int
    checkpoint: int | None
    at_ns: int | None = None


@dataclass(frozen=True)
class Left:
    """What stood in the files when the run ended, and what the run that did not end found from there on."""

    windows: list[dict[str, Any]]
    decisions: list[Decision]
    point: tuple[int, int] | None
    rows: list[Row]
    later: Seen


def unbroken(fleet: Fleet, crash: Crash) -> Left:
    """Run on through the crash, as if there was none."""
    seen = Seen(fleet)
    windows: list[dict[str, Any]] = []
    decisions: list[Decision] = []
    point: tuple[int, int] | None = None
    rows = 0
    for number, delivery in enumerate(fleet.deliveries, 1):
        seen.take(delivery)
        if number == crash.journaled:
            rows = len(seen.rows)
            seen.metered += seen.evaluator.meter.charge_in_flight()
            seen.metered.clear()
        if number == crash.checkpoint:
            point = seen.evaluator.resume_point()
        if number == crash.evaluated:
            if crash.at_ns is not None:
                seen.evaluator.advance(crash.at_ns)
            windows, decisions = list(seen.windows), list(seen.decisions)
    seen.rest()
    return Left(windows, decisions, point, seen.rows[rows:], seen)


@dataclass
class Noted(Sinks):
    """Sinks that keep what is found once the journal was read again, and every decision."""

    rows: list[Row] = field(default_factory=list)
    decisions_made: list[Decision] = field(default_factory=list)
    metered: list[Metered] = field(default_factory=list)

    def charged(self, metered: Metered) -> None:
        if not self.replaying:
            self.metered.append(metered)

    def streams_judged(self, ended: Sequence[EndedStream[StreamInFlight]]) -> None:
        if not self.replaying:
            self.rows += [one.row() for one in ended]

    def reply_stated(self, reply: StatedReply) -> None: ...

    def foreign_judged(self, row: Row) -> None:
        if not self.replaying:
            self.rows.append(row)

    def decided(self, decisions: list[Decision]) -> None:
        self.decisions_made.extend(decisions)


@dataclass
class Restarted:
    """The second run: what it writes and finds, beside what stood in the files already."""

    fleet: Fleet
    crash: Crash
    left: Left
    folder: Path
    windows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        fleet, crash, left = self.fleet, self.crash, self.left
        seen = Windows(self.windows.append, {_named(row) for row in left.windows})
        self.noted = Noted(FakeClock(), Console(lambda line: None), UserMetrics(), None)
        with Journal(self.folder, fsync="never", compress=False) as journal:
            for delivery in fleet.deliveries[: crash.journaled]:
                journal.append(export(*delivery.spans).SerializeToString(), delivery.receipt_ns)
        if left.point is not None:
            write_resume(self.folder, {FROM_NS: left.point[0], WINDOWS_NS: left.point[1]})
        with Journal(self.folder, fsync="never", compress=False) as journal:
            self.pipeline = self._pipeline(journal, seen)
            replay(self.pipeline, journal, windows=seen)
        evaluator = self.pipeline.evaluator
        for delivery in fleet.deliveries[crash.journaled :]:
            evaluator.apply(delivery.batch(columns=True), delivery.receipt_ns)
        evaluator.advance(fleet.end_ns)

    def _pipeline(self, journal: Journal, windows: Windows) -> Pipeline:
        fleet = self.fleet
        clock = FakeClock()
        return build_pipeline(
            clock=clock,
            journal=journal,
            classes=fleet.classes,
            rules=RuleEngine(fleet.rules, {one.key for one in self.left.decisions}),
            sinks=self.noted,
            limits=Limits(),
            window_ns=fleet.window_ns,
            timeouts=fleet.timeouts,
            on_window=windows.take,
            egress=Egress(Settings(), clock),
        )


def _named(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["window_start_unix_nano"], *(row[name] for name in GROUP_NAMES))
