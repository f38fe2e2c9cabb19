"""Probes of a real server: the load client at the probe's rate, drained after each one, recorded if wanted."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.bench.capacity.fate_log import FateLog, StreamSoFar
from otel_llm.bench.capacity.observations import INTERRUPTED, Observations, ProbeEnd, SourceError, child_seed
from otel_llm.bench.capacity.statistics.virtual_queue import REFERENCE_REQUESTS, Load
from otel_llm.bench.client.load_run import CUT_SHORT, DRAIN_S
from otel_llm.bench.client.workers import WorkerDiedError
from otel_llm.bench.plan.load_plan import LoadPlan, PlanError, draw_plan
from otel_llm.bench.recording.run_folder import write_run_file
from otel_llm.bench.recording.run_journal import RunJournal
from otel_llm.config.errors import StartError
from otel_llm.instrumentation.segments.outcomes import CANCELLED
from otel_llm.journal.journal_errors import JournalError
from otel_llm.shared.clock import monotonic_ns
from otel_llm.shared.outputs import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Any

    from otel_llm.bench.capacity.objective import Clause
    from otel_llm.bench.client.load_client import LoadClient
    from otel_llm.bench.client.load_run import LoadRun
    from otel_llm.bench.client.observed_request import ObservedRequest
    from otel_llm.bench.load_settings import LoadSettings
    from otel_llm.bench.recording.run_journal import RequestRecords
    from otel_llm.slo.classes import SloClass

_STEP_S: Final = 0.1
_DRAIN_SHARE: Final = 0.2
"""Of the seconds of a probe so many are kept for the drain, DRAIN_S at most."""


class LiveSource:
    """A server that is probed.

    Args:
        client: of the server; its runs follow one another.
        load: the options; a probe's rate replaces theirs.
        slo: the class that judges the requests.
        clauses: of the objective.
        in_seconds: whether the budget is in seconds, else in requests.
        interrupted: whether the user wants the search to end.
        out: the folder in which each probe has a folder of its recording; None for none.
        records: make the records of requests.
        about: what `run.json` of each probe says beside its rate.
    """

    def __init__(
        self,
        client: LoadClient,
        load: LoadSettings,
        slo: SloClass,
        clauses: Sequence[Clause],
        *,
        in_seconds: bool,
        interrupted: Callable[[], bool],
        out: Path | None,
        records: RequestRecords,
        about: dict[str, Any],
    ) -> None:
        self.client = client
        self.slo = slo
        self.clauses = clauses
        self.in_seconds = in_seconds
        self.records = records
        self.problem: str | None = None
        """Why no further probe can follow: a recording that could not be written, a worker that died."""
        self._interrupted = interrupted
        self._load = load
        self._out = out
        self._about = about
        self._probes = 0
        self._first_number = 0

    @property
    def stopped(self) -> str | None:
        """Return why the search cannot continue, None if it can."""
        return INTERRUPTED if self.problem is None and self._interrupted() else self.problem

    def check(self) -> None:
        """Raise SourceError if the search cannot continue."""
        if self.stopped is not None:
            raise SourceError(self.stopped)

    def begin(self, rate: float, limit: float) -> LiveProbe:
        """Start a probe of at most `limit` seconds, drain included, or requests.

        Raises:
            SourceError: the user has interrupted the search, a recording cannot be written, a worker has died, or the
                probe would be longer than a plan may be.
        """
        self.check()
        self._probes += 1
        shape = self._load.shape(Fraction(rate))
        if self.in_seconds:
            sending_s = limit - min(DRAIN_S, _DRAIN_SHARE * limit)
            shape = replace(shape, requests=None, duration_ns=max(1, round(sending_s * 1e9)))
        else:
            shape = replace(shape, requests=max(1, int(limit)), duration_ns=None)
        try:
            plan = draw_plan(shape, child_seed(self._load.seed, self._probes), self._first_number)
        except PlanError as error:
            raise SourceError(str(error)) from error
        self._first_number += len(plan)
        folder = None
        if self._out is not None:
            text = f"{rate:.1f}" if rate >= 1 else f"{rate:.3f}"
            folder = self._out / f"probe-{self._probes:02d}-{text}"
        return LiveProbe(self, plan, limit, folder, self._about | {"rate": rate})

    def reference(self) -> Load:
        """Return a long draw of the law of the load at 1 request/s."""
        shape = replace(self._load.shape(Fraction(1)), requests=REFERENCE_REQUESTS, duration_ns=None)
        plan = draw_plan(shape, child_seed(self._load.seed, 0))
        return _load(plan, len(plan))


class LiveProbe:
    """A probe in progress; its time is the monotonic clock's."""

    def __init__(
        self, source: LiveSource, plan: LoadPlan, limit: float, folder: Path | None, about: dict[str, Any]
    ) -> None:
        self._source = source
        self._plan = plan
        self._log = FateLog(source.clauses)
        self._over = False
        self._stack = ExitStack()
        self._folder = folder
        self._journal = None if folder is None else self._record(folder, about)
        self._began_ns = monotonic_ns()
        self._until_ns = self._began_ns + round(limit * 1e9) if source.in_seconds else None
        try:
            self._run: LoadRun = source.client.start(plan)
        except WorkerDiedError as error:
            self._stack.close()
            raise SourceError(str(error)) from error

    def _record(self, folder: Path, about: dict[str, Any]) -> RunJournal:
        """Begin the recording. Raises SourceError if it cannot be written."""
        try:
            folder.mkdir()
            write_run_file(folder, about)
            return self._stack.enter_context(RunJournal(folder, self._source.records))
        except (OSError, OutputError, StartError) as error:
            raise SourceError(f"the recording in {folder} could not be written: {error}") from error

    @property
    def most_requests(self) -> float:
        """Return the number of planned requests."""
        return float(len(self._plan))

    def observe(self, requests: int) -> Observations | None:
        """Follow the run until so many requests have been sent; when all have been, until they are over.

        Raises:
            SourceError: the user interrupts it, the recording cannot be written, or a worker has died.
        """
        if self._over:
            return None
        run = self._run
        with self._noting_deaths():
            while run.sending and len(run.requests) < requests and self._source.stopped is None:
                self._take(run.step(_STEP_S))
            if not run.sending:
                self._over = True
                self._drain()
        self._source.check()
        return self._seen()

    def end(self) -> ProbeEnd:
        """Stop, drain, and close the recording."""
        run = self._run
        self._over = True
        with self._stack, self._noting_deaths():
            if not run.finished:
                self._drain()
            if not run.finished:  # the drain was cut short
                run.cancel(CANCELLED, CUT_SHORT, on_step=self._take)
        spent_s = (monotonic_ns() - self._began_ns) / 1e9
        validity = run.validity()
        tokens = sum(len(one.times_ns) for one in run.requests)
        last_ns = max((one.end_ns or 0 for one in run.requests), default=0)
        length_s = (last_ns - run.started_ns) / 1e9
        return ProbeEnd(
            spent_s if self._source.in_seconds else float(len(run.requests)),
            spent_s,
            len(run.requests),
            tokens / length_s if length_s > 0 else None,
            None if validity.valid else validity.why,
            Counter(one.error for one in run.requests if one.error is not None),
        )

    @contextmanager
    def _noting_deaths(self) -> Iterator[None]:
        """Note that a worker has died: the search ends with the interval so far."""
        try:
            yield
        except WorkerDiedError as error:
            self._source.problem = str(error)

    def _drain(self) -> None:
        left_s = DRAIN_S
        if self._until_ns is not None:
            left_s = min(left_s, max(1.0, (self._until_ns - monotonic_ns()) / 1e9))
        self._run.drain(left_s, on_step=self._take, until=lambda: self._source.stopped is not None)

    def _take(self, changed: Sequence[ObservedRequest]) -> None:
        for request in changed:
            if request.end_ns is None or self._journal is None or self._source.problem is not None:
                continue
            try:
                self._journal.write(request)
            except JournalError as error:
                self._source.problem = f"the recording in {self._folder} could not be written: {error.reason}"

    def _seen(self) -> Observations:
        run, now_ns = self._run, self._run.watermark_ns
        count = len(run.requests)
        self._log.extend(self._stream, count, now_ns)
        stays = [(now_ns if one.end_ns is None else one.end_ns) - one.intended_ns for one in run.requests]
        return Observations(
            _load(self._plan, count),
            np.array(run.in_flight, np.float64),
            np.array(stays, np.float64) / 1e9,
            self._log.fates,
            self._log.waits,
        )

    def _stream(self, place: int) -> StreamSoFar:
        one = self._run.requests[place]
        return StreamSoFar(
            self._source.slo, one.intended_ns, one.times_ns, one.kinds, one.end_ns, one.outcome, one.prompt_tokens
        )


def _load(plan: LoadPlan, count: int) -> Load:
    assert plan.at_ns is not None  # noqa: S101 - probes are open loops
    return Load(
        plan.at_ns[:count] / 1e9,
        plan.input_tokens[:count].astype(np.float64),
        plan.output_tokens[:count].astype(np.float64),
    )
