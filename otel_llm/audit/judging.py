"""Every stream by its class, many at once, and the rows that come of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.audit.result import Judged
from otel_llm.readers.rows import judged_row, unjudged_row
from otel_llm.slo.many import judge_many
from otel_llm.slo.recorded import Recorded

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence

    from otel_llm.readers.assemble import Assembled
    from otel_llm.slo.classes import SloClass, SloClasses
    from otel_llm.slo.verdict import Verdict

BLOCK_TOKENS: Final = 4_000_000
"""Tokens judged in one call, about: what one call holds in memory, not what it gives."""


def judge_all(streams: Sequence[Assembled], classes: SloClasses, counts: Counter[str]) -> list[Judged]:
    """Return every stream with its row, in the order given.

    `counts` gets `unknown_class`, the requests that name a class the file lacks, and `skewed_tokens`.
    """
    found: list[Judged] = []
    for one in streams:
        resolved = one.resolved
        slo, unknown = classes.choose(resolved.declared_class, resolved.attributes)
        counts["unknown_class"] += unknown
        row = {} if resolved.complete else unjudged_row(resolved, slo.name, one.times_ns, one.kinds, slo.reads)
        found.append(Judged(row, None, slo, one))
    complete = [one for one in found if one.assembled.resolved.complete]
    for block in _blocks(complete):
        for judged, verdict in zip(block, _judge(block, classes.classes), strict=True):
            judged.verdict = verdict
            judged.row = judged_row(judged.assembled.resolved, judged.slo.name, dict(verdict.columns()))
            counts["skewed_tokens"] += verdict.skewed
    return found


def _blocks(judged: Sequence[Judged]) -> Iterator[Sequence[Judged]]:
    first, tokens = 0, 0
    for index, one in enumerate(judged):
        if tokens > BLOCK_TOKENS:
            yield judged[first:index]
            first, tokens = index, 0
        tokens += len(one.assembled.times_ns)
    if judged[first:]:
        yield judged[first:]


def _judge(block: Sequence[Judged], classes: Sequence[SloClass]) -> list[Verdict]:
    streams = [one.assembled for one in block]
    commits = [stream.resolved.commit_ns or 0 for stream in streams]
    ends = [stream.resolved.end_ns for stream in streams]
    plain = all(stream.kinds is None for stream in streams)
    codes = {slo.name: code for code, slo in enumerate(classes)}
    judged = judge_many(
        Recorded.of(
            tokens_ns=[stream.times_ns for stream in streams],
            commit_ns=commits,
            end_ns=[commit if end is None else end for commit, end in zip(commits, ends, strict=True)],
            outcomes=[stream.resolved.outcome for stream in streams],
            kinds=None if plain else [stream.kinds for stream in streams],
            input_tokens=[stream.resolved.input_tokens for stream in streams],
        ),
        classes,
        np.array([codes[one.slo.name] for one in block], np.intp),
    )
    return judged.verdicts()
