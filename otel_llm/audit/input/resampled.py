"""Streams with the tokens by which they are judged: resampled to the total that a reply states."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from otel_llm.audit.input.stream_batch import BATCH_TOKENS, STREAMS, lists, token_times
from otel_llm.slo.stated_total import MOST_TOKENS, RESAMPLED, Stated, restated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt


class Resampled(NamedTuple):
    """Streams (R rows of STREAMS) with the tokens by which they are judged.

    `recorded`: how many were recorded (R,); `skewed`: how many tokens of a resampled stream were recorded before its
    commit (R,), 0 for the others.
    """

    streams: pa.RecordBatch
    recorded: npt.NDArray[np.int64]
    skewed: npt.NDArray[np.int64]


def resampled(streams: pa.RecordBatch, most_tokens: int = BATCH_TOKENS) -> Iterator[Resampled]:
    """Yield the streams with the tokens of each resampled to its stated total, if it has one that applies.

    They come in their order, as slices of about `most_tokens` tokens: a few recorded chunks may state many.
    """
    stated = _stated(streams)
    totals = [0 if one is None else min(one.output_tokens or 0, MOST_TOKENS) for one in stated]
    upto = np.cumsum(np.array(totals, np.int64))
    cuts = (np.flatnonzero(np.diff(upto // most_tokens)) + 1).tolist()
    for first, last in pairwise([0, *cuts, len(streams)]):
        yield _resampled(streams.slice(first, last - first), stated[first:last])


def _resampled(streams: pa.RecordBatch, stated: Sequence[Stated | None]) -> Resampled:
    skewed = np.zeros(len(streams), np.int64)
    times, offsets = token_times(streams)
    recorded = np.diff(offsets)
    if not any(stated):
        return Resampled(streams, recorded, skewed)
    lengths = recorded.copy()
    kinds = streams.column("kinds").to_pylist()
    basis = streams.column("token_basis").to_pylist()
    commits = streams.column("commit_ns").to_pylist()
    parts: list[npt.NDArray[np.int64]] = []
    upto = 0
    for row, one in enumerate(stated):
        own = times[offsets[row] : offsets[row + 1]]
        if one is None or (found := restated(own, kinds[row], commits[row], one)) is None:
            continue
        parts += [times[upto : offsets[row]], found[0]]
        upto = offsets[row + 1]
        lengths[row], kinds[row], basis[row] = len(found[0]), found[1], RESAMPLED
        skewed[row] = int((own < commits[row]).sum())
    if not parts:
        return Resampled(streams, recorded, skewed)
    every = np.concatenate([*parts, times[upto:]])
    columns = {
        "times_ns": lists(every, np.concatenate(([0], np.cumsum(lengths)))),
        "kinds": pa.array(kinds, STREAMS.field("kinds").type),
        "token_basis": pa.array(basis, STREAMS.field("token_basis").type),
    }
    arrays = [columns.get(name, streams.column(name)) for name in streams.schema.names]
    return Resampled(pa.RecordBatch.from_arrays(arrays, schema=streams.schema), recorded, skewed)


def _stated(streams: pa.RecordBatch) -> list[Stated | None]:
    """Return what each complete stream states of its tokens (R,), None if the recorded ones stand."""
    names = ("outcome", "coverage", "token_basis", "output_tokens", "reasoning_tokens")
    facts = zip(*(streams.column(name).to_pylist() for name in names), strict=True)
    complete = streams.column("complete").to_pylist()
    return [
        stated if whole and (stated := Stated(*one)).may_apply else None
        for whole, one in zip(complete, facts, strict=True)
    ]
