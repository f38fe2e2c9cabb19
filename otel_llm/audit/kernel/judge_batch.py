"""The audit's kernel: judge a batch of recorded streams, each by its class.

A pure function of columns. It runs on all cores of a laptop or all executors of a cluster, with results equal to the
bit.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from otel_llm.audit.input.resampled import Resampled, resampled
from otel_llm.audit.input.stream_batch import dictionary_of, from_batch, token_times
from otel_llm.audit.tables import arrow_type
from otel_llm.formats.rows import unjudged_row
from otel_llm.slo.batch.gap_counts import GapCounting
from otel_llm.slo.batch.judged import Masked
from otel_llm.slo.batch.many import judge_many
from otel_llm.slo.batch.recorded import Recorded
from otel_llm.slo.classes import OUTCOMES
from otel_llm.slo.fluid.fluid_search import FluidTargets
from otel_llm.slo.metrics import COMPUTED, REQUESTS, STATED

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from otel_llm.slo.batch.gap_counts import GapCounts
    from otel_llm.slo.classes import SloClasses

JUDGED: Final = pa.schema(
    [
        *(pa.field(name, arrow_type(kind)) for name, kind in REQUESTS.items()),
        pa.field("fluid_tbt_ns", pa.int64()),
        pa.field("gap_buckets", pa.list_(pa.int16())),
        pa.field("gap_counts", pa.list_(pa.int32())),
        pa.field("idle_ns", pa.int64()),
        pa.field("end_unix_nano", pa.int64()),
        pa.field("skewed", pa.int64(), nullable=False),
        pa.field("unknown_class", pa.bool_(), nullable=False),
    ]
)
"""The columns of a judged request: those of `--requests` and seven more.

`fluid_tbt_ns`: the smallest TBT target at which it is fluid (Etalon, section 5.1), null if it has none;
`gap_buckets`, `gap_counts`: its gaps between tokens by range (`slo.batch.gap_counts`), null if they are not known;
`idle_ns`: `idle_s` in ns, exactly; `end_unix_nano`: its end or its last token, whichever is later, null if neither
is known; `skewed`: tokens recorded before the commit; `unknown_class`: it names a class that is not in the file.
"""


def judge_batch(streams: pa.RecordBatch, classes: SloClasses) -> pa.RecordBatch:
    """Return the judged requests (R rows) of a batch of STREAMS (R rows), in the same order.

    Raises:
        ValueError: an unknown outcome or kind of token, or a stream without an outcome or an id.
    """
    if streams.column("outcome").null_count:
        raise ValueError("a stream has no outcome")
    return pa.concat_batches([_judge(part, classes) for part in resampled(streams)])


def _judge(part: Resampled, classes: SloClasses) -> pa.RecordBatch:
    streams, tokens_recorded, skewed = part
    slos, index, unknown = _classes_of(streams, classes)
    complete = streams.column("complete").to_numpy(zero_copy_only=False)
    cells: dict[str, pa.Array] = {
        "tokens_recorded": pa.array(tokens_recorded, mask=_without_times(streams)),
        "trace_id": _hex(streams.column("trace_id")),
        "span_id": _hex(streams.column("span_id")),
        "slo_class": pa.array([slos[one].name for one in index.tolist()], pa.string()),
        "start_unix_nano": streams.column("commit_ns"),
        "unknown_class": pa.array(unknown),
    }
    for name in STATED:
        cells[name] = streams.column(name)
    requests = recorded(streams, complete)
    fluid, gaps = FluidTargets(len(requests)), GapCounting(len(requests))
    judged = judge_many(requests, slos, index[complete], fluid, gaps=gaps)
    at = np.flatnonzero(complete)
    spread = {name: _spread(judged.column(name), at, len(streams)) for name in COMPUTED}
    spread["fluid_tbt_ns"] = _spread(fluid.masked(), at, len(streams))
    spread["idle_ns"] = _spread(Masked(judged.idle_ns, judged.column("idle_s").known), at, len(streams))
    spread["skewed"] = _spread(Masked(judged.skewed + skewed[at], np.ones(len(at), np.bool_)), at, len(streams))
    _unjudged(streams, np.flatnonzero(~complete), slos, index, spread)
    for name, (values, known) in spread.items():
        cells[name] = pa.array(values, JUDGED.field(name).type, mask=~known)
    cells["skewed"] = pa.array(spread["skewed"].values, pa.int64())
    cells["end_unix_nano"] = _ends(streams)
    cells |= _gap_lists(gaps.counts(), complete)
    return pa.RecordBatch.from_arrays([cells[name] for name in JUDGED.names], schema=JUDGED)


def _gap_lists(gaps: GapCounts, complete: npt.NDArray[np.bool_]) -> dict[str, pa.Array]:
    """Return the counted gaps of the complete streams as columns of all (R,), null elsewhere."""
    lengths = np.zeros(len(complete), np.int64)
    lengths[complete] = np.diff(gaps.offsets)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    mask = pa.array(~complete)
    return {
        "gap_buckets": pa.ListArray.from_arrays(offsets, pa.array(gaps.buckets, pa.int16()), mask=mask),
        "gap_counts": pa.ListArray.from_arrays(offsets, pa.array(gaps.counts, pa.int32()), mask=mask),
    }


def _without_times(streams: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return which streams (R,) bool are foreign spans without token times."""
    foreign: npt.NDArray[np.bool_] = streams.column("foreign").to_numpy(zero_copy_only=False)
    foreign &= np.diff(token_times(streams)[1]) == 0
    return foreign


