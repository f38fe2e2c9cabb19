"""Fit a profile to the iterations of a recorded engine, with what remains."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_llm import semconv
from otel_llm.scheduling.profiles.fitted_curve import Curve, fit_curve
from otel_llm.scheduling.profiles.grid import Point
from otel_llm.scheduling.profiles.recorded_steps import Recorded, Sample, rebuild

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    Floats = npt.NDArray[np.float64]

FEWEST: Final = 50
"""Iterations, of each kind."""
EXACT: Final = "exact"
"""The basis of tokens that the engine counted."""
_UNITS: Final = (("ms", 1e6), ("us", 1e3), ("ns", 1.0))


class FitError(ValueError):
    """A recording has too little to fit a profile to; the text says what is missing, and the remedy."""


class Residuals(NamedTuple):
    """|measured / predicted - 1| of some iterations, without pauses."""

    iterations: int
    median: float
    p90: float
    bias: float
    """The median of measured / predicted - 1, with its sign."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted profile: its durations as the file has them, and how well it fits."""

    model: str
    curve: Curve
    """With the pauses of the machine."""
    pauses: float
    """The share that all iterations took beyond the curve through their middle, part of `curve`."""
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
            "record them with the plugin of otel-llm in vLLM, or in transformers' continuous batching, and fit to it"
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
    curve = fit_curve(samples)
    pauses = max(0.0, float(_lengths(samples).sum() / _predicted(samples, curve).sum() - 1))
    every = [request for requests in engines.values() for request in requests]
    return Fit(
        model=model,
        curve=curve.stretched(pauses),
        pauses=pauses,
        request_overhead=duration_text(float(median(overheads_ns)) if overheads_ns else 0.0),
        residuals={kind: _residuals(found, curve) for kind, found in {**kinds, "all": samples}.items()},
        ranges={
            name: (min(getattr(one, name) for one in samples), max(getattr(one, name) for one in samples))
            for name in ("decodes", "kv_tokens", "chunk", "prior")
        },
        requests=len(every),
        steps=steps,
        idle_before=idle_before,
        doubtful=doubtful,
    )


def _residuals(samples: Sequence[Sample], curve: Curve) -> Residuals:
    off = _lengths(samples) / _predicted(samples, curve) - 1
    sizes = np.abs(off)
    return Residuals(len(samples), float(np.median(sizes)), float(np.quantile(sizes, 0.9)), float(np.median(off)))


def _lengths(samples: Sequence[Sample]) -> Floats:
    return np.array([one.length_ns for one in samples], float)


def _predicted(samples: Sequence[Sample], curve: Curve) -> Floats:
    return np.maximum(curve.lengths_ns([Point(*one[:4]) for one in samples]), 1.0)


def duration_text(length_ns: float) -> str:
    """Format a duration with five significant digits in the largest unit that it has one of."""
    unit, size = next(((unit, size) for unit, size in _UNITS if length_ns >= size), _UNITS[-1])
    decimals = max(0, 4 - len(str(int(length_ns / size))) + 1) if length_ns >= 1 else 8
    text = f"{length_ns / size:.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}{unit}"


def table_text(fit: Fit) -> str:
    """Write the profile's table."""
    most = {name: high for name, (_, high) in fit.ranges.items()}
    return fit.curve.table(max(1, most["kv_tokens"] // max(1, most["decodes"])), max(1, most["prior"]))


def profile_text(fit: Fit, facts: Mapping[str, Any], table: str) -> str:
    """Write the profile's file; `facts`: its other keys, in their order, `table`: the name of its table."""
    everything = fit.residuals["all"]
    source = (
        f"Fitted to {everything.iterations} iterations of {fit.requests} recorded requests; residuals: median "
        f"{everything.median:.1%}, p90 {everything.p90:.1%}."
    )
    lines = ["version: 1", f"model: {json.dumps(fit.model)}"]
    lines += [f"{name}: {json.dumps(value)}" for name, value in facts.items()]
    lines += [
        f"request_overhead: {fit.request_overhead}",
        f"source: {json.dumps(source)}",
    ]
    for name, (low, high) in fit.ranges.items():
        lines.append(f"# {name}: {low} to {high}")
    lines.append(f"table: {json.dumps(table)}")
    return "\n".join(lines) + "\n"
