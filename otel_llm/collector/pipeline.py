"""The service's flow, written once and in order: decode, journal, evaluate, windows, rules, record.

`accept` runs in the receivers' threads and ends with the journal: what it acknowledges is written. Everything
behind it runs in one thread, which owns all state; others ask it through `ask`.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_llm.collector.errors import BusyError
from otel_llm.collector.evaluator import Evaluator, Patience
from otel_llm.collector.metrics import UserMetrics
from otel_llm.collector.windowing import Windowing
from otel_llm.readers import otlp

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.collector.clock import Clock
    from otel_llm.collector.console import Console
    from otel_llm.collector.journal import Journal
    from otel_llm.collector.streams import LiveStream
    from otel_llm.readers.records import Batch
    from otel_llm.readers.rows import Row
    from otel_llm.rules.decisions import Decision, DecisionLog
    from otel_llm.rules.engine import RuleEngine
    from otel_llm.slo.classes import SloClasses
    from otel_llm.slo.verdict import Verdict
    from otel_llm.slo.windows import Charge

T = TypeVar("T")
log = logging.getLogger(__name__)

QUEUED_EXPORTS = 1024
"""Export requests accepted and not yet evaluated; beyond them senders are told to come back."""
RECENT_ROWS = 1000
MAX_STREAMS = 100_000
"""Streams in flight; beyond them senders are told to come back."""
LONGEST_WAIT_S = 0.5
UNSTAMPED = 0


@dataclass(slots=True)
class Outlets:
    """Take what the evaluator finds to everyone who wants it, in one order."""

    clock: Clock
    console: Console
    metrics: UserMetrics
    decisions: DecisionLog | None
    recent: deque[Row] = field(default_factory=lambda: deque(maxlen=RECENT_ROWS))
    recent_decisions: deque[dict[str, object]] = field(default_factory=lambda: deque(maxlen=RECENT_ROWS))
    decided_count: int = 0
    unwritten: int = 0
    """Lines of decisions or windows that could not be written."""
    mute: bool = False

    def stream_started(self, stream: LiveStream) -> None:
        """Nothing waits for a start."""

    def stream_moved(self, stream: LiveStream) -> None:
        """Count what the reader got and waited up to the stream's watermark."""
        if stream.meter is not None and stream.arithmetic is not None:
            charge = stream.meter.advance(stream.arithmetic.read_ns, stream.watermark_ns, stream.watermark_ns)
            self.metrics.charge(stream, charge)

    def stream_charged(self, stream: LiveStream, charge: Charge) -> None:
        """Count what a reader got or waited, or what is given back of it."""
        self.metrics.charge(stream, charge)

    def stream_judged(self, stream: LiveStream, row: Row, verdict: Verdict | None) -> None:
        """Count the verdict, keep the row for those who look, and say it."""
        if stream.meter is not None and stream.arithmetic is not None:
            self.metrics.charge(stream, stream.meter.close(verdict))
        self.metrics.judged(stream, row, verdict)
        self.recent.append(row)
        self._say(lambda: self.console.row(row))

    def _say(self, line: Callable[[], None]) -> None:
        """Write to the terminal as long as there is one: a closed pipe must not stop the following of streams."""
        if self.mute:
            return
        try:
            line()
        except (OSError, ValueError):
            self.mute = True

    def foreign_judged(self, row: Row) -> None:
        """Count and keep a row of another instrumentation's span."""
        self.metrics.foreign(row)
        self.recent.append(row)

    def decided(self, decisions: list[Decision]) -> None:
        """Record decisions: in the file first, then for people."""
        for decision in decisions:
            self.decided_count += 1
            written_ns = self.clock.now_ns()
            self.recent_decisions.append(decision.record(written_ns))
            self._record(decision, written_ns)
            self._say(lambda decision=decision: self.console.decision(decision))  # type: ignore[misc]

    def _record(self, decision: Decision, written_ns: int) -> None:
        if self.decisions is None:
            return
        try:
            self.decisions.write(decision, written_ns)
        except (OSError, ValueError) as problem:
            if not self.unwritten:
                log.error("otel-llm: decisions cannot be written: %s", problem)  # noqa: TRY400  the message says it all
            self.unwritten += 1