def recorded(streams: pa.RecordBatch, which: npt.NDArray[np.bool_]) -> Recorded:
    """Return the streams `which` (R,) bool of a batch as arrays for `slo.batch`."""
    chosen = streams if which.all() else streams.filter(pa.array(which))
    commit = chosen.column("commit_ns").fill_null(0).to_numpy(zero_copy_only=False)
    ends = chosen.column("end_ns")
    end = np.where(ends.is_valid().to_numpy(zero_copy_only=False), ends.fill_null(0).to_numpy(), commit)
    times, offsets = token_times(chosen)
    kinds = None
    if chosen.column("kinds").null_count < len(chosen):
        kinds = np.zeros(len(times), np.uint8)
        for row, codes in enumerate(chosen.column("kinds").to_pylist()):
            if codes is not None:
                kinds[offsets[row] : offsets[row + 1]] = np.frombuffer(codes, np.uint8)
    prompts = chosen.column("input_tokens")
    outcome, outcomes = dictionary_of(chosen.column("outcome"))
    return Recorded(
        tokens_ns=times,
        offsets=offsets,
        commit_ns=commit,
        end_ns=end,
        outcomes=np.array([OUTCOMES.index(one) for one in outcomes[:-1]], np.uint8)[outcome],
        kinds=kinds,
        input_tokens=Masked(prompts.fill_null(0).to_numpy(), prompts.is_valid().to_numpy(zero_copy_only=False)),
    )


def _classes_of(
    streams: pa.RecordBatch, classes: SloClasses
) -> tuple[Sequence[Any], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the classes, each stream's index among them (R,), and whether it names an unknown one (R,) bool."""
    indexes = {name: index for index, name in enumerate(classes.names)}
    declared, names = dictionary_of(streams.column("declared_class"))
    attributes_at, attribute_sets = dictionary_of(streams.column("attributes"))
    pairs, each = np.unique(declared * len(attribute_sets) + attributes_at, return_inverse=True)
    class_index = np.zeros(len(pairs), np.int64)
    unknown = np.zeros(len(pairs), np.bool_)
    for at, (name, chosen) in enumerate(divmod(pair, len(attribute_sets)) for pair in pairs.tolist()):
        attributes = attribute_sets[chosen]
        slo, unknown[at] = classes.choose(names[name], {} if attributes is None else json.loads(attributes))
        class_index[at] = indexes[slo.name]
    return classes.classes, class_index[each], unknown[each]


def _hex(ids: pa.Array) -> pa.Array:
    """Return a column of bytes as hexadecimal text; raises ValueError if one is null."""
    ids = ids.cast(pa.binary())  # 32-bit offsets for every batch
    if ids.null_count:
        raise ValueError("a stream has no id")
    _, offsets, data = ids.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(ids) + 1, ids.offset * 4) if len(ids) else np.zeros(1, np.int32)
    first, last = int(bounds[0]), int(bounds[-1])
    text = b"" if data is None else data[first:last].to_pybytes().hex().encode()
    if len(text) >= 2**31:
        raise ValueError(f"a batch of {len(ids)} ids is too large")
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer((bounds - first) * np.int32(2)), pa.py_buffer(text))


def _spread(column: Masked, at: npt.NDArray[np.int64], rows: int) -> Masked:
    """Return a column of the complete streams as one of all (`rows`,), unknown elsewhere."""
    spread = Masked(np.zeros(rows, column.values.dtype), np.zeros(rows, np.bool_))
    spread.values[at] = column.values
    spread.known[at] = column.known
    return spread


def _unjudged(
    streams: pa.RecordBatch,
    which: npt.NDArray[np.int64],
    slos: Sequence[Any],
    index: npt.NDArray[np.int64],
    spread: dict[str, Masked],
) -> None:
    """Write the known columns of streams that cannot be judged, one by one: they are few."""
    if not len(which):
        return
    some = streams.take(pa.array(which))
    for place, stream in zip(which.tolist(), from_batch(some), strict=True):
        slo = slos[index[place]]
        row = unjudged_row(stream.resolved, slo.name, stream.events, slo.reads)
        for name in COMPUTED:
            if row[name] is not None:
                spread[name].values[place] = row[name]
                spread[name].known[place] = True


def _ends(streams: pa.RecordBatch) -> pa.Array:
    times, offsets = token_times(streams)
    ends = streams.column("end_ns")
    last = np.zeros(len(streams), np.int64)
    some = np.flatnonzero(np.diff(offsets))
    last[some] = times[offsets[some + 1] - 1]
    has = np.zeros(len(streams), np.bool_)
    has[some] = True
    stated = ends.is_valid().to_numpy(zero_copy_only=False)
    latest = np.where(stated, ends.fill_null(0).to_numpy(), last)
    latest = np.where(has, np.maximum(latest, last), latest)
    return pa.array(latest, pa.int64(), mask=~(stated | has))
