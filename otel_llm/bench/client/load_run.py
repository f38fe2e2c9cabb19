"""One run of a load as its starter sees it."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from otel_llm.bench.client.messages import Cancel, Ended, Sent, Stop, Tokens
from otel_llm.bench.client.observed_request import ObservedRequest
from otel_llm.bench.client.request_sender import CLIENT_LIMIT
from otel_llm.bench.client.streamed_reply import CLIENT_BUG
from otel_llm.bench.judging import Validity, busiest_share, judge_validity, late_beyond_bound
from otel_llm.instrumentation.segments.outcomes import ERROR
from otel_llm.shared.clock import monotonic_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_llm.bench.client.messages import Event, Report
    from otel_llm.bench.client.workers import Workers

    OnStep = Callable[[Sequence[ObservedRequest]], None]

NS_PER_S: Final = 1_000_000_000
STOP_LEAD_NS: Final = 20_000_000
"""How long before a stop takes effect the workers hear of it: they then stop at the same intended time."""
DRAIN_S: Final = 60.0
TIMEOUT: Final = "timeout"
"""The kind of a request that had not ended when the run was over."""
CUT_SHORT: Final = "interrupted"
"""The kind of a request that was in flight when the user, or a full disk, ended the run."""
_CANCEL_S: Final = 10.0
_NEVER_NS: Final = 1 << 62
_FAULTS: Final = frozenset({CLIENT_BUG, CLIENT_LIMIT})


class LoadRun:
    """A run in progress; one thread calls it, which is the single writer of all observed requests.

    `requests`: those intended before `watermark_ns`, in the order of their intended times. `watermark_ns` (monotonic
    ns): every event before it is known, of all workers; a deadline of a request in flight that is before it has passed.
    `in_flight`: for each of `requests`, how many others were in flight at its intended time. `started_ns`: the instant
    of the plan's time 0.

    As `LoadClient.start` returns it: call `step` while `sending`, perhaps `stop`, then `drain`.
    """

    def __init__(self, workers: Workers, started_ns: int, *, open_loop: bool) -> None:
        self.requests: list[ObservedRequest] = []
        self.in_flight: list[int] = []
        self.started_ns = started_ns
        self.watermark_ns = started_ns
        self.open_loop = open_loop
        self._workers = workers
        self._by_number: dict[int, ObservedRequest] = {}
        self._unplaced: list[tuple[int, int]] = []  # intended time and number, a heap: beyond the watermark
        self._ends: list[int] = []  # of the placed requests that have ended, a heap
        self._gone = 0
        self._until_ns = [started_ns] * workers.count
        self._sending = [True] * workers.count
        self._running = [True] * workers.count
        self._cpu: list[list[tuple[int, int]]] = [[] for _ in range(workers.count)]
        self._still_ns = 0
        self._newest_ns = started_ns

    @property
    def sending(self) -> bool:
        """Return whether requests are still to be sent."""
        return any(self._sending)

    @property
    def finished(self) -> bool:
        """Return whether everything is sent and has ended."""
        return not any(self._running)

    def step(self, timeout_s: float) -> Sequence[ObservedRequest]:
        """Wait for news, at most so long; return the requests that changed: sent, tokens, ended.

        Raises:
            WorkerDiedError: a worker process has ended by itself.
        """
        changed: dict[int, ObservedRequest] = {}
        for worker, report in self._workers.receive(timeout_s):
            self._apply(worker, report, changed)
        self.watermark_ns = max(self.watermark_ns, min(*self._until_ns, self._newest_ns))
        self._place()
        return list(changed.values())

    def stop(self) -> None:
        """Send no further request; those in flight go on."""
        self._workers.send_all(Stop(monotonic_ns() + STOP_LEAD_NS))

    def drain(
        self,
        timeout_s: float = DRAIN_S,
        *,
        on_step: OnStep | None = None,
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        """Stop, and wait until all has ended; what has not by `timeout_s` ends as an error, `timeout`.

        `on_step` is called with what changed. Once `until` is true it waits no longer, and cancels nothing.
        """
        self.stop()
        self._step_until(monotonic_ns() + round(timeout_s * NS_PER_S), on_step, until)
        if not self.finished and not until():
            self.cancel(ERROR, TIMEOUT, on_step=on_step)

    def cancel(self, outcome: str, error: str, *, on_step: OnStep | None = None) -> None:
        """End the run now: send nothing more, and end what is in flight with this outcome and kind."""
        self._workers.send_all(Cancel(outcome, error))
        self._step_until(monotonic_ns() + round(_CANCEL_S * NS_PER_S), on_step, lambda: False)

    def validity(self) -> Validity:
        """Return whether the client kept out of the result."""
        lags = [one.lag_ns for one in self.requests] if self.open_loop else None
        faults = sum(one.error in _FAULTS for one in self.requests)
        cpu = max((busiest_share(samples) for samples in self._cpu), default=0.0)
        return judge_validity(lags, cpu, self._still_ns, self.watermark_ns - self.started_ns, faults)

    def _step_until(self, deadline_ns: int, on_step: OnStep | None, until: Callable[[], bool]) -> None:
        while not self.finished and not until() and (left_ns := deadline_ns - monotonic_ns()) > 0:
            changed = self.step(min(left_ns / NS_PER_S, 0.1))
            if on_step is not None:
                on_step(changed)

    def _apply(self, worker: int, report: Report, changed: dict[int, ObservedRequest]) -> None:
        self._until_ns[worker] = max(self._until_ns[worker], report.until_ns)
        self._sending[worker] = not report.all_sent
        self._running[worker] = not report.finished
        self._newest_ns = max(self._newest_ns, report.made_ns)
        self._cpu[worker].append((report.made_ns, report.cpu_ns))
        self._still_ns += late_beyond_bound(report.late_ns)
        for event in report.events:
            changed[event.number] = self._apply_event(event)
        if report.finished:
            self._until_ns[worker] = _NEVER_NS

    def _apply_event(self, event: Event) -> ObservedRequest:
        if isinstance(event, Sent):
            request = ObservedRequest(*event)
            self._by_number[event.number] = request
            heappush(self._unplaced, (event.intended_ns, event.number))
            return request
        request = self._by_number[event.number]
        if isinstance(event, Tokens):
            request.extend(event.items)
        else:
            self._end(request, event)
        return request

    def _end(self, request: ObservedRequest, event: Ended) -> None:
        request.end(event)
        if request.placed:
            heappush(self._ends, event.end_ns)

    def _place(self) -> None:
        while self._unplaced and self._unplaced[0][0] < self.watermark_ns:
            intended_ns, number = heappop(self._unplaced)
            request = self._by_number[number]
            while self._ends and self._ends[0] <= intended_ns:
                heappop(self._ends)
                self._gone += 1
            self.in_flight.append(len(self.requests) - self._gone)
            self.requests.append(request)
            request.placed = True
            if request.end_ns is not None:
                heappush(self._ends, request.end_ns)
