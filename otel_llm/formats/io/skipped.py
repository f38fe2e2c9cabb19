"""Counts of skipped parts, by reason and with places; and the types that parsers of spans yield."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.formats.records import DEFAULT_TENANT

if TYPE_CHECKING:
    from pathlib import Path

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from otel_llm.formats.io.bytestream import Line


class Received(NamedTuple):
    """An export request, its receipt (unix ns; None if not known) and the tenant of its sender."""

    message: ExportTraceServiceRequest
    receipt_ns: int | None = None
    tenant: str = DEFAULT_TENANT


class RawRecord(NamedTuple):
    """An export request as in its file, not yet parsed."""

    raw: bytes
    receipt_ns: int | None
    tenant: str
    place: str
    """The prefix of messages about it: `FILE: record N at byte B`."""


MAX_DOCUMENT_BYTES: Final = 256 * 2**20
"""A single message, a JSON line or a JSON document longer than this is refused: it would be held in memory."""

HARMLESS: Final = frozenset(
    {
        *("other_signal", "unfinished_zst", "repeated_file", "torn_tail", "unknown_file", "zone_assumed"),
        *("warmup", "cooldown", "context_overflow", "no_request"),
    }
)
_MAX_NOTES: Final = 20


@dataclass(slots=True)
class Skipped:
    """The parts that reading left out, by reason, and the places of the first ones.

    `torn_tail` a file ends inside a record; `bad_crc` a record's bytes changed; `bad_record` no record of its format;
    `other_signal` metrics, logs or profiles of the same exporter; `unfinished_zst` a `.zst` beside its `.otlp`;
    `unknown_file` a file in a folder of no known format; `unreadable_file` one that cannot be opened; `zone_assumed`
    times without a zone, read as UTC; `warmup` and `cooldown` requests of a benchmark's warm-up and cool-down;
    `context_overflow` requests beyond the model's context that a benchmark does not count; `repeated_file` a file in a
    folder whose requests another of its files has more exactly; `no_request` a file of a known format without a
    request.
    """

    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    """`file:line: what was wrong` or `file: what was wrong`, the first few."""
    anomalies: Counter[str] = field(default_factory=Counter)
    """Anomalies of streams that were read, as in `Assembler.counts`: `anomaly.NAME`."""

    unkept: Counter[str] = field(default_factory=Counter)
    """Requests, by outcome, that files count in their totals and do not keep: the others are a sample."""

    runs: dict[Path, list[float | None]] = field(default_factory=dict)
    """Of files with runs of a benchmark the load of each, requests/s, in order; None if the file states none."""
    only_run: int | None = None
    """The only run whose requests are read, counted from 0."""

    chosen: set[Path] = field(default_factory=set)
    """Files that a folder or a pattern named: an unreadable one does not end the audit."""

    @property
    def broken(self) -> int:
        """Return the number of damaged records, without harmless ones and the cut end that a crash leaves."""
        return sum(number for reason, number in self.counts.items() if reason not in HARMLESS)

    def add(self, reason: str, note: str, number: int = 1) -> None:
        """Count `number` of a reason and keep their place, if there is room."""
        self.counts[reason] += number
        if len(self.notes) < _MAX_NOTES:
            self.notes.append(note)

    def anomaly(self, name: str, number: int = 1) -> None:
        """Count an anomaly of streams that were read."""
        self.anomalies[f"anomaly.{name}"] += number

    def not_in_sample(self, outcome: str, number: int) -> None:
        """Count requests that a file counts in its totals and does not keep."""
        self.unkept[outcome] += number
        self.anomaly("not_in_sample", number)

    def wants_run(self, path: Path) -> bool:
        """Tell whether the requests of the run that begins in a file are read."""
        return self.only_run in (None, len(self.runs.get(path, ())))

    def end_run(self, path: Path, load_req_s: float | None) -> None:
        """Count a run of a file and its load."""
        self.runs.setdefault(path, []).append(load_req_s)

    def bad_line(self, path: Path | str, line: Line, what: object) -> None:
        """Count a malformed line: as cut if the file ends inside it, else as broken."""
        if line.ended:
            self.bad(path, line.number, what)
        else:
            self.torn(path, line.number)

    def bad(self, path: Path | str, where: int | str, what: object) -> None:
        """Count a broken record: `where` is its line, or words such as `byte 1234`."""
        self.add("bad_record", f"{path}:{where}: {what}" if isinstance(where, int) else f"{path}: {where}: {what}")

    def torn(self, path: Path | str, where: int | str) -> None:
        """Count a record that the file's end cuts."""
        self.add("torn_tail", f"{path}:{where}: cut" if isinstance(where, int) else f"{path}: {where}: cut")
