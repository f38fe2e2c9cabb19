"""The answer of a search: as JSON, as rows, and in words."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal

from otel_llm.shared.formatting import number, share

if TYPE_CHECKING:
    from otel_llm.bench.capacity.capacity_search import CapacityResult, ProbeResult

State = Literal["holds", "fails", "undecided", "not valid"]
"""The state of a probe in tables and charts."""
PROBE_HEADINGS: Final = ("rate", "verdict", "requests", "share", "from", "to", "raw", "needed", "backlog", "seconds")
"""The columns of `probe_rows`; rates in requests/s, the growth of the backlog as a share of the rate."""


def as_json(result: CapacityResult) -> dict[str, Any]:
    """Return the object of `--format json`."""
    lowest = next((one for one in reversed(result.probes) if one.rate == result.low and one.verdict == "holds"), None)
    return {
        "capacity_low": result.low,
        "capacity_high": result.high,
        "decided": result.decided,
        "why": result.why,
        "objective": result.plan.objective.text,
        "confidence": result.plan.confidence,
        "probes": [_probe_json(one) for one in result.probes],
        "tokens_per_s_at_low": None if lowest is None else lowest.end.tokens_per_s,
    }


def _probe_json(probe: ProbeResult) -> dict[str, Any]:
    found = probe.finding
    return {
        "rate": probe.rate,
        "requests": probe.end.requests,
        "errors": dict(sorted(probe.end.errors.items())),
        "valid": probe.end.invalid is None,
        "why": probe.end.invalid,
        "verdict": probe.verdict,
        "clause": None if found is None else found.clause.text,
        "value": None if found is None else found.value,
        "low": None if found is None else found.interval.low,
        "high": None if found is None else found.interval.high,
        "raw": None if found is None else found.raw,
        "independent_requests": None if found is None else found.independent,
        "unsaid": None if found is None else found.unsaid,
        "backlog_slope": probe.slope,
        "seconds": probe.end.seconds,
    }


def probe_rows(result: CapacityResult) -> list[tuple[str, ...]]:
    """Return the probes as text, in order, under `PROBE_HEADINGS`."""
    return [_row(probe) for probe in result.probes]


def state(probe: ProbeResult) -> State:
    """Return the verdict of a probe, `not valid` if the client decided its result."""
    return probe.verdict if probe.end.invalid is None else "not valid"


def _row(probe: ProbeResult) -> tuple[str, ...]:
    found = probe.finding
    shares = ("-", "-", "-", "-", "-")
    if found is not None:
        low, high = found.interval
        shares = (share(found.value), share(low), share(high), share(found.raw), share(float(found.clause.target)))
    growth = "-" if probe.slope is None else ("grows " if probe.backlog_grows else "") + share(probe.slope)
    return (
        number(probe.rate),
        state(probe),
        number(probe.end.requests),
        *shares,
        growth,
        number(round(probe.end.seconds, 1)),
    )


def failures(result: CapacityResult) -> str | None:
    """Return how many requests of all probes failed, and how, in a sentence; None if none did."""
    kinds: Counter[str] = Counter()
    for probe in result.probes:
        kinds.update(probe.end.errors)
    if not kinds:
        return None
    sent = sum(probe.end.requests for probe in result.probes)
    counts = ", ".join(f"{kind} {number(count)}" for kind, count in sorted(kinds.items()))
    return f"{number(kinds.total())} of {number(sent)} requests failed: {counts}"


def answer(result: CapacityResult) -> str:
    """Return the answer in a sentence."""
    plan = result.plan
    low, high = result.low, result.high
    sure = f"with {share(plan.confidence)} confidence"
    if low is not None and high is not None:
        sentence = f"the capacity is between {number(low)} and {number(high)} requests/s, {sure}"
    elif low is not None:
        sentence = f"the capacity is at least {number(low)} requests/s, {sure}; no rate was found to fail"
    elif high is not None:
        sentence = f"the capacity is below {number(high)} requests/s, {sure}; no rate was found to hold"
    else:
        sentence = "the search has found nothing: no rate holds, none fails"
    return sentence if result.why is None else f"{sentence}. Not decided: {result.why}"
