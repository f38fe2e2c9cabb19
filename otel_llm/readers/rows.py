"""One row of `--requests`: a stream's identity and its figures, null where they are not known.

The audit and the live evaluator build their rows here, from the same `Resolved` and the same verdict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from otel_llm.slo.classes import ABORTED, CONTENT
from otel_llm.slo.columns import REQUEST_COLUMNS, VERDICT_COLUMNS
from otel_llm.slo.verdict import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.readers.assemble.resolved import Resolved
    from otel_llm.slo.verdict import Verdict

Cell: TypeAlias = str | int | float | bool | None
Row: TypeAlias = dict[str, Cell]

_NO_VERDICT: dict[str, Cell] = dict.fromkeys(VERDICT_COLUMNS)


def judged_row(resolved: Resolved, class_name: str, verdict: dict[str, Cell], recorded: int | None) -> Row:
    """Return the row of a stream; `verdict` has the VERDICT_COLUMNS.

    `recorded`: its recorded tokens, None if their times are not known.
    """
    row: Row = {
        "trace_id": resolved.trace_id.hex(),
        "span_id": resolved.span_id.hex(),
        "choice": resolved.choice,
        "slo_class": class_name,
        "model": resolved.model,
        "instance": resolved.instance,
        "measured_at": resolved.measured_at,
        "outcome": resolved.outcome,
        "finish_reason": resolved.finish_reason,
        "start_unix_nano": resolved.commit_ns,
        "tokens_recorded": recorded,
        "token_basis": resolved.token_basis,
        "coverage": resolved.coverage,
        "queue_s": resolved.queue_s,
        **verdict,
    }
    return {name: row[name] for name in REQUEST_COLUMNS}


def verdict_row(resolved: Resolved, class_name: str, verdict: Verdict, recorded: int) -> Row:
    """Return the row of a stream that was judged; `recorded`: its recorded tokens."""
    return judged_row(resolved, class_name, dict(verdict.columns()), recorded)


def unjudged_row(
    resolved: Resolved, class_name: str, times_ns: Sequence[int], kinds: bytes | None, reads: tuple[int, ...]
) -> Row:
    """Return the row of a stream that cannot be judged: tokens or the commit are missing, or the span is foreign.

    `times_ns` are the tokens received, in order of index, unix ns. The times of the first token (of any kind, read)
    are given when nothing before them is missing.
    """
    values: dict[str, Cell] = dict(_NO_VERDICT)
    if resolved.foreign is not None:
        values["ttft_s"] = resolved.foreign.ttft_s
        values["e2e_s"] = resolved.foreign.e2e_s
        if not times_ns:
            return judged_row(resolved, class_name, values, None)
    values["tokens"] = len(times_ns)
    values["tokens_read"] = len(times_ns) if kinds is None else sum(kind in reads for kind in kinds)
    if kinds is None and CONTENT not in reads:
        values["tokens_read"] = 0
    commit_ns = resolved.commit_ns
    if commit_ns is not None:
        if resolved.outcome in ABORTED and resolved.end_ns is None and resolved.coverage is None:
            values["met"] = False  # for every failure; all else depends on its time
        if resolved.outcome != "lost" and resolved.end_ns is not None:
            values["e2e_s"] = seconds(max(commit_ns, resolved.end_ns, *times_ns) - commit_ns)
        known = times_ns[: resolved.known_tokens]
        if known:
            values["ttft_s"] = seconds(max(0, min(known) - commit_ns))
        read = [time for i, time in enumerate(known) if (CONTENT if kinds is None else kinds[i]) in reads]
        if read:
            values["ttfo_s"] = seconds(max(0, min(read) - commit_ns))
    return judged_row(resolved, class_name, values, len(times_ns))
