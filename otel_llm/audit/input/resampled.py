"""Streams with the tokens by which they are judged: resampled to the total that a reply states."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from otel_llm.audit.input.stream_batch import BATCH_TOKENS, STREAMS, dictionary_of, lists, token_times
from otel_llm.slo.stated_total import MOST_TIMES_MORE, MOST_TOKENS, RESAMPLED, Stated, restated

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    candidates = _with_total(streams)
    totals = streams.column("output_tokens").fill_null(0).to_numpy(zero_copy_only=False)
    upto = np.cumsum(np.where(candidates, np.minimum(totals, MOST_TOKENS), 0))
    cuts = (np.flatnonzero(np.diff(upto // most_tokens)) + 1).tolist()
    for first, last in pairwise([0, *cuts, len(streams)]):
        yield _resampled(streams.slice(first, last - first), candidates[first:last])


def _resampled(streams: pa.RecordBatch, candidates: npt.NDArray[np.bool_]) -> Resampled:
    skewed = np.zeros(len(streams), np.int64)
    times, offsets = token_times(streams)
    recorded = np.diff(offsets)
    if not candidates.any():
        return Resampled(streams, recorded, skewed)
    lengths = recorded.copy()
    kinds = streams.column("kinds").to_pylist()
    basis = streams.column("token_basis").to_pylist()
    commits = streams.column("commit_ns").to_pylist()
    totals = streams.column("output_tokens").to_pylist()
    reasoning = streams.column("reasoning_tokens").to_pylist()
    parts: list[npt.NDArray[np.int64]] = []
    upto = 0
    for row in np.flatnonzero(candidates).tolist():
        own = times[offsets[row] : offsets[row + 1]]
        stated = Stated("completed", 1.0, basis[row], totals[row], reasoning[row])
        if (found := restated(own, kinds[row], commits[row], stated)) is None:
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


def _with_total(streams: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return which streams (R,) bool state a total that may apply to them: see `Stated.may_apply`."""
    outcome, outcomes = dictionary_of(streams.column("outcome"))
    basis, bases = dictionary_of(streams.column("token_basis"))
    coverage = streams.column("coverage").fill_null(0.0).to_numpy(zero_copy_only=False)
    complete = streams.column("complete").to_numpy(zero_copy_only=False)
    stated = streams.column("output_tokens").is_valid().to_numpy(zero_copy_only=False)
    completed = np.array([one == "completed" for one in outcomes])[outcome]
    counted = np.array([one in MOST_TIMES_MORE for one in bases])[basis]
    result: npt.NDArray[np.bool_] = stated & complete & completed & counted & (coverage == 1.0)
    return result
