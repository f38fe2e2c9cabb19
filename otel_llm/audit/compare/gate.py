"""Gates of a build: changes for the worse, beyond a threshold, that chance does not explain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_llm.audit.kernel.samples import FIGURES
from otel_llm.rules.files.durations import parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_llm.audit.compare.comparison import Change, Comparison

GATED: Final = {figure.name: figure.better for figure in FIGURES if figure.better is not None}
"""The figures that may have a threshold, with their better direction."""


class ThresholdError(ValueError):
    """A threshold was refused; the text says what to write."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The allowed worsening of a figure: in its own unit, or as a share of the old value where `relative`."""

    figure: str
    by: float
    relative: bool = False

    def allowed(self, old: float) -> float:
        """Return the allowed change for this old value, in the figure's unit, at least 0."""
        return self.by * abs(old) if self.relative else self.by


DEFAULTS: Final = {
    one.figure: one
    for one in (
        Threshold("attainment", 0.01),
        Threshold("fluidity_ok_share", 0.01),
        Threshold("aborted_share", 0.01),
        Threshold("idle_p50_s", 0.1),
        Threshold("idle_p99_s", 0.25),
        Threshold("ttft_p99_s", 0.1, relative=True),
        Threshold("benefit_mean_tokens", 0.05, relative=True),
    )
}
"""The default gates. None of them is a rate per second: those depend on the sent load."""


def thresholds(written: Iterable[str]) -> dict[str, Threshold]:
    """Return the default thresholds, changed and extended by `FIGURE=BY`; raises ThresholdError.

    BY is `5%` (of the old value), a number in the figure's unit, or for seconds a duration as `100ms`; `FIGURE=off`
    leaves a figure out.
    """
    found = dict(DEFAULTS)
    for text in written:
        name, equals, amount = text.partition("=")
        if not equals or name not in GATED:
            raise ThresholdError(f"{text!r} is no threshold: write FIGURE=BY, FIGURE one of {', '.join(GATED)}")
        if amount == "off":
            found.pop(name, None)
        else:
            found[name] = _threshold(name, amount, text)
    return found


def regressions(found: Comparison, limits: Mapping[str, Threshold]) -> list[str]:
    """Return a sentence for each change for the worse whose whole interval is beyond its threshold."""
    return [_sentence(change, limits[change.figure]) for change in found.changes if _beyond(change, limits)]


def undecided(found: Comparison, limits: Mapping[str, Threshold]) -> list[Change]:
    """Return the changes that have a threshold but no interval: the gate cannot decide there."""
    return [
        one for one in found.changes if one.figure in limits and one.verdict == "cannot say" and not _is_absent(one)
    ]


def _beyond(change: Change, limits: Mapping[str, Threshold]) -> bool:
    limit = limits.get(change.figure)
    if limit is None or change.old is None or change.difference_low is None or change.difference_high is None:
        return False
    least_harm = -change.difference_high if change.better == "higher" else change.difference_low
    return least_harm > limit.allowed(change.old)


def _is_absent(change: Change) -> bool:
    """Tell whether neither recording has the figure, as `fluidity_ok_share` of a class without objective."""
    return change.old is None and change.new is None


def _sentence(change: Change, limit: Threshold) -> str:
    allowed = f"{limit.by * 100:g} %" if limit.relative else f"{limit.by:g}"
    where: Sequence[str] = [
        one for one in (change.slo_class, change.measured_at, change.model, change.instance) if one is not None
    ]
    return (
        f"{', '.join(where)}: {change.figure} is worse by more than {allowed}: {change.old:.4g} -> {change.new:.4g}, "
        f"difference from {change.difference_low:.4g} to {change.difference_high:.4g}"
    )


def _threshold(name: str, amount: str, text: str) -> Threshold:
    try:
        if amount.endswith("%"):
            by, relative = float(amount[:-1]) / 100, True
        else:
            by, relative = _plain(name, amount), False
    except ValueError as error:
        raise ThresholdError(f"{text!r}: {error}; write 5%, a number, or for seconds a duration as 100ms") from None
    if not math.isfinite(by) or by < 0:
        raise ThresholdError(f"{text!r}: a threshold is a number from 0")
    return Threshold(name, by, relative)


def _plain(name: str, amount: str) -> float:
    try:
        return float(amount)
    except ValueError:
        if not name.endswith("_s") or name.endswith(("_tok_s", "_req_s")):
            raise ValueError(f"{amount!r} is no number") from None
    return parse_duration_ns(amount) / 1e9
