"""Read the files of an audit to batches of streams: complete streams are passed on at once, others wait."""

from __future__ import annotations

from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from otel_llm.audit.input import parquet_streams
from otel_llm.audit.input.stream_batch import batches, without_totals
from otel_llm.formats.assemble.resolved import Assembled
from otel_llm.formats.assemble.stream_assembler import HELD_BYTES, StreamAssembler
from otel_llm.formats.files import read_raw
from otel_llm.formats.input_paths import input_files, size
from otel_llm.formats.io.journal_format import is_journal
from otel_llm.formats.io.skipped import HARMLESS, RawRecord, Skipped
from otel_llm.formats.otlp.export_request import decode, read
from otel_llm.formats.recordings.parquet_files import unpacked
from otel_llm.formats.recordings.recording_format import EXPECTED, all_broken
from otel_llm.formats.records import DecodeError, InputError
from otel_llm.shared.formatting import plural

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Generator, Iterator, Sequence

    import pyarrow as pa

    from otel_llm.formats.assemble.stream_columns import Streams
    from otel_llm.formats.batch import Batch
    from otel_llm.formats.records import StreamKey

Tokens: TypeAlias = Literal["stated", "recorded"]
"""Which tokens are judged: the total that a reply states, or those that were recorded."""
GROUP_BYTES: Final = 4 * 2**20
"""About the bytes of records that are decoded together."""
GROUP_RECORDS: Final = 4096


class BrokenRecordError(ValueError):
    """A record is broken, and none may be skipped; the text says which."""


class SeveralRunsError(InputError):
    """A file holds several runs of a benchmark and none was chosen; `loads` has the stated load of each, requests/s."""

    def __init__(self, path: Path, loads: Sequence[float | None]) -> None:
        stated = ", ".join("none" if load is None else f"{load:g}" for load in loads[:8])
        more = ", ..." if len(loads) > 8 else ""
        super().__init__(
            f"{path}: {len(loads)} runs of a benchmark, at {stated}{more} requests/s, and each is judged by itself: "
            f"choose one, from 1 to {len(loads)}"
        )
        self.path = path
        self.loads = tuple(loads)


class Strict(Skipped):
    """Counts that stop at the first broken record; a torn tail, which a crash leaves, is harmless."""

    __slots__ = ()

    def add(self, reason: str, note: str, number: int = 1) -> None:
        """Raise BrokenRecordError unless the reason is harmless."""
        super().add(reason, note, number)
        if reason not in HARMLESS:
            raise BrokenRecordError(note)


