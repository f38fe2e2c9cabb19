"""One row of `--requests`: a stream's identity and its figures, null if they are not known.

The audit and the live evaluator build their rows here, from the same `Resolved` and the same verdict.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, TypeAlias

from otel_llm.slo.classes import ABORTED, CONTENT
from otel_llm.slo.metrics import COMPUTED, REQUESTS, STATED
from otel_llm.slo.verdict import seconds

if TYPE_CHECKING:
    from otel_llm.formats.assemble.resolved import Resolved
    from otel_llm.slo.token_events import TokenEvents
    from otel_llm.slo.verdict import Verdict

Cell: TypeAlias = str | int | float | bool | None
Row: TypeAlias = dict[str, Cell]

_NO_VERDICT: dict[str, Cell] = dict.fromkeys(COMPUTED)


def judged_row(resolved: Resolved, class_name: str, verdict: dict[str, Cell], recorded: int | None) -> Row:
    """Return the row of a stream; `verdict` has the columns of COMPUTED.

    `recorded`: its recorded tokens, None if their times are not known.
    """
    row: Row = {
        "trace_id": resolved.trace_id.hex(),
        "span_id": resolved.span_id.hex(),
        "slo_class": class_name,
        "start_unix_nano": resolved.commit_ns,
        "tokens_recorded": recorded,
        **{name: getattr(resolved, name) for name in STATED},
        **verdict,
    }
    return {name: row[name] for name in REQUESTS}


def verdict_row(resolved: Resolved, class_name: str, verdict: Verdict, recorded: int) -> Row:
    """Return the row of a stream that was judged; `recorded`: its recorded tokens."""
    return judged_row(resolved, class_name, dict(verdict.columns()), recorded)


def unjudged_row(resolved: Resolved, class_name: str, events: TokenEvents, reads: tuple[int, ...]) -> Row:
    """Return the row of a stream that cannot be judged: tokens or the commit are missing, or the span is foreign.

    `events` are those of the tokens received, in order of index, unix ns. The times of the first token (of any kind,
    read) are given when nothing before them is missing.
    """
    values: dict[str, Cell] = dict(_NO_VERDICT)
    if resolved.foreign is not None:
        values["ttft_s"] = resolved.foreign.ttft_s
        values["e2e_s"] = resolved.foreign.e2e_s
        if not events.times_ns:
            return judged_row(resolved, class_name, values, None)
    tokens = values["tokens"] = events.tokens
    values["tokens_read"] = sum(count for _, count in _read(events, reads))
    commit_ns = resolved.commit_ns
    if commit_ns is not None:
        if resolved.outcome in ABORTED and resolved.end_ns is None and resolved.coverage is None:
            values["met"] = False  # for every failure; all else depends on its time
        if resolved.outcome != "lost" and resolved.end_ns is not None:
            values["e2e_s"] = seconds(max(commit_ns, resolved.end_ns, *events.times_ns) - commit_ns)
        known = events.first(resolved.known_tokens)
        if known.times_ns:
            values["ttft_s"] = seconds(max(0, min(known.times_ns) - commit_ns))
        read = [time for time, _ in _read(known, reads)]
        if read:
            values["ttfo_s"] = seconds(max(0, min(read) - commit_ns))
    return judged_row(resolved, class_name, values, tokens)


def _read(events: TokenEvents, reads: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the times and counts of the events whose tokens are read."""
    times_ns, kinds, counts = events
    every = zip(times_ns, repeat(1) if counts is None else counts, strict=False)
    if kinds is None:
        return list(every) if CONTENT in reads else []
    return [one for one, kind in zip(every, kinds, strict=True) if kind in reads]
