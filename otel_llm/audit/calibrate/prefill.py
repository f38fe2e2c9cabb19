"""Fit a first-token target that grows with the prompt to a run without contention (Etalon, section 4.1).

The paper profiles each prompt length in isolation and fits a curve; its section 3.1 expects a quadratic one. How the
curve becomes a promise is ours: it is raised until the wanted share of the observed first tokens holds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from otel_llm.audit.calibrate.alpha_fit import TooLittleError
from otel_llm.audit.kernel.judge_batch import judge_batch
from otel_llm.audit.kernel.samples import reals
from otel_llm.slo.classes import Curve
from otel_llm.slo.quantiles import rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from fractions import Fraction

    import pyarrow as pa

    from otel_llm.audit.kernel.samples import Bools, Floats
    from otel_llm.slo.classes import SloClasses

FEWEST: Final = 10
"""Requests for each point of a curve, and in all: the paper's number of repetitions of a prompt length."""
MOST_POINTS: Final = 12
STEP_NS: Final = 1_000
"""Targets are rounded up to the microsecond, so that the file is readable."""

Method = Literal["quadratic", "quantile"]


@dataclass(frozen=True, slots=True)
class Prompts:
    """R requests with known prompt length and first token, (R,) each.

    `alone`: no other request of the same instance was between commit and end while this one waited for its first token.
    `left_out`: requests without known input tokens or first token.
    """

    input_tokens: Floats
    ttft_s: Floats
    alone: Bools
    left_out: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """A fitted target.

    `coefficients`: a, b, c of a + b n + c n^2 in seconds, before it was raised by `lift` (None for `quantile`).
    `spread`: the median of |observed / fitted - 1|; `held`: how many of `requests` hold the target.
    """

    curve: Curve
    method: Method
    coefficients: tuple[float, float, float] | None
    lift: float
    spread: float
    requests: int
    held: int

    def yaml(self) -> str:
        """Return the target as in a class of the SLO file: `fluidity: {ttft: {curve: ...}}`."""
        points = ", ".join(f"[{tokens}, {_duration(length_ns)}]" for tokens, length_ns in self.curve.points)
        return f"fluidity: {{ttft: {{curve: [{points}]}}}}\n"


def prompts_of(streams: Iterable[pa.RecordBatch], classes: SloClasses) -> Prompts:
    """Return prompt lengths and first tokens of batches of STREAMS, in one pass."""
    tokens: list[Floats] = []
    columns: dict[str, list[Floats]] = {"ttft_s": [], "start_unix_nano": [], "end_unix_nano": []}
    instances: list[str] = []
    for batch in streams:
        judged = judge_batch(batch, classes)
        tokens.append(_reals(batch, "input_tokens"))
        for name, parts in columns.items():
            parts.append(_reals(judged, name))
        places = zip(judged.column("measured_at").to_pylist(), judged.column("instance").to_pylist(), strict=True)
        instances += [f"{place} {instance}" for place, instance in places]
    if not tokens:
        return Prompts(np.zeros(0), np.zeros(0), np.zeros(0, np.bool_), 0)
    length, ttft, start, end = (np.concatenate(parts) for parts in (tokens, *columns.values()))
    known = ~np.isnan(length) & ~np.isnan(ttft) & ~np.isnan(start)
    alone = _alone(np.array(instances, dtype=object), start, start + ttft * 1e9, end)
    return Prompts(length[known], ttft[known], alone[known], int(np.count_nonzero(~known)))


def fit_prefill(
    prompts: Prompts, share: Fraction, *, method: Method = "quadratic", headroom: float = 1.0, contended: bool = False
) -> Prefill:
    """Fit a curve that `share` of the first tokens hold, times `headroom`.

    `quadratic`: least squares of the relative error with coefficients not below zero, raised to the share; the lines
    between its points lie above it. `quantile`: the share's nearest-rank percentile of each prompt length (or of groups
    of neighbouring lengths), made non-decreasing. Requests that were not alone are left out unless `contended`.

    Raises:
        TooLittleError: fewer than FEWEST requests are left, or they are all of one length.
    """
    which = prompts.alone | contended
    length, ttft = prompts.input_tokens[which], prompts.ttft_s[which]
    if len(length) < FEWEST:
        crowd = len(prompts.alone) - int(prompts.alone.sum())
        raise TooLittleError(
            f"{len(length)} requests with a known prompt and a first token are too few for a curve: {FEWEST} are wanted"
            f" ({prompts.left_out:,} lack one of them, {crowd:,} were not alone: send one request at a time, or take "
            "them too with --contended)"
        )
    if len(np.unique(length)) < 2:
        raise TooLittleError("all prompts are of one length: send some of several lengths, short and long")
    if not (ttft > 0).all():
        raise TooLittleError("a first token came at once: its time is no measurement of a prefill")
    if method == "quadratic":
        return _quadratic(length, ttft, share, headroom)
    return _quantile(length, ttft, share, headroom)


