"""Checkpoints beside the journal: the record from which a restart reads, and the time of the last stop."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from otel_llm.journal.checkpoint import read_resume, write_resume
from otel_llm.journal.journal_errors import JournalError
from otel_llm.shared.memory import HEAP_TRIMMER

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.journal.journal import Journal

# The keys of `resume.json`; the values are in unix ns.
FROM_NS: Final = "replay_from_unix_nano"
WINDOWS_NS: Final = "windows_closed_until_unix_nano"
STOPPED_NS: Final = "stopped_unix_nano"
"""The time up to which a stopped run has evaluated, for a backtest; absent while a run continues, and after a crash."""
CHECKPOINT_S: Final = 1.0
"""The interval of checkpoints."""
BACK_NS: Final = 180 * 1_000_000_000
"""How far before the checkpoint a restart reads, to learn which streams have ended. Senders repeat an export for two
minutes: a repeated segment of an ended stream must not begin it again."""
log = logging.getLogger(__name__)


class Checkpoint:
    """Writes a checkpoint every second, in a thread of its own, as the disk may be slow.

    `resume_point` returns the receipt time (unix ns) of the first record that a restart needs and the end (unix ns) of
    the last closed window; it may raise TimeoutError.
    """

    def __init__(self, journal: Journal, resume_point: Callable[[], tuple[int, int]]) -> None:
        self._journal = journal
        self._resume_point = resume_point
        self._failed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel-llm-checkpoint", daemon=True)

    def start(self) -> None:
        """Start writing."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; keep the last checkpoint."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(CHECKPOINT_S):
            HEAP_TRIMMER.trim_if_due()  # here, as this thread has time and runs every second
            try:
                needed_ns, closed_until_ns = self._resume_point()
                write_resume(self._journal.folder, {FROM_NS: needed_ns, WINDOWS_NS: closed_until_ns})
            except TimeoutError:
                continue  # with an older checkpoint a restart reads more
            except JournalError as error:
                if not self._failed:
                    log.warning("otel-llm: no checkpoint can be written (%s): a restart will read more", error.reason)
                self._failed = True
                continue
            self._failed = False
            self._journal.keep_from_ns = max(0, needed_ns - BACK_NS)


def note_stop(journal: Journal, stopped_ns: int) -> None:
    """Add the time of the stop (unix ns) to the last checkpoint; call it when the evaluation has ended."""
    try:
        write_resume(journal.folder, {**read_resume(journal.folder), STOPPED_NS: stopped_ns})
    except JournalError as error:
        log.warning("otel-llm: the time of the stop cannot be written (%s)", error.reason)
