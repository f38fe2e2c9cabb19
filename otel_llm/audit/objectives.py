"""What the classes promise over many requests, held against what was found; compared in integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from fractions import Fraction

    from otel_llm.readers.rows import Cell
    from otel_llm.slo.classes import SloClasses


@dataclass(frozen=True, slots=True)
class Check:
    """One objective of one class at one place of measurement: so many of so many requests held it."""

    slo_class: str
    measured_at: str
    objective: str
    wanted: Fraction
    held: int
    judged: int

    @property
    def state(self) -> Literal["met", "missed", "no data"]:
        """Say whether the share asked for was reached; without a judged request nobody can say."""
        if not self.judged:
            return "no data"
        return "met" if self.held * self.wanted.denominator >= self.wanted.numerator * self.judged else "missed"

    @property
    def share(self) -> float | None:
        """The share that held it, None without data."""
        return self.held / self.judged if self.judged else None


def check(rows: Iterable[Mapping[str, Cell]], classes: SloClasses) -> list[Check]:
    """Return a check for each objective that a class states, for each measured_at it was measured at.

    `fluidity_index` with `share`: that share of the requests has at least that index. `attainment`: that share of the
    requests of which it can be said met their deadlines.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Cell]]] = {}
    for row in rows:
        groups.setdefault((str(row["slo_class"]), str(row["measured_at"])), []).append(row)
    checks: list[Check] = []
    for (name, measured_at), mine in sorted(groups.items()):
        objective = classes.get(name).objective
        if objective.fluidity_index is not None and objective.share is not None:
            held = [_fluid(row, objective.fluidity_index) for row in mine]
            judged = [one for one in held if one is not None]
            words = f"fluidity_index of at least {float(objective.fluidity_index):g}"
            checks.append(Check(name, measured_at, words, objective.share, sum(judged), len(judged)))
        if objective.attainment is not None:
            known = [row["met"] for row in mine if row["met"] is not None]
            checks.append(Check(name, measured_at, "attainment", objective.attainment, known.count(True), len(known)))
    return checks


def _fluid(row: Mapping[str, Cell], wanted: Fraction) -> bool | None:
    """Tell whether met / deadlines >= wanted, without a division; None where nothing was due or nobody can say."""
    deadlines, misses = row["deadlines"], row["deadline_misses"]
    if not isinstance(deadlines, int) or not isinstance(misses, int) or not deadlines:
        return None
    return (deadlines - misses) * wanted.denominator >= wanted.numerator * deadlines