def _quadratic(length: Floats, ttft: Floats, share: Fraction, headroom: float) -> Prefill:
    scale = float(length.max())
    basis = np.stack([np.ones_like(length), length / scale, (length / scale) ** 2], axis=1)
    best: tuple[float, Floats] | None = None
    # Not below zero: of three coefficients, the best of those subsets whose own solution is allowed.
    for count in (1, 2, 3):
        for chosen in combinations(range(3), count):
            part = basis[:, chosen] / ttft[:, None]
            found, *_ = np.linalg.lstsq(part, np.ones_like(ttft), rcond=None)
            error = float(np.sum((part @ found - 1) ** 2))
            if (found >= 0).all() and (best is None or error < best[0] - 1e-12):
                best = error, np.zeros(3)
                best[1][list(chosen)] = found
    assert best is not None  # noqa: S101  a constant above zero is always allowed
    values = best[1]
    fitted = basis @ values
    lift = float(np.sort(ttft / fitted)[rank(len(ttft), share)])
    at = np.unique(np.rint(np.geomspace(max(1.0, length.min()), scale, MOST_POINTS)).astype(np.int64))
    targets = np.stack([np.ones(len(at)), at / scale, (at / scale) ** 2], axis=1) @ values * lift * headroom
    curve = Curve(tuple(zip(at.tolist(), _up(targets), strict=True)))
    coefficients = (float(values[0]), float(values[1] / scale), float(values[2] / scale**2))
    return _prefill(curve, "quadratic", coefficients, lift, fitted, length, ttft)


def _quantile(length: Floats, ttft: Floats, share: Fraction, headroom: float) -> Prefill:
    groups = _groups(length)
    if len(groups) < 2:
        raise TooLittleError(f"two groups of {FEWEST} requests of different prompt lengths are wanted; send more")
    at = [int(np.sort(length[which])[len(which) // 2]) for which in groups]
    targets = np.maximum.accumulate([float(np.sort(ttft[which])[rank(len(which), share)]) for which in groups])
    curve = Curve(tuple(zip(at, _up(targets * headroom), strict=True)))
    fitted = np.interp(length, at, targets)
    return _prefill(curve, "quantile", None, 1.0, fitted, length, ttft)


def _groups(length: Floats) -> list[np.ndarray]:
    """Return the requests by prompt length, shortest first, neighbouring lengths joined until each has enough."""
    order = np.argsort(length, kind="stable")
    wanted = max(FEWEST, math.ceil(len(length) / MOST_POINTS))
    ends = np.flatnonzero(np.diff(length[order], append=math.inf))
    groups: list[np.ndarray] = []
    first = 0
    for end in ends.tolist():
        if end + 1 - first >= wanted and (len(order) - end - 1 >= wanted or end + 1 == len(order)):
            groups.append(order[first : end + 1])
            first = end + 1
    return groups if first == len(order) else [*groups, order[first:]]


def _prefill(
    curve: Curve,
    method: Method,
    coefficients: tuple[float, float, float] | None,
    lift: float,
    fitted: Floats,
    length: Floats,
    ttft: Floats,
) -> Prefill:
    spread = float(np.median(np.abs(ttft / fitted - 1)))
    target = np.array([curve.at(int(one)) for one in length.tolist()])
    held = int(np.count_nonzero(np.rint(ttft * 1e9) <= target))
    return Prefill(curve, method, coefficients, lift, spread, len(length), held)


def _up(seconds: Sequence[float] | Floats) -> list[int]:
    return [math.ceil(round(value * 1e9, 3) / STEP_NS) * STEP_NS for value in np.asarray(seconds).tolist()]


def _alone(instances: np.ndarray, start: Floats, first: Floats, end: Floats) -> Bools:
    """Return which requests (R,) had their instance for themselves from commit to first token."""
    alone = np.zeros(len(start), np.bool_)
    for instance in set(instances.tolist()):
        which = np.flatnonzero((instances == instance) & ~np.isnan(start))
        which = which[np.argsort(start[which], kind="stable")]
        # An unknown end is taken to be after all others.
        ends = np.maximum.accumulate(np.nan_to_num(end[which], nan=math.inf))
        before = np.concatenate([[-math.inf], ends[:-1]])
        after = np.concatenate([start[which][1:], [math.inf]])
        alone[which] = (before <= start[which]) & (after >= first[which])
    return alone


def _reals(batch: pa.RecordBatch, name: str) -> Floats:
    import pyarrow as pa

    return reals(pa.Table.from_batches([batch]), name)


def _duration(length_ns: int) -> str:
    whole, rest = divmod(length_ns, 1_000_000)
    return f"{whole}ms" if not rest else f"{whole}.{rest // STEP_NS:03d}".rstrip("0") + "ms"
