"""A tool's own figures beside those of the audit of its recording, and beside our reading of it by the tool's rules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from support.bench_tools.paced import REQUESTS
from support.bench_tools.tools import NS, POINTS, Ran
from support.formats.bench_read import judged, read
from support.slo.stated_total import judged_tokens

from otel_llm.audit import load
from otel_llm.formats.assemble.resolved import Assembled

LATENCIES = ("ttft", "itl", "tpot", "e2e")
RATES = ("req", "tok")
SKETCHED = 0.01
"""How far a percentile of ITL may be from the exact one."""


def point_of(values: Sequence[float], point: str, method: str = "linear") -> float:
    """Return the mean or a percentile, interpolated as the tools do."""
    if point == "mean":
        return float(np.mean(values))
    return float(np.percentile(values, float(point[1:]), method=method))  # type: ignore[call-overload]


def by_rules_of(run: Ran, streams: Sequence[Assembled]) -> dict[str, list[float]]:
    """Return the latencies of the requests that were read, s, as the tool counts them; none that it does not record."""
    found: dict[str, list[float]] = {latency: [] for latency in LATENCIES}
    sends_ns = run.sends_ns or [commit_of(one) for one in streams]
    for one, send_ns in zip(streams, sends_ns, strict=True):
        times_ns = one.events.expanded()[0]
        if times_ns:
            first_s = (times_ns[0] - send_ns) / NS
            tokens = one.resolved.output_tokens or len(times_ns)
            found["itl"] += gaps_of(run, one)
            found["tpot"].append((times_ns[-1] - times_ns[0]) / NS / (tokens - 1))
        else:
            foreign = one.resolved.foreign
            assert foreign is not None
            assert foreign.ttft_s is not None
            first_s = foreign.ttft_s - (send_ns - commit_of(one)) / NS
        found["ttft"].append(first_s)
        found["e2e"].append((end_of(run, one) - send_ns) / NS)
    return {latency: values for latency, values in found.items() if values and latency not in run.longer}


def gaps_of(run: Ran, one: Assembled) -> list[float]:
    """Return what the tool counts as gaps of a reply, s."""
    chunks_ns, counts = one.events.times_ns, one.events.counts or [1] * len(one.events.times_ns)
    if run.gaps == "tokens":
        return between(one.events.expanded()[0])
    if run.gaps == "chunks":
        return between(chunks_ns)
    return [gap / count for gap, count in zip(between(chunks_ns), counts[1:], strict=True) for _ in range(count)]


def between(times_ns: Sequence[int]) -> list[float]:
    """Return the gaps between times, s."""
    return [(after - before) / NS for before, after in pairwise(times_ns)]


def judged_gaps(streams: Sequence[Assembled]) -> list[float]:
    """Return the gaps between the tokens by which the audit judges, s."""
    found: list[float] = []
    for one in streams:
        recorded, kinds = one.events.expanded()
        anew = judged_tokens(recorded, kinds, commit_of(one), one.resolved.stated)
        found += between(recorded if anew is None else anew[0])
    return found


def commit_of(one: Assembled) -> int:
    """Return when a request was made, ns."""
    assert one.resolved.commit_ns is not None
    return one.resolved.commit_ns


def end_of(run: Ran, one: Assembled) -> int:
    """Return when a request ended to the tool, ns."""
    assert one.resolved.end_ns is not None
    return one.events.times_ns[-1] if run.ends_with_token else one.resolved.end_ns


def audited(run: Ran) -> dict[str, float | None]:
    """Return the figures that `otel-llm audit` prints of the tool's recording, by the names of `Ran.stated`."""
    ((figures,),) = ([*places.values()] for places in load(run.recording).summary()["classes"].values())
    latencies = {f"{name}_{point}": figures[f"{name}_{point}_s"] for name in LATENCIES for point in POINTS}
    return {**latencies, "req": figures["throughput_req_s"], "tok": figures["throughput_tok_s"]}


