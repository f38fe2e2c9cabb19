"""Fit a linear profile to the iterations of a recorded engine, with what remains."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_llm import semconv
from otel_llm.scheduling.profiles.profile_file import exact_duration_ns
from otel_llm.scheduling.profiles.recorded_steps import Recorded, Sample, rebuild

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    Floats = npt.NDArray[np.float64]

FEWEST: Final = 50
"""Iterations, of each kind."""
ROUNDS: Final = 25
TERMS: Final = ("base", "per_decode", "per_kv_token", "per_chunk_token", "per_chunk_kv")
EXACT: Final = "exact"
"""The basis of tokens that the engine counted."""
_UNITS: Final = (("ms", 1e6), ("us", 1e3), ("ns", 1.0))


class FitError(ValueError):
    """A recording has too little to fit a profile to; the text says what is missing, and the remedy."""


class Residuals(NamedTuple):
    """|measured / predicted - 1| of some iterations, without `step_overhead`."""

    iterations: int
    median: float
    p90: float
    bias: float
    """The median of measured / predicted - 1, with its sign."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted profile: its durations as the file has them, and how well it fits."""

    model: str
    terms: Mapping[str, str]
    step_overhead: str
    """The mean of what iterations took beyond the formula: pauses, which it does not follow."""
    request_overhead: str
    residuals: Mapping[str, Residuals]
    """Of iterations `decodes only`, `with a chunk`, and `all`."""
    ranges: Mapping[str, tuple[int, int]]
    """The smallest and the largest decodes, KV tokens, chunk and prior that were seen."""
    requests: int
    steps: int
    idle_before: int
    doubtful: int


def read_requests(batches: Iterable[pa.RecordBatch]) -> tuple[dict[str, list[Recorded]], str]:
    """Return the requests of batches of STREAMS by engine, and the model of most.

    Raises:
        FitError: none of them was recorded by an engine's plugin.
    """
    engines: dict[str, list[Recorded]] = defaultdict(list)
    models: Counter[str] = Counter()
    streams = with_steps = 0
    places: Counter[str] = Counter()
    for batch in batches:
        for row in batch.to_pylist():
            streams += 1
            places[row["measured_at"]] += 1
            if row["measured_at"] != "server" or row["commit_ns"] is None:
                continue
            known = row["complete"] and row["token_basis"] == EXACT and not row["choice"]
            attributes = json.loads(row["attributes"] or "{}")
            first_step = attributes.get(semconv.ENGINE_FIRST_STEP)
            with_steps += first_step is not None
            one_each = attributes.get(semconv.ENGINE_STEPS) == len(row["times_ns"])
            if attributes.get(semconv.ENGINE_PREEMPTIONS) or not one_each:  # it was prefilled again, or drafts ran
                first_step = None
            models[row["model"] or "unknown"] += 1
            engines[row["instance"] or ""].append(
                Recorded(
                    commit_ns=row["commit_ns"],
                    end_ns=row["end_ns"] or row["commit_ns"],
                    input_tokens=row["input_tokens"] if known else None,
                    times_ns=row["times_ns"],
                    first_step=first_step if known else None,
                    batch_mean=attributes.get(semconv.ENGINE_BATCH_MEAN),
                    queue_s=row["queue_s"],
                    prefill_s=attributes.get(semconv.GEN_AI_LATENCY_PREFILL),
                )
            )
    if not with_steps:
        where = ", ".join(f"{count:,} at the {place}" for place, count in places.most_common()) or "none"
        raise FitError(
            f"no stream of the recording has the iterations of its engine ({streams:,} streams, measured: {where}): "
            "record them in vLLM with the plugin of otel-llm, and fit to that journal"
        )
    return dict(engines), models.most_common(1)[0][0]


def fit_profile(engines: Mapping[str, Sequence[Recorded]], model: str, max_batched_tokens: int) -> Fit:
    """Fit a profile to the requests of engines of one kind.

    Raises:
        FitError: fewer than FEWEST iterations of known length, of decodes alone or with a chunk.
    """
    rebuilt = [rebuild(requests, max_batched_tokens) for requests in engines.values()]
    samples = [sample for one in rebuilt for sample in one.samples]
    overheads_ns = [bound_ns for one in rebuilt for bound_ns in one.overheads_ns]
    steps, doubtful = sum(one.steps for one in rebuilt), sum(one.doubtful for one in rebuilt)
    idle_before = sum(one.idle_before for one in rebuilt)
    kinds = {
        "decodes only": [one for one in samples if not one.chunk],
        "with a chunk": [one for one in samples if one.chunk],
    }
    for kind, found in kinds.items():
        if len(found) < FEWEST:
            raise FitError(
                f"{len(found):,} iterations {kind} of known length are too few: {FEWEST} are wanted "
                f"({steps:,} iterations; {idle_before:,} may have begun after an idle time, {doubtful:,} have requests "
                "that are incomplete or were not recorded). Record a load with several streams at once, prompts of "
                "several lengths, all requests streamed, without prefix caching"
            )
    values = least_deviations(samples)
    terms = {name: _duration(value) for name, value in zip(TERMS, values, strict=True) if value > 0}
    every = [request for requests in engines.values() for request in requests]
    exact = np.array([float(exact_duration_ns(terms[name])) if name in terms else 0.0 for name in TERMS])
    columns, lengths = _columns(samples)
    return Fit(
        model=model,
        terms=terms,
        step_overhead=_duration(max(0.0, float((lengths - columns @ exact).mean()))),
        request_overhead=_duration(float(median(overheads_ns)) if overheads_ns else 0.0),
        residuals={kind: _residuals(found, exact) for kind, found in {**kinds, "all": samples}.items()},
        ranges={
            name: (min(getattr(one, name) for one in samples), max(getattr(one, name) for one in samples))
            for name in ("decodes", "kv_tokens", "chunk", "prior")
        },
        requests=len(every),
        steps=steps,
        idle_before=idle_before,
        doubtful=doubtful,
    )


