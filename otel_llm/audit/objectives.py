"""Check the classes' objectives against an audit; compared in integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from otel_llm.audit import coverage
from otel_llm.audit.kernel.judged_columns import column_of, texts_of
from otel_llm.slo.summary import Judgements, fluid_ones

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from otel_llm.audit.kernel.judged_columns import Rows
    from otel_llm.slo.classes import SloClasses


@dataclass(frozen=True, slots=True)
class Check:
    """One objective of one class at one place of measurement, and how many of how many requests held it."""

    slo_class: str
    measured_at: str
    objective: str
    wanted: Fraction
    held: int
    judged: int

    @property
    def state(self) -> Literal["met", "missed", "no data"]:
        """Return whether the promised share was reached; `no data` without a judged request."""
        if not self.judged:
            return "no data"
        return "met" if self.held * self.wanted.denominator >= self.wanted.numerator * self.judged else "missed"

    @property
    def share(self) -> float | None:
        """The share that held it, None without data."""
        return self.held / self.judged if self.judged else None


def check(rows: Rows, classes: SloClasses) -> list[Check]:
    """Return a check for each objective of a class, for each measured_at of its requests.

    `fluidity_index` with `share`: that share of the requests has at least that index. `attainment`: that share of the
    requests with a verdict met their deadlines.
    """
    names, places = texts_of(rows, "slo_class"), texts_of(rows, "measured_at")
    numbers = {name: column_of(rows, name) for name in ("deadlines", "deadline_misses", "met")}
    judged = Judgements({"slo_class": names}, numbers)
    checks: list[Check] = []
    for name, place in sorted(set(zip(names.tolist(), places.tolist(), strict=True))):
        objective = classes.get(name).objective
        mine = judged.only((names == name) & (places == place))
        if objective.fluidity_index is not None and objective.share is not None:
            words = f"fluidity_index of at least {float(objective.fluidity_index):g}"
            due, kept = fluid_ones(mine, objective.fluidity_index)
            checks.append(Check(name, place, words, objective.share, int(kept.sum()), int(due.sum())))
        if objective.attainment is not None:
            met = mine.numbers["met"]
            held = int((met.known & (met.values == 1)).sum())
            checks.append(Check(name, place, "attainment", objective.attainment, held, int(met.known.sum())))
    return checks


def unshown(rows: Rows, checks: Sequence[Check]) -> str:
    """Return why these checks show nothing at all, "" if they show something.

    Requests of classes without objectives give no checks: nothing was promised for them, and nothing is broken.
    """
    if any(one.judged for one in checks) or (len(rows) and not checks):
        return ""
    return coverage.unjudged(rows)