@dataclass(frozen=True)
class Compared:
    """The figures of one run, by the names of `Ran.stated`: the audit's, and our reading by the tool's rules."""

    run: Ran
    ours: Mapping[str, float | None]
    by_its_rules: Mapping[str, float]


def check(run: Ran) -> Compared:
    """Compare our reading by the tool's rules with the tool's figures, and the audit's figures with both; return them.

    A latency of the audit differs from the tool's by what their definitions differ for a request: the client's wait
    before the sending, the end of the reply. So its percentiles are no farther apart than that of any request.
    """
    streams, skipped = read(run.recording.read_bytes(), run.recording)
    assert not skipped.counts
    assert [one.resolved.outcome for one in streams] == ["completed"] * REQUESTS
    rows, own, ours = judged(streams), by_rules_of(run, streams), audited(run)
    latencies = check_latencies(run, own)
    for name in ("ttft", "tpot", "e2e"):
        if name not in own:
            continue
        apart = [row[f"{name}_s"] - mine for row, mine in zip(rows, own[name], strict=True)]
        for point in POINTS:
            theirs, printed = run.stated[f"{name}_{point}"], ours[f"{name}_{point}"]
            assert printed is not None
            least, most = (np.mean(apart),) * 2 if point == "mean" else (min(apart), max(apart))
            assert theirs + least - run.apart_s <= printed <= theirs + most + run.apart_s, (name, point)
    if gaps := judged_gaps(streams):
        if all(len(one.events.times_ns) == row["tokens"] for one, row in zip(streams, rows, strict=True)):
            assert ours["itl_mean"] == pytest.approx(run.stated["itl_mean"], rel=1e-7)
        assert ours["itl_mean"] == pytest.approx(np.mean(gaps), rel=1e-7)
        for point in POINTS[1:]:
            least, most = (point_of(gaps, point, method) for method in ("lower", "higher"))
            printed = ours[f"itl_{point}"]
            assert printed is not None
            assert least * (1 - SKETCHED) <= printed <= most * (1 + SKETCHED), point
    for name in run.longer:
        assert all((ours[f"{name}_{point}"] or math.inf) <= run.stated[f"{name}_{point}"] for point in POINTS), name
    return Compared(run, ours, latencies | check_rates(run, streams, rows, ours))


def check_latencies(run: Ran, own: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Compare latencies that we read and count by the tool's rules with those that it states; return their points."""
    found = {f"{name}_{point}": point_of(values, point) for name, values in own.items() for point in POINTS}
    for name, value in found.items():
        assert value == pytest.approx(run.stated[name], rel=1e-7, abs=run.apart_s), name
    return found


def check_rates(
    run: Ran, streams: Sequence[Assembled], rows: Sequence[Mapping[str, Any]], ours: Mapping[str, float | None]
) -> dict[str, float]:
    """Compare rates: by the time that the tool divides by, and the audit's from the first commit to the last end.

    Returns those by the tool's time.
    """
    ends_ns = [one.resolved.end_ns or 0 for one in streams]
    commits_ns = [commit_of(one) for one in streams]
    seconds = run.seconds or (max(end_of(run, one) for one in streams) - min(run.sends_ns or commits_ns)) / NS
    span_s = (max(ends_ns) - min(commits_ns)) / NS
    totals: dict[str, int | None] = {"req": len(streams), "tok": sum(row["tokens"] or 0 for row in rows) or None}
    found = {name: total / seconds for name, total in totals.items() if total is not None}
    for name, rate in found.items():
        assert rate == pytest.approx(run.stated[name], rel=1e-6)
    unanchored = without_starts(streams)
    for name, total in totals.items():
        assert ours[name] == (None if total is None or unanchored else pytest.approx(total / span_s, rel=1e-9))
    return found


def without_starts(streams: Sequence[Assembled]) -> bool:
    """Return whether no request says when it was sent: all begin at 0."""
    return {commit_of(one) for one in streams} == {0}
