"""Levels of a load as the audit sees them: recorded streams in, and what the figures need of the judged requests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from otel_llm.audit.input.stream_batch import STREAMS
from otel_llm.audit.kernel.judge_batch import judge_batch
from otel_llm.rules.files.slo_file import load_slo

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from load_requests import Request

SLO: Final = load_slo(Path(__file__).parent / "slo.yaml")
READER: Final = SLO.judging("reader")
BY_TBT: Final = SLO.judging("tbt")
PACE_NS: Final = SLO.get("reader").pace_ns
ALPHA: Final = 2.5
"""That of the class; the others come from the same sums."""
DIGITS: Final = 6


class Level(NamedTuple):
    """One run at one level of load: a row of `levels.csv`.

    Rates are over the run's time, from the first commit to the last end.
    `load`: requests/s that arrive; `throughput`: tokens/s; `idle_rate`: seconds of user idle latency (of all readers)
    in a second; `smooth_goodput`: tokens/s, of the judged benefits at alpha 2.5. `ttft_s`, `tpot_s` and `idle_s` are
    means over requests; `tbt_s` is the median of their median TBT, `tail_tbt_s` of their 99th percentile.
    """

    engine: str
    load: float
    seed: int
    requests: int
    span_s: float
    throughput: float
    idle_rate: float
    smooth_goodput: float
    ttft_s: float
    tpot_s: float
    tbt_s: float
    tail_tbt_s: float
    idle_s: float
    attainment: float

    def smooth_goodput_at(self, alpha: float) -> float:
        """Return equation 11 at another alpha; the penalty is linear (equation 10 with f(l) = l)."""
        return self.throughput - alpha * self.idle_rate


def recorded(requests: Sequence[Request], tokens_ns: Sequence[Sequence[int]]) -> pa.RecordBatch:
    """Return a run of the model as recorded streams, as an instrumented client would have recorded them."""
    count = len(requests)
    known: dict[str, list[object]] = {
        "trace_id": [(number + 1).to_bytes(16, "big") for number in range(count)],
        "span_id": [(number + 1).to_bytes(8, "big") for number in range(count)],
        "choice": [0] * count,
        "model": ["step-model"] * count,
        "measured_at": ["client"] * count,
        "outcome": ["completed"] * count,
        "token_basis": ["exact"] * count,
        "commit_ns": [one.at_ns for one in requests],
        "end_ns": [times[-1] for times in tokens_ns],
        "coverage": [1.0] * count,
        "complete": [True] * count,
        "known_tokens": [one.output for one in requests],
        "known_until_ns": [times[-1] for times in tokens_ns],
        "input_tokens": [one.prompt for one in requests],
        "exact_resume": [False] * count,
        "foreign": [False] * count,
        "times_ns": list(tokens_ns),
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(known[one.name], one.type) if one.name in known else pa.nulls(count, one.type) for one in STREAMS],
        schema=STREAMS,
    )


def judged(streams: pa.RecordBatch) -> pa.RecordBatch:
    """Judge streams with the audit's kernel, by the reader's class."""
    return judge_batch(streams, READER)


def level(streams: pa.RecordBatch, engine: str, load: float, seed: int) -> Level:
    """Judge the streams of one run, and add up."""
    rows = judged(streams)

    def column(name: str) -> npt.NDArray[np.float64]:
        return np.asarray(rows.column(name).drop_null().to_numpy(zero_copy_only=False), np.float64)

    begin_ns = min(rows.column("start_unix_nano").to_pylist())
    span_s = (max(rows.column("end_unix_nano").to_pylist()) - begin_ns) / 1e9
    figures = (
        span_s,
        float(column("tokens_read").sum()) / span_s,
        float(column("idle_s").sum()) / span_s,
        float(column("benefit").sum()) / span_s,
        float(column("ttft_s").mean()),
        float(column("tpot_s").mean()),
        float(np.quantile(column("tbt_p50_s"), 0.5, method="inverted_cdf")),
        float(np.quantile(column("tbt_p99_s"), 0.5, method="inverted_cdf")),
        float(column("idle_s").mean()),
        float(column("met").mean()),
    )
    return Level(engine, load, seed, len(streams), *(round(one, DIGITS) for one in figures))


def optimum(levels: Sequence[Level], alpha: float) -> tuple[float, float]:
    """Return the load with the most smooth goodput at `alpha`, and how much; of several runs of a load the mean.

    Of equal ones the lowest load.
    """
    loads = sorted({one.load for one in levels})
    return max(((load, mean_at(levels, load, alpha)) for load in loads), key=lambda pair: (pair[1], -pair[0]))


def mean_at(levels: Sequence[Level], load: float, alpha: float) -> float:
    """Return the smooth goodput of a load, tokens/s: the mean of its runs."""
    mine = [one.smooth_goodput_at(alpha) for one in levels if one.load == load]
    return sum(mine) / len(mine)


def held_back(streams: pa.RecordBatch, pace_ns: int = PACE_NS) -> pa.RecordBatch:
    """Return the same streams with the output delay trick: a token leaves a buffer `pace_ns` after the one before.

    The first is not held; a token that comes later than that leaves at once (Wang et al., section 3.2 and 5.3).
    """
    released: list[list[int]] = []
    for times_ns in streams.column("times_ns").to_pylist():
        mine: list[int] = []
        for at_ns in times_ns:
            mine.append(max(at_ns, mine[-1] + pace_ns) if mine else at_ns)
        released.append(mine)
    lasts = [mine[-1] for mine in released]
    changed = {"times_ns": released, "end_ns": lasts, "known_until_ns": lasts}
    return pa.RecordBatch.from_arrays(
        [pa.array(changed[one.name], one.type) if one.name in changed else streams.column(one.name) for one in STREAMS],
        schema=STREAMS,
    )


def attainment_by_tbt(streams: pa.RecordBatch) -> float:
    """Return the share of requests whose first token came within 1 s and each further one within 200 ms."""
    met = judge_batch(streams, BY_TBT).column("met").drop_null().to_pylist()
    return round(float(sum(met)) / len(met), DIGITS)


def gaps_ms(streams: pa.RecordBatch) -> npt.NDArray[np.float64]:
    """Return all times between two tokens of a reply, in ms, sorted."""
    gaps = [np.diff(np.array(times_ns, np.int64)) for times_ns in streams.column("times_ns").to_pylist()]
    return np.sort(np.concatenate(gaps).astype(np.float64)) / 1e6


def keep(streams: Sequence[pa.RecordBatch], file: Path) -> None:
    """Write recorded streams as Parquet; sorted times are small as differences."""
    pq.write_table(
        pa.Table.from_batches(streams, STREAMS),
        file,
        compression="zstd",
        use_dictionary=False,
        column_encoding={"times_ns.list.element": "DELTA_BINARY_PACKED"},
    )


def kept(file: Path) -> pa.RecordBatch:
    """Read what `keep` wrote."""
    (streams,) = pq.read_table(file, schema=STREAMS).combine_chunks().to_batches()
    return streams
