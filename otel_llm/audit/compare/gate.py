"""Gates of a build: changes for the worse, beyond a threshold, that chance does not explain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from otel_llm.audit.compare.bootstrap import VARYING
from otel_llm.audit.compare.comparison import GROUP
from otel_llm.config.durations import parse_duration_ns
from otel_llm.slo.figures import BY_NAME, FIGURES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from otel_llm.audit.compare.comparison import Change, Comparison

GATED: Final = {figure.name: figure.better for figure in VARYING if figure.better is not None}
"""The figures that may have a threshold, with their better direction."""


class ThresholdError(ValueError):
    """A threshold was refused; the text says what to write."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The allowed worsening of a figure: in its own unit, or as a share of the old value if `relative`."""

    figure: str
    by: float
    relative: bool = False

    def allowed(self, old: float) -> float:
        """Return the allowed change for this old value, in the figure's unit, at least 0."""
        return self.by * abs(old) if self.relative else self.by


def thresholds(written: Iterable[str]) -> dict[str, Threshold]:
    """Return the default thresholds, changed and extended by `FIGURE=BY`; raises ThresholdError.

    None of the default ones is of a rate per second: those depend on the sent load.
    BY is `5%` (of the old value), a number in the figure's unit, or for seconds a duration as `100ms`; `FIGURE=off`
    leaves a figure out.
    """
    found = {one.name: _threshold(one.name, one.gate, one.gate) for one in FIGURES if one.gate}
    for text in written:
        name, equals, amount = text.partition("=")
        if not equals or name not in GATED:
            raise ThresholdError(f"{text!r} is no threshold: write FIGURE=BY, FIGURE one of {', '.join(GATED)}")
        if amount == "off":
            found.pop(name, None)
        else:
            found[name] = _threshold(name, amount, text)
    return found


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of a gate on one figure of one group.

    `state`: `worse` if the whole interval is beyond the threshold, `held` if it is not, `not judged` without an
    interval. `least_harm`: the end of the interval that is best for readers, as a worsening in the figure's unit.
    """

    change: Change
    limit: Threshold
    state: Literal["worse", "held", "not judged"]
    least_harm: float | None

    @property
    def sentence(self) -> str:
        """Return what is worse, in words."""
        change = self.change
        allowed = f"{self.limit.by * 100:g} %" if self.limit.relative else f"{self.limit.by:g}"
        where = ", ".join(one for one in change.group if one is not None)
        return (
            f"{where}: {change.figure} is worse by more than {allowed}: {change.old:.4g} -> {change.new:.4g}, "
            f"difference from {change.difference_low:.4g} to {change.difference_high:.4g}"
        )

    def row(self) -> dict[str, Any]:
        """Return it as an object of `--format json`."""
        change = self.change
        named = {name: getattr(change, name) for name in (*GROUP, "figure", "old", "new")}
        allowed = None if change.old is None else self.limit.allowed(change.old)
        return {**named, "allowed": allowed, "least_harm": self.least_harm, "decision": self.state, "why": change.why}


def decisions(found: Comparison, limits: Mapping[str, Threshold]) -> tuple[Decision, ...]:
    """Return the decision on each figure that has a threshold and that either recording has."""
    return tuple(
        _decision(change, limits[change.figure])
        for change in found.changes
        if change.figure in limits and not (change.old is None and change.new is None)
    )


def _decision(change: Change, limit: Threshold) -> Decision:
    if change.old is None or change.difference_low is None or change.difference_high is None:
        return Decision(change, limit, "not judged", None)
    least_harm = -change.difference_high if change.better == "higher" else change.difference_low
    return Decision(change, limit, "worse" if least_harm > limit.allowed(change.old) else "held", least_harm)


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
        if BY_NAME[name].unit not in {"s", "s/token"}:
            raise ValueError(f"{amount!r} is no number") from None
    return parse_duration_ns(amount) / 1e9
