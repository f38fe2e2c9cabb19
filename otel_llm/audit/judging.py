"""Every stream by its class, many at once, and the rows that come of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.audit.result import Judged
from otel_llm.readers.rows import judged_row, unjudged_row
from otel_llm.slo.many import judge_many
from otel_llm.slo.many_fluid import fluid_tbt_many
from otel_llm.slo.recorded import Recorded

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence

    from otel_llm.readers.assemble import Assembled
    from otel_llm.slo.classes import SloClass, SloClasses

BLOCK_TOKENS: Final = 4_000_000
"""Tokens judged in one call, about: it bounds what the arrays of a call hold, and changes no result."""


def judge_all(streams: Sequence[Assembled], classes: SloClasses, counts: Counter[str]) -> list[Judged]:
    """Return every stream with its row, in the order given.

    `counts` gets `unknown_class`, the requests that name a class the file lacks, and `skewed_tokens`.
    """
    found: list[Judged] = []
    by_class: dict[str, list[Judged]] = {}
    for stream in streams:
        resolved = stream.resolved
        slo, unknown = classes.choose(resolved.declared_class, resolved.attributes)
        counts["unknown_class"] += unknown
        if resolved.complete:
            found.append(Judged({}, None, None, slo, stream))
            by_class.setdefault(slo.name, []).append(found[-1])
        else:
            row = unjudged_row(resolved, slo.name, stream.times_ns, stream.kinds, slo.reads)
            found.append(Judged(row, None, None, slo, stream))
    for mine in by_class.values():
        for block in _blocks(mine):
            _judge(block, mine[0].slo)
            counts["skewed_tokens"] += sum(one.verdict.skewed for one in block if one.verdict)
    return found


def _blocks(judged: Sequence[Judged]) -> Iterator[Sequence[Judged]]:
    first, tokens = 0, 0
    for index, one in enumerate(judged):
        if tokens > BLOCK_TOKENS:
            yield judged[first:index]
            first, tokens = index, 0
        tokens += len(one.assembled.times_ns)
    yield judged[first:]


def _judge(block: Sequence[Judged], slo: SloClass) -> None:
    """Give the streams of one class their verdicts, rows and fluid TBT targets."""
    streams = [one.assembled for one in block]
    commits = [stream.resolved.commit_ns or 0 for stream in streams]
    ends = [stream.resolved.end_ns for stream in streams]
    plain = all(stream.kinds is None for stream in streams)
    requests = Recorded.of(
        tokens_ns=[stream.times_ns for stream in streams],
        commit_ns=commits,
        end_ns=[commit if end is None else end for commit, end in zip(commits, ends, strict=True)],
        outcomes=[stream.resolved.outcome for stream in streams],
        kinds=None if plain else [stream.kinds for stream in streams],
        input_tokens=[stream.resolved.input_tokens for stream in streams],
    )
    fluid = fluid_tbt_many(requests, [slo])
    values = zip(fluid.values.tolist(), fluid.known.tolist(), strict=True)
    for one, verdict, (tbt_ns, known) in zip(block, judge_many(requests, [slo]).verdicts(), values, strict=True):
        one.verdict = verdict
        one.fluid_tbt_ns = tbt_ns if known else None
        one.row = judged_row(one.assembled.resolved, slo.name, dict(verdict.columns()))