class Inputs:
    """The paths of an audit, read once as batches of STREAMS.

    `skipped` and `counts` are complete when the last batch was taken; `progress` is called with the bytes read so far.
    `run`: of result files the only run that is read, from 0; `single_runs`: refuse a file with several.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        strict: bool = False,
        progress: Callable[[int], None] | None = None,
        held_bytes: int = HELD_BYTES,
        group_records: int = GROUP_RECORDS,
        tokens: Tokens = "stated",
        run: int | None = None,
        single_runs: bool = False,
    ) -> None:
        self.skipped = Strict() if strict else Skipped()
        self.skipped.only_run = run
        self._single_runs = single_runs
        self._paths = paths
        self._progress = progress
        self._assembler = StreamAssembler(held_bytes=held_bytes)
        self._group_records = group_records
        self._tokens = tokens
        self._seen: set[StreamKey] = set()
        self._messages = 0
        self._usable = 0  # streams, segments and spans of requests
        self._read_bytes = 0

    @property
    def counts(self) -> Counter[str]:
        """Return the counts of harmless anomalies."""
        return self._assembler.counts + self.skipped.anomalies

    def batches(self) -> Generator[pa.RecordBatch]:
        """Yield the streams of all paths, in no particular order.

        With `tokens="recorded"` they state no total, so that the recorded tokens are judged.

        Raises:
            InputError: a path does not exist, is nothing that can be read, or nothing was found in any of them; or a
                file does not have the run.
            SeveralRunsError: a file holds several runs, and one is wanted.
            BrokenRecordError: a record is broken, if none may be.
        """
        unpacked_files = TemporaryDirectory(prefix="otel-llm-")
        try:
            folder = Path(unpacked_files.name)
            given: dict[Path, Path] = {}  # the path to read each file at, and the path as given
            for path in input_files(self._paths, self.skipped):
                with self._spared(path, path):
                    given[unpacked(path, folder)] = path
            files = list(given)
            spans = [path for path in files if not parquet_streams.holds_streams(path)]
            yield from map(self._judged_by, batches(self._streams(spans)))
            for path in files:
                if path not in spans:
                    with self._spared(path, given[path]), self._empty_reported(given[path]):
                        for batch in parquet_streams.read_batches(path):
                            self._messages += 1
                            self._usable += len(batch)
                            self._report_progress(self._read_bytes + parquet_streams.BATCH_BYTES)
                            yield self._judged_by(batch)
                        self._messages += 1
                        self._check_runs(path)
        finally:
            self._assembler.close()
            unpacked_files.cleanup()
        if not self._messages:
            notes = self.skipped.notes
            found = f" ({'; '.join(notes)})" if notes else ""
            names = ", ".join(str(path) for path in self._paths) or "no path"
            if files and not notes and not any(map(size, files)):
                empty = "it is empty" if len(files) == 1 else "they are empty"
                raise InputError(f"{names}: no export request found: {empty}; {EXPECTED}")
            raise InputError(f"{names}: no export request found{found}; pass a journal folder or a file of OTLP traces")

    def _judged_by(self, streams: pa.RecordBatch) -> pa.RecordBatch:
        return streams if self._tokens == "stated" else without_totals(streams)

    @contextmanager
    def _spared(self, path: Path, named: Path) -> Iterator[None]:
        """Count an unreadable file that a folder or a pattern named; the rest is read.

        Raises:
            InputError: the file was named itself; the text says `named`, whatever `path` it is read at.
        """
        try:
            yield
        except InputError as error:
            reason = str(error).replace(str(path), str(named))
            if named not in self.skipped.chosen:
                raise InputError(reason) from error
            self.skipped.add("unreadable_file", reason)

    @contextmanager
    def _empty_reported(self, path: Path) -> Iterator[None]:
        """Count a file of a known format that holds no request, unless something of it was skipped."""
        usable, messages, ignored, left_out = self._usable, self._messages, self.counts["ignored"], self._left_out
        yield
        if self._usable == usable and self._messages > messages and self._left_out == left_out and not is_journal(path):
            spans = self.counts["ignored"] - ignored
            found = (
                f"{plural(spans, 'span')}, none of a model's request" if spans else "it is of a known format, and empty"
            )
            self.skipped.add("no_request", f"{path}: no request in it: {found}")

    @property
    def _left_out(self) -> int:
        return self.skipped.counts.total() - self.skipped.counts["zone_assumed"]

    def _streams(self, files: Sequence[Path]) -> Iterator[Streams | Assembled]:
        done_bytes = 0
        for path in files:
            with self._empty_reported(path):
                yield from self._file(path, done_bytes, size(path))
            done_bytes += size(path)
            self._report_progress(done_bytes)
        yield from self._assembler.finish()

    def _file(self, path: Path, done_bytes: int, size_bytes: int) -> Iterator[Streams | Assembled]:
        group: list[tuple[Batch, int | None] | RawRecord] = []
        group_bytes = seen_bytes = 0
        good, notes = self._messages, len(self.skipped.notes)
        broken = self.skipped.broken - self.skipped.counts["unreadable_file"]
        for item in read_raw(path, self.skipped):
            if isinstance(item, Assembled):
                self._messages += 1
                self._usable += 1
                if self._fresh(item):
                    yield item
                continue
            if isinstance(item, RawRecord):
                group.append(item)
                item_bytes = len(item.raw)
            else:
                batch = decode(item.message, item.receipt_ns)
                batch.owned_by(item.tenant)
                self._usable += batch.spans - batch.ignored
                group.append((batch, item.receipt_ns))
                item_bytes = item.message.ByteSize()
            group_bytes += item_bytes
            seen_bytes += item_bytes
            if group_bytes >= GROUP_BYTES or len(group) >= self._group_records:
                yield self._assembler.take(self._decoded(group))
                group, group_bytes = [], 0
                # A compressed file holds more than its size: its share of the progress is complete before its end.
                self._report_progress(done_bytes + min(size_bytes, seen_bytes))
        if group:
            yield self._assembler.take(self._decoded(group))
        self._check_runs(path)
        now_broken = self.skipped.broken - self.skipped.counts["unreadable_file"]
        if now_broken > broken and self._messages == good and not is_journal(path):
            refusal = all_broken(path, self.skipped, notes)
            if path not in self.skipped.chosen:
                raise refusal
            self.skipped.add("unreadable_file", str(refusal))

    def _check_runs(self, path: Path) -> None:
        """Refuse a file that has not the run that was chosen, or several if each should be judged by itself."""
        loads, chosen = self.skipped.runs.get(path, []), self.skipped.only_run
        if chosen is None:
            if len(loads) > 1 and self._single_runs:
                raise SeveralRunsError(path, loads)
        elif not loads:
            raise InputError(f"{path}: this format has no runs to choose from: leave out the run {chosen + 1}")
        elif not 0 <= chosen < len(loads):
            raise InputError(f"{path}: no run {chosen + 1}: it has {plural(len(loads), 'run')}, counted from 1")

    def _decoded(self, group: Sequence[tuple[Batch, int | None] | RawRecord]) -> list[tuple[Batch, int | None]]:
        """Return the records of a group of export requests: plain segments as columns, the rest as objects."""
        found: list[tuple[Batch, int | None]] = []
        for item in group:
            if not isinstance(item, RawRecord):
                found.append(item)
                self._messages += 1
                continue
            try:
                batch = read(item.raw, receipt_ns=item.receipt_ns)
            except DecodeError as error:
                self.skipped.add("bad_record", f"{item.place}: {error}")
                continue
            batch.owned_by(item.tenant)
            self._usable += batch.spans - batch.ignored
            found.append((batch, item.receipt_ns))
            self._messages += 1
        return found

    def _fresh(self, stream: Assembled) -> bool:
        """Tell whether a stream of a format that is not spans is new; the first of several counts."""
        key = stream.resolved.key
        if key in self._seen:
            self._assembler.counts["duplicate_requests"] += 1
            return False
        self._seen.add(key)
        return True

    def _report_progress(self, done_bytes: int) -> None:
        self._read_bytes = done_bytes
        if self._progress is not None:
            self._progress(done_bytes)


def load_streams(
    *paths: str | Path,
    progress: Callable[[int], None] | None = None,
    run: int | None = None,
    single_runs: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield recorded streams as batches of STREAMS: the input of `kernel.judge_batch`; raises as `load` does.

    `run`: of result files only this run, from 0; `single_runs`: refuse a file of several runs (SeveralRunsError).
    """
    inputs = Inputs([Path(path) for path in paths], progress=progress, run=run, single_runs=single_runs)
    with closing(inputs.batches()) as found:
        yield from found
