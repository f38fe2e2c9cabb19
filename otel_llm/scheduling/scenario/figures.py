"""The figures of a run: verdicts by the arithmetic of the audit, rates, percentiles and cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_llm.shared.formatting import number, seconds, share
from otel_llm.slo.batch.many import judge_many
from otel_llm.slo.batch.recorded import Recorded
from otel_llm.slo.classes import OUTCOMES
from otel_llm.slo.quantiles import P50, P99, rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from otel_llm.scheduling.simulator.engine import SimulatedRun
    from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest
    from otel_llm.scheduling.workload.workload import Workload

    Ints = NDArray[np.int64]

BLOCK_TOKENS = 1_000_000
"""Token times are expanded for so many at once: 8 MB."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The figures of a run, of the requests that arrived after the warm-up; None if one has no value.

    `attainment` is the share that met its promise, dropped ones included; rates are over the time from the first to
    the last arrival, percentiles nearest rank: TTFT over requests, TBT over all gaps between tokens. `e2e_mean_s` is
    the mean time from the arrival to the last token, `g_per_s` the requests that met over the sum of these times, in
    1/s (arXiv 2504.14966, equation 2). `preemptions` and `instance_seconds` are of the whole run, which ends at
    `simulated_s`.
    """

    requests: int
    dropped: int
    infeasible: int
    attainment: float | None
    attainment_by_tier: dict[str, float | None]
    goodput_req_s: float | None
    throughput_req_s: float | None
    tokens_s: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tbt_p99_s: float | None
    e2e_mean_s: float | None
    g_per_s: float | None
    smooth_goodput_tok_s: float | None
    instance_seconds: float
    preemptions: int
    simulated_s: float


def figures_of(run: SimulatedRun, workload: Workload, block_tokens: int = BLOCK_TOKENS) -> RunFigures:
    """Judge a finished run of a workload, in blocks of `block_tokens`."""
    judged = judged_requests(run, workload)
    met = np.zeros(len(judged), np.bool_)
    benefits: list[float] = []
    classes = [one.slo for one in workload.classes]
    at = 0
    for block in blocks_of(judged, block_tokens):
        verdicts = judge_many(_recorded(run, block), classes, np.array([one.tier for one in block], np.int64))
        met[at : at + len(block)] = verdicts.met & verdicts.met_known
        benefits += verdicts.benefit[verdicts.judged].tolist()
        at += len(block)
    span_s = (judged[-1].arrival_ns - judged[0].arrival_ns) / 1e9 if judged else 0.0
    served = [one for one in judged if not one.dropped]
    ttft = np.sort(np.array([_first_token(run, one) - one.arrival_ns for one in served], np.int64))
    e2e_ns = sum(one.end_ns - one.arrival_ns for one in served if one.end_ns is not None)
    tiers = np.array([workload.classes[one.tier].tier for one in judged], object)
    return RunFigures(
        requests=len(judged),
        dropped=len(judged) - len(served),
        infeasible=int(workload.infeasible[workload.arrivals_ns >= workload.warmup_ns].sum()),
        attainment=_share(met),
        attainment_by_tier={
            name: _share(met[tiers == name]) for name in dict.fromkeys(one.tier for one in workload.classes)
        },
        goodput_req_s=_rate(int(met.sum()), span_s),
        throughput_req_s=_rate(len(served), span_s),
        tokens_s=_rate(sum(one.output for one in served), span_s),
        ttft_p50_s=_percentile(ttft, P50),
        ttft_p99_s=_percentile(ttft, P99),
        tbt_p99_s=_gap_percentile(run, judged, P99),
        e2e_mean_s=e2e_ns / len(served) / 1e9 if served else None,
        g_per_s=_rate(int(met.sum()), e2e_ns / 1e9),
        smooth_goodput_tok_s=_rate(math.fsum(benefits), span_s),
        instance_seconds=run.instance_ns / 1e9,
        preemptions=sum(one.preemptions for one in run.instances),
        simulated_s=run.end_ns / 1e9,
    )


def judged_requests(run: SimulatedRun, workload: Workload) -> list[SimulatedRequest]:
    """Return the requests that arrived after the warm-up, by number."""
    return [one for one in run.requests if one.arrival_ns >= workload.warmup_ns]


def blocks_of(requests: Sequence[SimulatedRequest], tokens: int) -> Iterator[Sequence[SimulatedRequest]]:
    """Yield the requests in blocks of about so many output tokens."""
    begin = held = 0
    for index, request in enumerate(requests):
        held += request.output
        if held >= tokens:
            yield requests[begin : index + 1]
            begin, held = index + 1, 0
    if begin < len(requests):
        yield requests[begin:]


def _recorded(run: SimulatedRun, requests: Sequence[SimulatedRequest]) -> Recorded:
    times = [run.token_times(one) for one in requests]
    return Recorded(
        tokens_ns=np.concatenate(times),
        offsets=np.concatenate([[0], np.cumsum([len(one) for one in times], dtype=np.int64)]),
        commit_ns=np.array([one.arrival_ns for one in requests], np.int64),
        end_ns=np.array([one.end_ns for one in requests], np.int64),
        outcomes=np.array([OUTCOMES.index("error" if one.dropped else "completed") for one in requests], np.uint8),
    )


def _first_token(run: SimulatedRun, request: SimulatedRequest) -> int:
    first = request.runs[0]
    return run.instances[first.instance].ends[first.first]


def _gap_percentile(run: SimulatedRun, requests: Sequence[SimulatedRequest], share: tuple[int, int]) -> float | None:
    """Return a percentile of all gaps between tokens in seconds: an iteration is a gap of each decode in it."""
    decodes = [np.zeros(len(one.ends) + 1, np.int64) for one in run.instances]
    between: list[int] = []
    for request in requests:
        last_ns = None
        for part in request.runs:
            ends = run.instances[part.instance].ends
            if last_ns is not None:
                between.append(ends[part.first] - last_ns)
            last_ns = ends[part.first + part.tokens - 1]
            decodes[part.instance][part.first + 1] += 1
            decodes[part.instance][part.first + part.tokens] -= 1
    gaps = [np.array(between, np.int64)]
    weights = [np.ones(len(between), np.int64)]
    for instance, changes in zip(run.instances, decodes, strict=True):
        times = np.array(instance.ends, np.int64)
        gaps.append(times[1:] - times[:-1])
        weights.append(np.cumsum(changes)[1:-1])
    every, counts = np.concatenate(gaps), np.concatenate(weights)
    total = int(counts.sum())
    if not total:
        return None
    order = np.argsort(every)
    place = np.searchsorted(np.cumsum(counts[order]), rank(total, share), side="right")
    return int(every[order[place]]) / 1e9


def _share(met: NDArray[np.bool_]) -> float | None:
    return int(met.sum()) / len(met) if len(met) else None


def _rate(amount: float, span_s: float) -> float | None:
    return amount / span_s if span_s else None


def _percentile(ordered: Ints, share: tuple[int, int]) -> float | None:
    return int(ordered[rank(len(ordered), share)]) / 1e9 if len(ordered) else None


class Column(NamedTuple):
    """A figure of a run in the terminal and on the page: its headings, and its text."""

    heading: str
    page_heading: str
    text: Callable[[Mapping[str, Any]], str]


COLUMNS: Final = (
    Column("requests", "Requests", lambda row: number(row["requests"])),
    Column("attained", "Met", lambda row: share(row["attainment"])),
    Column("goodput\nreq/s", "Goodput, req/s", lambda row: number(row["goodput_req_s"])),
    Column("output\ntok/s", "Output, tok/s", lambda row: number(row["tokens_s"])),
    Column("TTFT\np50", "TTFT p50", lambda row: seconds(row["ttft_p50_s"])),
    Column("TTFT\np99", "TTFT p99", lambda row: seconds(row["ttft_p99_s"])),
    Column("TBT\np99", "TBT p99", lambda row: seconds(row["tbt_p99_s"])),
    Column("dropped", "Dropped", lambda row: number(row["dropped"])),
    Column("pre-\nempted", "Preempted", lambda row: number(row["preemptions"])),
    Column("instance\nhours", "Instance hours", lambda row: number(row["instance_seconds"] / 3600)),
)
"""The figures of a run that the terminal and the page show, in their order."""