def least_deviations(samples: Sequence[Sample], rounds: int = ROUNDS) -> Floats:
    """Return the five coefficients (ns), none below zero, of the least sum of deviations over the predicted length.

    Deviations, and not their squares: a pause of the machine only ever adds to an iteration. Over the predicted and not
    the measured length, so that as many iterations are longer as are shorter. The sum is minimised by weighted least
    squares whose weights are the inverse deviations and predictions of the round before.
    """
    columns, lengths = _columns(samples)
    scale = np.maximum(columns.max(axis=0), 1.0)
    scaled = columns / scale
    predicted = np.full(len(lengths), max(1.0, lengths.mean()))
    weights = np.ones(len(lengths))
    values = np.zeros(len(TERMS))
    for _ in range(rounds):
        factors = weights / predicted
        values = _non_negative(scaled * factors[:, None], lengths * factors)
        predicted = np.maximum(scaled @ values, 1.0)
        weights = 1 / np.sqrt(np.maximum(np.abs(lengths / predicted - 1), 1e-4))
    found: Floats = values / scale
    return found


def _non_negative(columns: Floats, wanted: Floats) -> Floats:
    """Return the least squares with no coefficient below zero: the best of the subsets whose own solution has none."""
    square, right = columns.T @ columns, columns.T @ wanted
    best, lowest = np.zeros(columns.shape[1]), np.inf
    for count in range(1, columns.shape[1] + 1):
        for chosen in combinations(range(columns.shape[1]), count):
            part = list(chosen)
            found, *_ = np.linalg.lstsq(square[np.ix_(part, part)], right[part], rcond=None)
            error = float(found @ square[np.ix_(part, part)] @ found - 2 * found @ right[part])
            if (found >= 0).all() and error < lowest - 1e-12:
                lowest = error
                best = np.zeros(columns.shape[1])
                best[part] = found
    return best


def _columns(samples: Sequence[Sample]) -> tuple[Floats, Floats]:
    rows = [(1, one.decodes, one.kv_tokens, one.chunk, one.chunk * one.prior) for one in samples]
    return np.array(rows, float), np.array([one.length_ns for one in samples], float)


def _residuals(samples: Sequence[Sample], values: Floats) -> Residuals:
    columns, lengths = _columns(samples)
    off = lengths / (columns @ values) - 1
    sizes = np.abs(off)
    return Residuals(len(samples), float(np.median(sizes)), float(np.quantile(sizes, 0.9)), float(np.median(off)))


def _duration(length_ns: float) -> str:
    """Format a duration with five significant digits in the largest unit that it has one of."""
    unit, size = next(((unit, size) for unit, size in _UNITS if length_ns >= size), _UNITS[-1])
    decimals = max(0, 4 - len(str(int(length_ns / size))) + 1) if length_ns >= 1 else 8
    text = f"{length_ns / size:.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}{unit}"


def profile_text(fit: Fit, facts: Mapping[str, Any]) -> str:
    """Write the profile's file; `facts`: its other keys, in their order."""
    everything = fit.residuals["all"]
    source = (
        f"Fitted to {everything.iterations} iterations of {fit.requests} recorded requests; residuals: median "
        f"{everything.median:.1%}, p90 {everything.p90:.1%}."
    )
    lines = ["version: 1", f"model: {json.dumps(fit.model)}"]
    lines += [f"{name}: {json.dumps(value)}" for name, value in facts.items()]
    lines += [
        f"step_overhead: {fit.step_overhead}",
        f"request_overhead: {fit.request_overhead}",
        f"source: {json.dumps(source)}",
    ]
    for name, (low, high) in fit.ranges.items():
        lines.append(f"# {name}: {low} to {high}")
    lines += ["linear:", *(f"  {name}: {value}" for name, value in fit.terms.items())]
    return "\n".join(lines) + "\n"
