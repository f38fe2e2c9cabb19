"""The service's flow, written once and in order: decode, journal, evaluate, windows, rules, record.

Exports come from a door in another process, or from threads of this one, which `accept` has wait; either way they are
answered when they are in the journal. All work is done in one thread, which owns all state; others ask it through
`ask`. What waits meanwhile is taken in together: a second thread that computes would only fight with the first for the
interpreter, at twice the cost of both. The CPU time of an export is charged to its sender, which decides whose is next.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from otel_llm.collector import plain_mode
from otel_llm.collector.checkpoints import note_stop
from otel_llm.collector.decoding import PART_BYTES, READ_APART_BYTES, SMALL_PART_BYTES, decode
from otel_llm.collector.inbox import QUEUED_BYTES, Export, HeldExport, Inbox
from otel_llm.collector.receive.errors import BusyError, acknowledgement
from otel_llm.collector.receive.grpc_worker.parent import SentExport
from otel_llm.collector.receive.senders import UNKNOWN, Room, charged_s
from otel_llm.evaluate.intake import take_in
from otel_llm.shared.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_llm.actions.sinks.sinks import Sinks
    from otel_llm.collector.config.settings import Limits
    from otel_llm.collector.export.egress import Outgoing
    from otel_llm.collector.inbox import Item
    from otel_llm.collector.receive.grpc_worker.parent import GrpcFront
    from otel_llm.evaluate.evaluator import Evaluator
    from otel_llm.journal.journal import Journal
    from otel_llm.readers.batch import Batch
    from otel_llm.readers.spans.attributes import IntakeLimits
    from otel_llm.rules.files.ruleset import RuleSet
    from otel_llm.shared.clock import Clock
    from otel_llm.slo.classes import SloClasses

T = TypeVar("T")
log = logging.getLogger(__name__)

LONGEST_WAIT_S = 0.5
REST_S = 0.005
"""Timers closer together than this are looked at together: at their own instants, only later."""
MOST_TOGETHER = 64
TOGETHER_BYTES = 2**22
TOGETHER_S = 0.005
"""So many requests that wait are written to the journal together, up to so many bytes, and as many as are decoded in so
much CPU time: one that is dear does not keep those before it waiting."""


@dataclass(slots=True)
class Pipeline:
    """Run the flow; see the module."""

    clock: Clock
    journal: Journal
    evaluator: Evaluator
    sinks: Sinks
    limits: Limits
    outgoing: Outgoing
    more_counts: Callable[[], Mapping[str, int]] = dict
    """Counts of the parts around the flow."""
    replayed: int = 0
    intake: IntakeLimits = field(init=False)
    _received: Counter[str] = field(default_factory=Counter)
    _inbox: Inbox = field(default_factory=Inbox)
    _front: GrpcFront | None = None
    _following: tuple[Callable[[], None] | None] | None = None
    """What was found behind exports that are evaluated together, if that is no export: it is next."""
    _room: Room = field(init=False)
    """What this process's own receiver has waiting."""
    _order: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _aside: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "otel-llm-exports"))
    """Who waits for the disk for doors in other processes."""
    _decoder: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "otel-llm-decode"))
    """Who decodes what is large."""
    _last_ns: int = 0
    """The latest instant up to which something was taken or time passed: receipts do not go back behind it."""
    _stopping: bool = False
    _too_slow: str | None = field(default_factory=plain_mode.too_slow)
    """What is said once, where this is plain mode, when exports wait too long."""
    stopped_ns: int | None = None
    """Up to when time has passed, once everything that was accepted is evaluated."""

    def __post_init__(self) -> None:
        self.intake = self.limits.intake
        self._room = Room(self.limits.queued_exports, QUEUED_BYTES)

    def start(self) -> None:
        """Start the evaluator's thread."""
        self._thread = threading.Thread(target=self._run, name="otel-llm-evaluator", daemon=True)
        self._thread.start()

    def accept(self, raw: bytes, sender: int = UNKNOWN) -> bytes:
        """Hand over; when it is decoded and written to the journal, return the OTLP answer.

        Raises DecodeError for bytes that are no export request, JournalError when it cannot be written,
        UnavailableError when stopping, BusyError when the evaluator is behind or follows as many streams as it may:
        nothing is kept then, the sender is told.
        """
        export = HeldExport(raw, sender)
        with self._order:
            self._refuse_if_busy(export)
            export.receipt_ns = self.clock.now_ns()
            self._inbox.put(export)
        export.taken(lambda: self.unwell() is None)
        return self._answer(export)

    def attach(self, front: GrpcFront) -> None:
        """Take in what comes through this door too; before `start`."""
        self._front = front
        self._inbox.attach(front)

    def _answer(self, export: Export) -> bytes:
        """Return the OTLP answer to an export once it lasts; raises JournalError."""
        for position in export.written:
            self.journal.wait_durable(position)
        with self._order:
            self._received["exports"] += 1
        if self.outgoing.forward is not None:
            self.outgoing.forward.offer(export.raw)
        return acknowledgement(export.refused)

    def _refuse_if_busy(self, export: HeldExport) -> None:
        if self._stopping:
            self._received["refused_export.stopping"] += 1
            raise UnavailableError("the collector is stopping")
        if not self._room.take(export.sender, len(export.raw)):
            self._received["refused_export.behind"] += 1
            raise BusyError("the evaluator is behind")

    def _refuse_if_full(self, batch: Batch) -> None:
        if batch.begins and len(self.evaluator.live) >= self.limits.streams_in_flight:  # what goes on may go on
            self._received["refused_export.streams"] += 1
            raise BusyError("too many streams in flight")

    def ask(self, question: Callable[[], T], timeout_s: float = 5.0) -> T:
        """Run `question` in the evaluator's thread and return what it returns.

        Raises TimeoutError, at once where the thread is not started, or the question's error.
        """
        if self._thread is None:
            raise TimeoutError("the evaluator has not started")
        return self._inbox.ask(question, timeout_s)

    def later(self, step: Callable[[], None]) -> None:
        """Run `step` in the evaluator's thread, behind what waits there; safe from any thread, which does not wait."""
        self._inbox.put(lambda: self._guard(step))

    def reload(self, classes: SloClasses, rules: RuleSet) -> None:
        """Judge by these classes and decide by these rules from now on; safe from any thread.

        Rules that mean the same keep their state; a firing of one that is gone or changed ends.
        """
        self.ask(lambda: self.evaluator.reload(classes, rules, self.evaluator.now_ns))

    def replay(self, batch: Batch, receipt_ns: int) -> None:
        """Evaluate a record of the journal again, before `start`."""
        take_in(batch, receipt_ns, self.intake)
        self.replayed += 1
        self._guard(lambda: self.evaluator.apply(batch, receipt_ns))

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
        if self.stopped_ns is not None:
            note_stop(self.journal, self.stopped_ns)
        self._decoder.shutdown()
        self._aside.shutdown()
        self._inbox.close()
        self.journal.close()

    def _run(self) -> None:
        try:
            self._work()
        finally:
            if self._front is not None:
                self._front.leave()

    def _work(self) -> None:
        while True:
            item = self._next()
            if item is None and not self._read_apart():
                self._inbox.put(None)
                continue
            if item is None:
                self.stopped_ns = now_ns = self.clock.now_ns()
                self._guard(partial(self.evaluator.finish, now_ns))
                return
            if isinstance(item, Export):
                self._evaluate(item)
            else:
                item()

    def _evaluate(self, first: Export) -> None:
        """Take in an export and those that wait behind it, then evaluate one after another."""
        if self._too_slow is not None and self.clock.now_ns() - first.receipt_ns > plain_mode.BEHIND_NS:
            log.warning("otel-llm: %s", self._too_slow)
            self._too_slow = None
        exports, size, end_s = [], 0, time.thread_time() + TOGETHER_S
        item: Item = first
        while True:
            if not isinstance(item, Export):
                self._following = (item,)
                break
            size += len(item.raw)
            if not self._is_apart(item):
                small = len(item.raw) > SMALL_PART_BYTES and self._inbox.is_heavy(item.sender)
                self._read(item, SMALL_PART_BYTES if small else None)
                exports.append(item)
                if item.parts is not None and len(item.parts) > 1:
                    self._inbox.hold(item.sender)
            if len(exports) >= MOST_TOGETHER or size >= TOGETHER_BYTES or time.thread_time() >= end_s:
                break
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                break
        for export in exports:
            export.receipt_ns = self._last_ns = max(self._last_ns, export.receipt_ns)
        held = [export for export in exports if export.parts is not None and len(export.parts) > 1]
        received = [(export, batch) for export in exports if (batch := self._take_in(export)) is not None]
        self._let_go([export for export in exports if not export.parts])
        sent = [export for export in exports if isinstance(export, SentExport) and export.whole]
        if sent and self.journal.fsync == "always":
            self._aside.submit(self._answer_all, sent)
        else:
            self._answer_all(sent)
        for export, batch in received:
            self._apply(export, batch)
        for export in held:  # the rest at its sender's next turn
            self._inbox.put_back(export.sender, export if export.parts else None)

    def _apply(self, export: Export, batch: Batch) -> None:
        """Evaluate what was taken in, and charge its sender."""
        began_s = time.thread_time()
        self._guard(partial(self.evaluator.apply, batch, export.receipt_ns))
        self._inbox.charge(export.sender, charged_s(time.thread_time() - began_s, batch.spans, batch.tokens))

    def _is_apart(self, export: Export) -> bool:
        """Have an export decoded aside, if it is large; it comes again then, before all else of its sender."""
        if export.parts is not None or len(export.raw) <= READ_APART_BYTES:
            return False

        def read() -> None:
            self._read(export, PART_BYTES)
            if export.parts is None:
                self._let_go([export])
                self._inbox.put_back(export.sender, None)
            else:
                self._inbox.put_back(export.sender, export)

        self._inbox.hold(export.sender)
        self._decoder.submit(read)
        return True

    def _read_apart(self) -> bool:
        """Wait for what is being decoded aside; return whether nothing has come again, or waits otherwise."""
        self._decoder.submit(bool).result()
        return self._inbox.empty()

    def _let_go(self, exports: Sequence[Export]) -> None:
        """Count exports of this process as waiting no longer."""
        for export in exports:
            if isinstance(export, HeldExport):
                self._room.leave(export.sender, len(export.raw))

    def _answer_all(self, exports: Sequence[SentExport]) -> None:
        for export in exports:
            try:
                answer = self._answer(export)
            except Exception as error:  # noqa: BLE001  the sender is told
                export.refuse(error)
            else:
                export.answered(answer)

    def _read(self, export: Export, part_bytes: int | None = None) -> None:
        """Decode an export if it is not decoded yet, and charge its sender, who is told what is wrong with it.

        `part_bytes`: it is to be taken in as messages of about so many.
        """
        if export.parts is not None:
            return
        began_s = time.thread_time()
        try:
            export.parts = decode(export.raw, self.intake.attributes, part_bytes)
        except Exception as error:  # noqa: BLE001  the sender is told
            export.refuse(error)
        self._inbox.charge(export.sender, time.thread_time() - began_s)

    def _take_in(self, export: Export) -> Batch | None:
        """Write an export to the journal, the order of which is that of evaluation; return what is to be evaluated.

        Of a large one it is a part.
        """
        if export.parts is None:
            return None
        raw, batch = export.parts.popleft()
        try:
            take_in(batch, export.receipt_ns, self.intake)
            self._received["received_exports"] += not export.written
            self._received["received_spans"] += batch.spans
            self._received["received_tokens"] += batch.tokens
            self._refuse_if_full(batch)
            export.written.append(self.journal.append(raw, export.receipt_ns))
            export.refused.update(batch.refused)
            if not export.parts:
                export.accept()
        except Exception as error:  # noqa: BLE001  the sender is told
            export.parts = None
            export.written.clear()
            export.refuse(error)
            return None
        return batch

    def _next(self) -> Item:
        """Return the next thing to do; while there is none, let time pass."""
        if self._following is not None:
            (item,), self._following = self._following, None
            return item
        while True:
            due_ns = self.evaluator.next_timer()
            wait_s = LONGEST_WAIT_S if due_ns is None else min(LONGEST_WAIT_S, (due_ns - self.clock.now_ns()) / 1e9)
            if wait_s <= -REST_S:
                self._let_time_pass()
            try:
                return self._inbox.get(max(REST_S, wait_s))
            except queue.Empty:
                self._let_time_pass()

    def _let_time_pass(self) -> None:
        """Advance to now, but not past the receipt of what waits."""
        self._last_ns = now_ns = max(self._last_ns, self._inbox.passed_ns(self.clock.now_ns()))
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

    def counts(self) -> dict[str, int | float]:
        """Return the collector's own counters (ask in the evaluator's thread)."""
        instants, waiting = [self._inbox.oldest_ns()], self._inbox.qsize()
        if self._front is not None:
            instants.append(self._front.oldest_ns)
            waiting += self._front.waiting
        oldest_ns = min((instant for instant in instants if instant is not None), default=None)
        lag_s = 0.0 if oldest_ns is None else max(0, self.clock.now_ns() - oldest_ns) / 1e9
        counts = Counter(self._received)
        counts.update(self.more_counts())  # both count what is refused
        return {
            **self.evaluator.counts,
            **self.journal.counts(),
            **self.outgoing.counts(),
            **counts,
            "decisions": self.sinks.decided_count,
            "unwritten": self.sinks.unwritten,
            "queue": waiting,
            "lag_seconds": lag_s,
            "in_flight": len(self.evaluator.live),
            "late_for_window": self.evaluator.windowing.late,
            "replayed": self.replayed,
        }