@dataclass(slots=True)
class Pipeline:
    """Run the flow; see the module."""

    clock: Clock
    journal: Journal
    evaluator: Evaluator
    outlets: Outlets
    exports: int = 0
    refused: int = 0
    max_streams: int = MAX_STREAMS
    _inbox: queue.Queue[tuple[Batch, int] | Callable[[], None] | None] = field(default_factory=queue.Queue)
    _receiving_ns: int | None = None
    """The receipt time of the export that is being accepted: no timer at or after it may run before it."""
    _order: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _stopping: bool = False

    def start(self) -> None:
        """Start the evaluator's thread."""
        self._thread = threading.Thread(target=self._run, name="otel-llm-evaluator", daemon=True)
        self._thread.start()

    def accept(self, raw: bytes) -> bytes:
        """Decode, write to the journal, hand over; return the OTLP answer.

        Raises DecodeError for bytes that are no export request, JournalError when it cannot be written, BusyError
        when the evaluator is behind or follows as many streams as it may: nothing is kept then, the sender is told.
        """
        batch = otlp.decode(otlp.parse(raw))
        with self._order:  # the journal's order is the order of evaluation, and receipt times do not go back
            self._refuse_if_busy()
            self._receiving_ns = UNSTAMPED
            try:
                receipt_ns = self._receiving_ns = self.clock.now_ns()
                batch.received(receipt_ns)
                self.journal.append(raw, receipt_ns)
                self._inbox.put((batch, receipt_ns))
                self.exports += 1
            finally:
                self._receiving_ns = None
        answer = ExportTraceServiceResponse()
        refused = sum(batch.refused.values())
        if refused:
            answer.partial_success.rejected_spans = refused
            reasons = ", ".join(f"{number} {reason}" for reason, number in sorted(batch.refused.items()))
            answer.partial_success.error_message = f"spans refused: {reasons}"
        return answer.SerializeToString()

    def _refuse_if_busy(self) -> None:
        busy = None
        if self._stopping:
            busy = "the collector is stopping"
        elif self._inbox.qsize() >= QUEUED_EXPORTS:
            busy = "the evaluator is behind"
        elif len(self.evaluator.live) >= self.max_streams:
            busy = "too many streams in flight"
        if busy is not None:
            self.refused += 1
            raise BusyError(busy)

    def ask(self, question: Callable[[], T], timeout_s: float = 5.0) -> T:
        """Run `question` in the evaluator's thread and return what it returns; raises TimeoutError or its error."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:  # noqa: BLE001  handed to the asker
                answer.set_exception(error)

        self._inbox.put(run)
        return answer.result(timeout=timeout_s)

    def unwell(self) -> str | None:
        """Return why the service should be restarted, None when it should not."""
        return None if self._thread is not None and self._thread.is_alive() else "the evaluator has stopped"

    def unready(self) -> str | None:
        """Return why nothing should be sent here now, None when it can be."""
        return "stopping" if self._stopping else self.unwell() or self.journal.failing

    def stop(self) -> None:
        """Refuse what comes, evaluate what was accepted, judge what ended, close the journal."""
        with self._order:  # what is acknowledged is evaluated
            self._stopping = True
            self._inbox.put(None)
        if self._thread is not None:
            self._thread.join()
        self.journal.close()

    def _run(self) -> None:
        while True:
            item = self._next()
            if item is None:
                self._guard(lambda: self.evaluator.finish(self.clock.now_ns()))
                return
            if isinstance(item, tuple):
                batch, receipt_ns = item
                self._guard(lambda batch=batch, receipt_ns=receipt_ns: self.evaluator.apply(batch, receipt_ns))  # type: ignore[misc]
            else:
                item()

    def _next(self) -> tuple[Batch, int] | Callable[[], None] | None:
        """Return the next thing to do; while there is none, let time pass."""
        while True:
            due_ns = self.evaluator.next_timer()
            wait_s = LONGEST_WAIT_S
            if due_ns is not None:
                wait_s = min(LONGEST_WAIT_S, max(0.0, (due_ns - self.clock.now_ns()) / 1e9))
            try:
                return self._inbox.get(timeout=wait_s) if wait_s > 0 else self._inbox.get_nowait()
            except queue.Empty:
                self._let_time_pass()

    def _let_time_pass(self) -> None:
        """Advance to now, but not past the receipt of what is being accepted at this moment."""
        now_ns = self.clock.now_ns()
        # In this order: an export that is not seen here either is stamped after now_ns, or is in the inbox.
        receiving_ns = self._receiving_ns
        if not self._inbox.empty():
            return
        if receiving_ns is not None:
            now_ns = min(now_ns, receiving_ns - 1)
            time.sleep(0.001)  # the disk is slow: look again, without spinning
        if now_ns <= 0:
            return
        self._guard(lambda: self.journal.tick(now_ns))
        self._guard(lambda: self.evaluator.advance(now_ns))

    def _guard(self, step: Callable[[], None]) -> None:
        """Keep the service up when one batch hits a bug of ours: said once with its traceback, counted always."""
        try:
            step()
        except Exception:  # a bug of ours must not stop the following of all other streams
            if not self.evaluator.counts["internal_errors"]:
                log.exception("otel-llm: a batch could not be evaluated; the journal has it")
            self.evaluator.counts["internal_errors"] += 1

    def counts(self) -> dict[str, int]:
        """Return the collector's own counters (ask in the evaluator's thread)."""
        return {
            **self.evaluator.counts,
            "exports": self.exports,
            "refused_exports": self.refused,
            "journal_bytes": self.journal.written_bytes,
            "decisions": self.outlets.decided_count,
            "unwritten": self.outlets.unwritten,
            "queue": self._inbox.qsize(),
            "in_flight": len(self.evaluator.live),
            "late_for_window": self.evaluator.windowing.late,
        }


def build(
    *,
    clock: Clock,
    journal: Journal,
    classes: SloClasses,
    rules: RuleEngine,
    console: Console,
    decisions: DecisionLog | None,
    window_ns: int,
    patience: Patience,
    on_window: Callable[[dict[str, object]], None] | None = None,
) -> Pipeline:
    """Put the flow together."""
    outlets = Outlets(clock=clock, console=console, metrics=UserMetrics(), decisions=decisions)
    windowing = Windowing(window_ns=window_ns, lateness_ns=patience.lateness_ns, on_window=on_window)
    evaluator = Evaluator(classes=classes, rules=rules, windowing=windowing, sink=outlets, patience=patience)
    return Pipeline(clock=clock, journal=journal, evaluator=evaluator, outlets=outlets)


def window_line(row: dict[str, object]) -> str:
    """Return a closed window as one JSON line."""
    return json.dumps(row, allow_nan=False, separators=(",", ":"))
