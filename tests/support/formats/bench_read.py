"""Read a result file of a benchmark tool from bytes, as the audit would: recognised, read, judged to rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.slo.stated_total import judged_tokens

from otel_llm.formats.assemble.resolved import Assembled
from otel_llm.formats.io.skipped import Skipped
from otel_llm.formats.recordings.format_table import known_formats
from otel_llm.formats.recordings.recording_format import Head
from otel_llm.formats.rows import judged_row, unjudged_row
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.request import judge

CLASSES = load_slo(None)


def read(data: bytes, path: Path | str = "result.json", cuts: int = 1) -> tuple[list[Assembled], Skipped]:
    """Return what the parser that recognises `data` makes of it, given to it in `cuts` chunks."""
    head = Head(data[:262144])
    file_format = next(file_format for file_format in known_formats() if file_format.sniff(head))
    skipped = Skipped()
    size = -(-len(data) // cuts) or 1
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    found = [one for one in file_format.read(Path(path), chunks, skipped) if isinstance(one, Assembled)]
    return found, skipped


def recognised(data: bytes) -> str | None:
    """Return the name of the format that data is taken for."""
    return next((file_format.name for file_format in known_formats() if file_format.sniff(Head(data[:262144]))), None)


def judged(streams: Sequence[Assembled]) -> list[dict[str, Any]]:
    """Return the rows of streams by the shipped classes, in their order: by the scalar arithmetic, one by one."""
    rows: list[dict[str, Any]] = []
    for stream in streams:
        resolved = stream.resolved
        slo, _ = CLASSES.choose(resolved.declared_class, resolved.attributes)
        if not resolved.complete:
            rows.append(unjudged_row(resolved, slo.name, stream.events, slo.reads))
            continue
        commit_ns = resolved.commit_ns
        assert commit_ns is not None
        times_ns, kinds = recorded_ns, _ = stream.events.expanded()
        if (anew := judged_tokens(times_ns, kinds, commit_ns, resolved.stated)) is not None:
            times_ns, kinds = anew
            resolved = replace(resolved, token_basis="estimated")
        assert resolved.end_ns is not None
        verdict = judge(
            times_ns,
            commit_ns=commit_ns,
            end_ns=resolved.end_ns,
            outcome=resolved.outcome,
            slo=slo,
            kinds=kinds,
            input_tokens=resolved.input_tokens,
        )
        rows.append(judged_row(resolved, slo.name, dict(verdict.columns()), len(recorded_ns)))
    return rows
