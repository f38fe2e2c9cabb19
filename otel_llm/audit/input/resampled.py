"""Streams with the tokens by which they are judged: resampled to the total that a reply states."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from otel_llm.audit.input.stream_batch import (
    BATCH_TOKENS,
    STREAMS,
    expanded,
    lists,
    replaced,
    slices,
    token_numbers,
    token_times,
)
from otel_llm.semconv import MAX_STREAM_TOKENS
from otel_llm.slo.stated_total import RESAMPLED, Stated, restated

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

    They come in their order, as slices of about `most_tokens` tokens: a few recorded events may state many. Those of
    complete streams have an entry each; the others are not judged, and keep their events.
    """
    stated = _stated(streams)
    recorded = token_numbers(streams)
    totals = np.array(
        [0 if one is None else min(one.output_tokens or 0, MAX_STREAM_TOKENS) for one in stated], np.int64
    )
    several = recorded > np.diff(token_times(streams)[1])
    more = np.where(streams.column("complete").to_numpy(zero_copy_only=False) & several, recorded, 0)
    first = 0
    for part in slices(streams, np.maximum(more, totals), most_tokens):
        last = first + len(part)
        yield _resampled(_judgeable(part), stated[first:last], recorded[first:last])
        first = last


def _judgeable(streams: pa.RecordBatch) -> pa.RecordBatch:
    """Return streams with an entry for each token of complete ones."""
    if streams.column("counts").null_count == len(streams):
        return streams
    complete = streams.column("complete")
    if complete.true_count == len(streams):
        return expanded(streams)
    some, others = expanded(streams.filter(complete)), streams.filter(pc.invert(complete))
    whole = complete.to_numpy(zero_copy_only=False)
    places = np.where(whole, np.cumsum(whole) - 1, len(some) + np.cumsum(~whole) - 1)
    return pa.concat_batches([some, others]).take(pa.array(places))


def _resampled(streams: pa.RecordBatch, stated: Sequence[Stated | None], recorded: npt.NDArray[np.int64]) -> Resampled:
    skewed = np.zeros(len(streams), np.int64)
    times, offsets = token_times(streams)
    if not any(stated):
        return Resampled(streams, recorded, skewed)
    lengths = np.diff(offsets)
    kinds = streams.column("kinds").to_pylist()
    basis = streams.column("token_basis").to_pylist()
    commits = streams.column("commit_ns").to_pylist()
    parts: list[npt.NDArray[np.int64]] = []
    upto = 0
    for row, one in enumerate(stated):
        own = times[offsets[row] : offsets[row + 1]]
        if one is None or (found := restated(own, kinds[row], None, commits[row], one)) is None:
            continue
        tokens_ns, kinds[row] = found.expanded()
        parts += [times[upto : offsets[row]], tokens_ns]
        upto = offsets[row + 1]
        lengths[row], basis[row] = len(tokens_ns), RESAMPLED
        skewed[row] = int((own < commits[row]).sum())
    if not parts:
        return Resampled(streams, recorded, skewed)
    every = np.concatenate([*parts, times[upto:]])
    columns = {
        "times_ns": lists(every, np.concatenate(([0], np.cumsum(lengths)))),
        "kinds": pa.array(kinds, STREAMS.field("kinds").type),
        "token_basis": pa.array(basis, STREAMS.field("token_basis").type),
    }
    return Resampled(replaced(streams, columns), recorded, skewed)


def _stated(streams: pa.RecordBatch) -> list[Stated | None]:
    """Return what each complete stream states of its tokens (R,), None if the recorded ones stand."""
    names = ("outcome", "coverage", "token_basis", "output_tokens", "reasoning_tokens")
    facts = zip(*(streams.column(name).to_pylist() for name in names), strict=True)
    complete = streams.column("complete").to_pylist()
    return [
        stated if whole and (stated := Stated(*one)).may_apply else None
        for whole, one in zip(complete, facts, strict=True)
    ]
