"""The audit, in order: read, assemble, choose a class, judge, add up by window, summarise."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_llm.audit.judging import judge_all
from otel_llm.audit.result import Audit
from otel_llm.audit.windowing import window_rows
from otel_llm.readers.assemble import Assembler
from otel_llm.readers.files import Skipped, input_files, read_file
from otel_llm.readers.otlp import decode
from otel_llm.readers.records import InputError
from otel_llm.rules.durations import parse_duration_ns
from otel_llm.rules.slo_file import load_slo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_llm.slo.classes import SloClasses

LATENESS_NS: Final = 5_000_000_000
"""The collector's default: a stream whose clock is off by more is shifted into its windows."""


def load(
    *paths: str | Path,
    slo: str | Path | SloClasses | None = None,
    class_name: str | None = None,
    window: str | float = "10s",
    progress: Callable[[int], None] | None = None,
) -> Audit:
    """Audit recorded streams: journals and their folders, OTLP JSON lines, OTLP protobuf files.

    `slo` is a file of SLO classes or the classes (the shipped ones where it is None); `class_name` judges every
    request by that class; `window` is a duration as `10s` or in seconds; `progress` is told the bytes read so far.

    Raises:
        InputError: a path does not exist, is nothing that can be read, or nothing was found in any of them.
        ConfigError: the SLO file is wrong.
        UnknownClassError: the file has no class of that name.
        ValueError: the window is no duration above zero.
    """
    window_ns = parse_duration_ns(window)
    if window_ns <= 0:
        raise ValueError(f"a window of {window!r} is empty; write a duration above zero, as 10s")
    classes = load_slo(slo) if slo is None or isinstance(slo, str | Path) else slo
    if class_name is not None:
        classes = classes.judging(class_name)
    assembler, skipped = read([Path(path) for path in paths], progress)
    assembled = assembler.finish()
    counts = Counter(assembler.counts)
    judged = judge_all(assembled, classes, counts)
    rows = window_rows(judged, window_ns, LATENESS_NS, counts)
    return Audit(
        inputs=tuple(str(path) for path in paths),
        classes=classes,
        window_ns=window_ns,
        judged=judged,
        window_rows=rows,
        skipped=skipped,
        counts=counts,
    )


def read(paths: Sequence[Path], progress: Callable[[int], None] | None = None) -> tuple[Assembler, Skipped]:
    """Read every input into an assembler, and say what was skipped.

    Raises:
        InputError: a path does not exist, is nothing that can be read, or there is no export request in any.
    """
    skipped = Skipped()
    assembler = Assembler()
    messages = 0
    done_bytes = 0
    for path in input_files(paths, skipped):
        size = path.stat().st_size
        seen_bytes = 0
        for message, receipt_ns in read_file(path, skipped):
            assembler.add(decode(message, receipt_ns))
            messages += 1
            if progress is not None:
                # A compressed file holds more than its size: its share of the bar is full before its end.
                seen_bytes = min(size, seen_bytes + message.ByteSize())
                progress(done_bytes + seen_bytes)
        done_bytes += size
    if not messages:
        found = f" ({'; '.join(skipped.notes)})" if skipped.notes else ""
        names = ", ".join(str(path) for path in paths) or "no path"
        raise InputError(f"{names}: no export request found{found}; pass a journal folder or a file of OTLP traces")
    return assembler, skipped
