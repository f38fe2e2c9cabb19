"""The flow of the service, from top to bottom: receive, decode, journal, acknowledge, evaluate.

| stage | function | what it does |
|---|---|---|
| receive | `accept`, `attach` | queue exports in the inbox: of the HTTP receiver's threads, of the gRPC worker |
| schedule | `_next` | return the next item, fairly by sender; while there is none, run timers |
| decode | `_collect` | coalesce the exports that wait into a batch, and decode them |
| stamp | `_stamp` | make their receipt times monotonic |
| journal | `_write` | enforce the limits on an export, append it to the journal, or refuse it |
| acknowledge | `_answer` | answer the sender, once all records are written (`fsync: always`: synced) |
| evaluate | `_apply` | update streams, windows and rules; decisions and verdicts go to the sinks |

One thread, the evaluator's, runs the stages and is the single writer of all state; other threads run functions in it by
`call`. Two stages may run elsewhere: a large export is decoded in the background (`decoding.py`), and exports are
acknowledged where a thread may wait for the disk (`docs/architecture.md`, "Acknowledgement"). The evaluator's thread
coalesces exports, since a second computing thread would compete with it for the interpreter, at twice the CPU time. The
CPU time of an export is charged to its sender; that decides whose export is next.
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
from typing import TYPE_CHECKING, NoReturn, TypeVar

from otel_llm.collector.checkpoints import note_stop
from otel_llm.collector.decoding import Decoder, PartSizes
from otel_llm.collector.inbox import QUEUED_BYTES, Export, Inbox, LocalExport
from otel_llm.collector.plain_mode import LagWarning
from otel_llm.collector.receive.errors import BusyError, acknowledgement
from otel_llm.collector.receive.grpc_worker.parent import WorkerExport
from otel_llm.collector.receive.senders import UNKNOWN, Room, Sender, charged_s
from otel_llm.evaluate.intake import take_in
from otel_llm.shared.errors import RefusalError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_llm.actions.sinks.sinks import Sinks
    from otel_llm.collector.export.egress import Egress
    from otel_llm.collector.inbox import Item
    from otel_llm.collector.receive.grpc_worker.parent import GrpcWorker
    from otel_llm.collector.settings import Limits
    from otel_llm.evaluate.evaluator import Evaluator
    from otel_llm.formats.batch import Batch
    from otel_llm.formats.spans.attributes import IntakeLimits
    from otel_llm.journal.journal import Journal
    from otel_llm.rules.files.ruleset import RuleSet
    from otel_llm.shared.clock import Clock
    from otel_llm.slo.classes import SloClasses

T = TypeVar("T")
log = logging.getLogger(__name__)

MAX_WAIT_S = 0.5
"""The longest wait for an item; timers run then, and an old file of the journal ends."""
TIMER_SLACK_S = 0.005
"""Timers closer together than this run in one pass, each for its own instant."""
NOT_EVALUATED = "a batch could not be evaluated; the journal has it"
BATCH_EXPORTS = 64
BATCH_BYTES = 2**22
BATCH_CPU_S = 0.005
"""Limits of a batch: its exports, their bytes, the CPU time to decode them. The last keeps one costly export from
delaying the answers to those before it."""


@dataclass(slots=True)
class Pipeline:
    """The flow of exports; the stages stand in the module's docstring."""

    clock: Clock
    journal: Journal
    evaluator: Evaluator
    sinks: Sinks
    limits: Limits
    egress: Egress
    more_counts: Callable[[], Mapping[str, int]] = dict
    """Returns the counts of the parts around the flow."""
    sizes: PartSizes = field(default_factory=PartSizes)
    lag_warning: LagWarning = field(default_factory=LagWarning)
    replayed: int = 0
    intake: IntakeLimits = field(init=False)
    inbox: Inbox = field(default_factory=Inbox)
    room: Room = field(init=False)
    """Limits the exports of the HTTP receiver that wait; the gRPC worker limits its own."""
    _counts: Counter[str] = field(default_factory=Counter)
    _grpc: GrpcWorker | None = None
    _lookahead: tuple[Callable[[], None] | None] | None = None
    """The next item, if it ended the last batch as it was no export; in a tuple, since it may be None (stop)."""
    _accepting: threading.Lock = field(default_factory=threading.Lock)
    """Orders receipt times as in the inbox, and every accepted export before the stop; guards the count `exports`."""
    _thread: threading.Thread | None = None
    _acknowledger: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "otel-llm-exports"))
    """Syncs, then acknowledges exports of the gRPC worker (`fsync: always`), so that the evaluator need not wait."""
    _decoder: Decoder = field(init=False)
    _last_ns: int = 0
    """The time of the evaluator: no receipt time may be before it."""
    _stopping: bool = False
    stopped_ns: int | None = None
    """The time up to which everything was evaluated; None until the evaluator's thread has finished."""

    def __post_init__(self) -> None:
        self.intake = self.limits.intake
        self.room = Room(self.limits.queued_exports, QUEUED_BYTES)
        self._decoder = Decoder(self.inbox, self.intake.attributes, on_refused=self._release, sizes=self.sizes)

    # Receive.

    def start(self) -> None:
        """Start the evaluator's thread."""
        self._thread = threading.Thread(target=self._run, name="otel-llm-evaluator", daemon=True)
        self._thread.start()

    def attach(self, worker: GrpcWorker) -> None:
        """Receive the exports of the gRPC worker too; call it before `start`."""
        self._grpc = worker
        self.inbox.attach(worker)

    def accept(self, raw: bytes, sender: Sender = UNKNOWN) -> bytes:
        """Take an export through the flow, and return the OTLP answer; a thread of the HTTP receiver waits here.

        A refused export may be in the journal in part, or whole (the sync failed). What is there is evaluated, and a
        retry repeats it, which changes nothing.

        Raises:
            DecodeError: the bytes are no export request.
            JournalError: it cannot be written, or not synced.
            UnavailableError: the service is stopping.
            BusyError: too many exports wait, or as many streams are in flight as may be.
        """
        export = LocalExport(raw, sender)
        with self._accepting:
            if self._stopping:
                self._refuse("stopping", UnavailableError("the collector is stopping"))
            if not self.room.take(sender.number, len(raw)):
                self._refuse("behind", BusyError("the evaluator is behind"))
            export.receipt_ns = self.clock.now_ns()
            self.inbox.put(export)
        export.wait(lambda: self.why_unhealthy() is None)
        return self._answer(export)

    def _refuse(self, reason: str, refusal: RefusalError) -> NoReturn:
        self._counts[f"refused_export.{reason}"] += 1
        raise refusal

    # The evaluator's thread.

    def _run(self) -> None:
        try:
            self._loop()
        finally:
            if self._grpc is not None:
                self._grpc.disconnect()

    def _loop(self) -> None:
        """Handle items up to the stop, then finish the evaluation."""
        while True:
            item = self._next()
            if isinstance(item, Export):
                self._evaluate(item)
            elif item is not None:
                item()
            else:
                self._decoder.wait()  # a large export may return to the inbox: it is evaluated before the stop
                if self.inbox.empty():
                    break
                self.inbox.put(None)
        self.stopped_ns = now_ns = self.clock.now_ns()
        self._guard(partial(self.evaluator.finish, now_ns), "ended streams could not be judged")
        self._guard(self.sinks.tick, "what was left out could not be written")

    def _next(self) -> Item:
        """Return the next item; while there is none, run timers."""
        if self._lookahead is not None:
            (item,), self._lookahead = self._lookahead, None
            return item
        while True:
            due_ns = self.evaluator.next_timer()
            wait_s = MAX_WAIT_S if due_ns is None else min(MAX_WAIT_S, (due_ns - self.clock.now_ns()) / 1e9)
            if wait_s <= -TIMER_SLACK_S:  # overdue: also while exports wait
                self._run_timers()
            try:
                return self.inbox.get(max(TIMER_SLACK_S, wait_s))
            except queue.Empty:
                self._run_timers()

    def _run_timers(self) -> None:
        """Advance journal and evaluator to now, but not beyond the receipt time of an export that waits."""
        self._last_ns = now_ns = max(self._last_ns, self.inbox.complete_ns(self.clock.now_ns()))
        self._guard(lambda: self.journal.tick(now_ns), "a file of the journal could not be ended")
        self._guard(lambda: self.evaluator.advance(now_ns), "timers could not run")
        self._guard(lambda: self.sinks.tick(now_ns), "what was left out could not be written")

    def _evaluate(self, first: Export) -> None:
        """Take a batch through the stages: `first`, and the exports that wait behind it."""
        self.lag_warning.check(self.clock.now_ns() - first.receipt_ns)
        exports = self._collect(first)
        self._stamp(exports)
        in_parts = [export for export in exports if export.parts is not None and len(export.parts) > 1]
        written = [(export, batch) for export in exports if (batch := self._write(export)) is not None]
        for export in exports:
            if not export.parts:
                self._release(export)
        self._acknowledge([export for export in exports if isinstance(export, WorkerExport) and export.whole])
        for export, batch in written:
            self._apply(export, batch)
        for export in in_parts:  # the next part waits for its sender's turn
            self.inbox.put_back(export.sender, export if export.parts else None)

    # Decode.

    def _collect(self, first: Export) -> list[Export]:
        """Return a batch of decoded exports: `first`, and those that wait, up to the limits of a batch.

        A large export is decoded in the background and joins a later batch. An item that is no export ends the batch.
        """
        exports: list[Export] = []
        size, end_s = 0, time.thread_time() + BATCH_CPU_S
        item: Item = first
        while isinstance(item, Export):
            size += len(item.raw)
            if self._decoder.decode(item):
                exports.append(item)
            if len(exports) >= BATCH_EXPORTS or size >= BATCH_BYTES or time.thread_time() >= end_s:
                return exports
            try:
                item = self.inbox.get_nowait()
            except queue.Empty:
                return exports
        self._lookahead = (item,)
        return exports

    # Journal.

    def _stamp(self, exports: Sequence[Export]) -> None:
        """Make receipt times (unix ns) monotonic in the order of evaluation."""
        for export in exports:
            export.receipt_ns = self._last_ns = max(self._last_ns, export.receipt_ns)

    def _write(self, export: Export) -> Batch | None:
        """Append an export, or its next part, to the journal; return the records, or refuse the export."""
        if export.parts is None:
            return None
        raw, batch = export.parts.popleft()
        try:
            take_in(batch, export.receipt_ns, self.intake, export.tenant)
            self._counts["received_exports"] += not export.written
            self._counts["received_spans"] += batch.spans
            self._counts["received_tokens"] += batch.tokens
            if batch.begins and not self.evaluator.registry.has_room(export.tenant, self.limits.streams_in_flight):
                self._refuse("streams", BusyError("too many streams in flight"))  # those in flight may continue
            export.written.append(self.journal.append(raw, export.receipt_ns, export.tenant))
            export.refused.update(batch.refused)
            if not export.parts:
                export.journaled()
        except Exception as error:  # noqa: BLE001  it is the answer to the sender
            export.parts = None
            export.written.clear()
            export.refuse(error)
            return None
        return batch

    def _release(self, export: Export) -> None:
        """Give back the room of an export of this process; the gRPC worker counts its own."""
        if isinstance(export, LocalExport):
            self.room.leave(export.sender, len(export.raw))

    # Acknowledge.

    def _acknowledge(self, exports: Sequence[WorkerExport]) -> None:
        """Answer exports of the gRPC worker; threads that wait in `accept` answer those of the HTTP receiver."""
        if exports and self.journal.fsync == "always":
            self._acknowledger.submit(self._acknowledge_durable, exports)
        else:
            self._acknowledge_durable(exports)

    def _acknowledge_durable(self, exports: Sequence[WorkerExport]) -> None:
        for export in exports:
            try:
                answer = self._answer(export)
            except Exception as error:  # noqa: BLE001  it is the answer to the sender
                export.refuse(error)
            else:
                export.acknowledge(answer)

    def _answer(self, export: Export) -> bytes:
        """Wait until an export is as durable as `fsync` demands, forward it, and return the OTLP answer.

        Raises:
            JournalError: it could not be synced; it is in the journal, and evaluated.
        """
        for position in export.written:
            self.journal.wait_durable(position)
        with self._accepting:
            self._counts["exports"] += 1
        if self.egress.forward is not None:
            self.egress.forward.offer(export.raw)
        return acknowledgement(export.refused)

    # Evaluate.

    def _apply(self, export: Export, batch: Batch) -> None:
        """Evaluate the records of an export, and charge its sender."""
        began_s = time.thread_time()
        self._guard(partial(self.evaluator.apply, batch, export.receipt_ns), NOT_EVALUATED)
        self.inbox.charge(export.sender, charged_s(time.thread_time() - began_s, batch.spans, batch.tokens))

    def replay(self, batch: Batch, receipt_ns: int, tenant: str) -> None:
        """Evaluate a record of the journal again (`restart.py`); call it before `start`."""
        take_in(batch, receipt_ns, self.intake, tenant)
        self.replayed += 1
        self._guard(lambda: self.evaluator.apply(batch, receipt_ns), NOT_EVALUATED)

    def _guard(self, step: Callable[[], None], failure: str) -> None:
        """Run a step; count its error and log the first as `failure`: a bug in a step must not end the service."""
        try:
            step()
        except Exception:
            if not self.evaluator.counts["internal_errors"]:
                log.exception("otel-llm: %s", failure)
            self.evaluator.counts["internal_errors"] += 1

    # For other threads.

    def call(self, function: Callable[[], T], timeout_s: float = 5.0) -> T:
        """Run a function in the evaluator's thread, and return its result.

        Raises:
            TimeoutError: it did not run in time; at once if the thread is not started.
            Exception: what the function raises.
        """
        if self._thread is None:
            raise TimeoutError("the evaluator has not started")
        return self.inbox.call(function, timeout_s)

    def call_soon(self, function: Callable[[], None]) -> None:
        """Queue a function for the evaluator's thread and return at once; safe from any thread."""
        self.inbox.put(lambda: self._guard(function, "a queued function failed"))

    def reload(self, classes: SloClasses, rules: RuleSet) -> None:
        """Judge by these classes and decide by these rules from now on; safe from any thread.

        Rules that mean the same keep their state; a firing of a rule that is gone or changed ends.
        """
        self.call(lambda: self.evaluator.reload(classes, rules, self.evaluator.now_ns))

    def why_unhealthy(self) -> str | None:
        """Return why the service should be restarted; None if it should not."""
        return None if self._thread is not None and self._thread.is_alive() else "the evaluator has stopped"

    def why_not_ready(self) -> str | None:
        """Return why senders should go elsewhere now; None if they need not."""
        return "stopping" if self._stopping else self.why_unhealthy() or self.journal.failing

    def stop(self) -> None:
        """Refuse new exports, evaluate the accepted ones, judge streams that ended, close the journal."""
        with self._accepting:  # an accepted export is before the stop in the inbox
            self._stopping = True
            self.inbox.put(None)
        if self._thread is not None:
            self._thread.join()
        if self.stopped_ns is not None:
            note_stop(self.journal, self.stopped_ns)
        self._decoder.close()
        self._acknowledger.shutdown()
        self.inbox.close()
        self.journal.close()

    def counts(self) -> dict[str, int | float]:
        """Return the collector's own counters; call it in the evaluator's thread (`call`), or at the stop."""
        instants, waiting = [self.inbox.oldest_ns()], self.inbox.qsize()
        if self._grpc is not None:
            instants.append(self._grpc.oldest_ns)
            waiting += self._grpc.waiting
        oldest_ns = min((instant for instant in instants if instant is not None), default=None)
        lag_s = 0.0 if oldest_ns is None else max(0, self.clock.now_ns() - oldest_ns) / 1e9
        counts = Counter(self._counts)
        counts.update(self.more_counts())  # added, not replaced: both count refused exports
        return {
            **self.evaluator.counts,
            **self.journal.counts(),
            **self.egress.counts(),
            **{f"gave_way.{table}": number for table, number in self.sinks.metrics.gave_way.items()},
            **counts,
            "decisions": self.sinks.decided_count,
            "decisions_left_out": self.sinks.limits.decisions_left_out,
            "verdicts_left_out": self.sinks.limits.verdicts_left_out,
            "unwritten": self.sinks.unwritten,
            "queue": waiting,
            "lag_seconds": lag_s,
            "in_flight": len(self.evaluator.live),
            "late_for_window": self.evaluator.windowing.late,
            "replayed": self.replayed,
        }
