"""One run of a load: sent, observed, recorded while it goes on, then cut and judged."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from otel_llm.bench.client.load_run import CUT_SHORT
from otel_llm.bench.judging import mser5
from otel_llm.bench.load_result import LoadResult, WarmUp, judge_run
from otel_llm.bench.recording.run_folder import set_warm_up_aside
from otel_llm.bench.recording.run_journal import RunJournal
from otel_llm.config.errors import StartError
from otel_llm.instrumentation.segments.outcomes import CANCELLED
from otel_llm.journal.journal_errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from otel_llm.bench.client.load_run import LoadRun
    from otel_llm.bench.client.observed_request import ObservedRequest
    from otel_llm.bench.judging import Validity
    from otel_llm.bench.recording.run_journal import RequestRecords
    from otel_llm.slo.classes import SloClasses

AUTO: Final = "auto"
_STEP_S: Final = 0.1


class LoadTest:
    """The following of one run.

    Args:
        run: as it was started.
        folder: of its recording.
        records: make the records of its requests.
        on_step: called after every step with what changed; shows the live view.
        interrupted: whether the user wants it to end.
    """

    def __init__(
        self,
        run: LoadRun,
        folder: Path,
        records: RequestRecords,
        on_step: Callable[[Sequence[ObservedRequest]], None],
        interrupted: Callable[[], bool],
    ) -> None:
        self.problem: str | None = None
        """Why the recording could not be written."""
        self._run = run
        self._folder = folder
        self._records = records
        self._on_step = on_step
        self._interrupted = interrupted

    def follow(self) -> None:
        """Follow the run to its end, and record each request when it ends.

        A recording that cannot be written ends it, as Ctrl-C does.

        Raises:
            StartError: the folder cannot be used.
            WorkerDiedError: a worker has ended by itself.
        """
        run = self._run
        with RunJournal(self._folder, self._records) as journal:

            def take(changed: Sequence[ObservedRequest]) -> None:
                self._record(journal, changed)
                self._on_step(changed)

            while run.sending and not self._ends:
                take(run.step(_STEP_S))
            run.drain(on_step=take, until=lambda: self._ends)
            if not run.finished:
                run.cancel(CANCELLED, CUT_SHORT, on_step=take)

    @property
    def _ends(self) -> bool:
        return self.problem is not None or self._interrupted()

    def _record(self, journal: RunJournal, changed: Sequence[ObservedRequest]) -> None:
        for request in changed:
            if request.end_ns is None or self.problem is not None:
                continue
            try:
                journal.write(request)
            except JournalError as error:
                self.problem = f"the recording in {self._folder} could not be written: {error.reason}"

    def result(self, warm_up: str | int, classes: SloClasses, class_name: str | None, *, windows: bool) -> LoadResult:
        """Cut the warm-up and judge the rest.

        `warm_up`: AUTO, or ns from the start.
        """
        run = self._run
        cut, rule = self._cut(warm_up)
        measured = run.requests[cut:]
        validity = run.validity()
        if cut and self.problem is None:
            try:
                set_warm_up_aside(self._folder, self._records, run.requests[:cut], measured)
            except (StartError, JournalError, OSError) as error:
                reason = error.reason if isinstance(error, JournalError) else str(error)
                self.problem = f"the warm-up could not be cut from the recording in {self._folder}: {reason}"
                cut, measured = 0, run.requests
        until_ns = measured[0].intended_ns - run.started_ns if cut and measured else 0
        if not measured:
            validity = _not_valid(validity, "no request was sent after the warm-up" if cut else "no request was sent")
        if self.problem is not None:
            validity = _not_valid(validity, self.problem)
        return judge_run(
            self._folder,
            measured,
            validity,
            WarmUp(cut, until_ns, rule),
            classes,
            class_name=class_name,
            open_loop=run.open_loop,
            windows=windows,
        )

    def _cut(self, warm_up: str | int) -> tuple[int, str]:
        """Return how many requests are cut, and the rule."""
        requests, started_ns = self._run.requests, self._run.started_ns
        if isinstance(warm_up, int):
            cut = bisect_left(requests, started_ns + warm_up, key=lambda one: one.intended_ns)
            return cut, f"{warm_up / 1e9:g} s"
        timed = [index for index, one in enumerate(requests) if one.times_ns]
        firsts = [(requests[index].times_ns[0] - requests[index].intended_ns) / 1e9 for index in timed]
        settled = mser5(firsts)
        if settled is None:
            return 0, "MSER-5: the time to the first token has not settled, run longer"
        return (timed[settled] if settled else 0), "MSER-5"


def _not_valid(validity: Validity, why: str) -> Validity:
    return replace(validity, valid=False, why=why if validity.why is None else f"{why}; {validity.why}")
