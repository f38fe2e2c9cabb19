"""Restart: replay the journal of the last run, without reporting or counting anything twice.

The checkpoint beside the journal holds the receipt time of the earliest record of a stream in flight or an open window.
From there the journal is evaluated again, with its receipt times: streams, windows and rules regain their state.
Decisions and windows that are in the files of the last run are not written again.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_llm.collector.checkpoints import BACK_NS, FROM_NS, WINDOWS_NS
from otel_llm.evaluate.windowing import GROUP_NAMES
from otel_llm.formats.otlp import export_request
from otel_llm.formats.records import DecodeError
from otel_llm.journal.checkpoint import read_resume
from otel_llm.journal.records import last_receipt_ns, read_since
from otel_llm.shared.clock import monotonic_s
from otel_llm.shared.whole_files import whole_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_llm.collector.pipeline import Pipeline
    from otel_llm.journal.journal import Journal

NO_CHECKPOINT_NS: Final = 3600 * 1_000_000_000
"""How far back a restart reads without a checkpoint."""
LOG_EVERY_S: Final = 5.0
"""The interval of progress lines in the log."""
MOST_NOTES: Final = 20
"""The most skipped records that are named; all are counted."""
log = logging.getLogger(__name__)

Window = tuple[object, ...]
"""A window that was written: its start and its group."""


@dataclass(slots=True)
class Windows:
    """Passes on each window that the last run has not written.

    It has written those that closed before the checkpoint, and of the later ones those in its file (`written`). Without
    a file, windows of the last second before a crash may be sent twice.
    """

    write: Callable[[dict[str, object]], None]
    written: set[Window] = field(default_factory=set)
    closed_until_ns: int = 0

    def take(self, row: dict[str, object]) -> None:
        """Write a window unless the last run has."""
        start_ns = row["window_start_unix_nano"]
        assert isinstance(start_ns, int)  # noqa: S101
        if start_ns >= self.closed_until_ns and _window(row) not in self.written:
            self.write(row)


@dataclass(slots=True)
class Progress:
    """The progress of a restart, logged at an interval."""

    now_s: Callable[[], float] = monotonic_s
    line: str | None = None
    """The progress in words; None when the restart does not read."""
    _logged_s: float | None = None
    _notes: int = 0

    def at(self, read_bytes: int, all_bytes: int) -> None:
        """Note how many of the journal's bytes are read."""
        share = 100 * read_bytes // max(1, all_bytes)
        self.line = f"restarting: {read_bytes / 1e6:.0f} of {all_bytes / 1e6:.0f} MB of the journal read ({share} %)"
        now_s = self.now_s()
        if self._logged_s is None:
            self._logged_s = now_s
        elif now_s - self._logged_s >= LOG_EVERY_S:
            self._logged_s = now_s
            log.warning("otel-llm: %s", self.line)

    def skipped_record(self, path: Path, reason: str, offset: int) -> None:
        """Log a skipped record; it stays on disk."""
        self._notes += 1
        if self._notes <= MOST_NOTES:
            log.warning("%s: record at byte %d: %s; it is left out of the replay", path, offset, reason)

    def done(self) -> None:
        """Note the end."""
        self.line = None


def replay(pipeline: Pipeline, journal: Journal, *, windows: Windows | None, progress: Progress | None = None) -> int:
    """Replay the records since the checkpoint, before the pipeline starts; return how many were evaluated.

    Streams of records before the checkpoint have ended: a repeated segment of theirs starts no new stream. A record
    that cannot be read, or has more small fields than its size allows, is skipped, counted, named by file and offset,
    and stays on disk.
    """
    progress = progress or Progress()
    last_ns = last_receipt_ns(journal.folder)
    if last_ns is None:
        return 0
    pipeline.clock.start_after(last_ns)
    checkpoint = read_resume(journal.folder)
    from_ns = checkpoint.get(FROM_NS, last_ns - NO_CHECKPOINT_NS)
    if windows is not None:
        windows.closed_until_ns = checkpoint.get(WINDOWS_NS, 0)
    sinks, evaluator = pipeline.sinks, pipeline.evaluator
    skipped: Counter[str] = Counter()
    sinks.replaying = True
    evaluator.pause_group_rules()
    try:
        for path, record, read_bytes, all_bytes in read_since(
            journal.folder, max(0, from_ns - BACK_NS), skipped, progress.skipped_record
        ):
            progress.at(read_bytes, all_bytes)
            if record.receipt_ns is None:
                continue  # for the types: `read_since` yields no such record
            try:
                batch = export_request.read(record.raw, limits=pipeline.intake.attributes)
            except DecodeError as error:
                skipped["undecodable"] += 1
                progress.skipped_record(path, str(error), record.offset)
                continue
            if record.receipt_ns < from_ns:
                batch.owned_by(record.tenant)
                evaluator.mark_closed(batch)
            else:
                pipeline.replay(batch, record.receipt_ns, record.tenant)
        for _ in evaluator.meter.charge_in_flight():
            pass  # discard the charges: the last run has counted them
        evaluator.resume_group_rules(last_ns)
    finally:
        sinks.replaying = False
        progress.done()
    evaluator.counts.clear()
    evaluator.windowing.late = 0
    for reason, number in skipped.items():
        evaluator.counts[f"replay_skipped.{reason}"] += number
    return pipeline.replayed


def written_windows(path: Path) -> set[Window]:
    """Return the windows in a file.

    Raises:
        OSError: it cannot be read.
    """
    found: set[Window] = set()
    for line in whole_lines(path):
        try:
            found.add(_window(json.loads(line)))
        except (ValueError, KeyError, TypeError):
            continue  # not a line of ours
    return found


def _window(row: dict[str, object]) -> Window:
    return (row["window_start_unix_nano"], *(row[name] for name in GROUP_NAMES))
