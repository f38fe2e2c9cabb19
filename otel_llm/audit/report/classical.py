"""The same requests by the classical metrics: where a threshold on TBT or TPOT raises false alarms or hides a wait.

Both are about the time after the first token, so they are compared with the waiting after it (`idle_decode_s`): did the
reader have to wait, or not? The threshold is the class's own time for a further token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.audit.report.report_model import by_class, reals
from otel_llm.shared.formatting import number, plural, seconds
from otel_llm.slo.quantiles import P50, rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt
    import pandas as pd

    from otel_llm.slo.classes import SloClass, SloClasses

    Floats = npt.NDArray[np.float64]
    Truths = npt.NDArray[np.bool_]

EXAMPLES: Final = 3
"""The most trace ids listed for each kind of disagreement."""

METRICS: Final = (("TBT p99", "tbt_p99_s"), ("TPOT", "tpot_s"))
"""The classical figures of a request, and their columns."""


@dataclass(frozen=True, slots=True)
class Confusion:
    """A metric's alarms (above the threshold) against readers who waited, for one class at one place; requests.

    `wolf_ids`: trace ids of the largest values without a wait; `hidden_ids`: of the longest waits that the metric does
    not show; `hidden_wait_s`: the median of those waits, None if there are none.
    """

    name: str
    place: str
    metric: str
    threshold_ns: int
    warned: int
    wolf: int
    hidden: int
    quiet: int
    unsaid: int
    wolf_ids: tuple[str, ...]
    hidden_ids: tuple[str, ...]
    hidden_wait_s: float | None

    @property
    def judged(self) -> int:
        """Requests with a value on both sides."""
        return self.warned + self.wolf + self.hidden + self.quiet

    @property
    def alarms(self) -> int:
        """Requests above the threshold."""
        return self.warned + self.wolf

    @property
    def waited(self) -> int:
        """Requests whose reader waited after the first token."""
        return self.warned + self.hidden


def threshold_ns(slo: SloClass) -> int:
    """Return a class's time for a further token: its deadline's if it has one, else its fluidity's TBT."""
    return slo.fluidity.tbt_ns if slo.deadline.next_ns is None else slo.deadline.next_ns


def confusions(requests: pd.DataFrame, classes: SloClasses) -> list[Confusion]:
    """Return both metrics for every class and place of measurement, in order of name."""
    ids = requests["trace_id"]
    waits = reals(requests, "idle_decode_s")
    found: list[Confusion] = []
    for name, place, rows in by_class(requests):
        threshold = threshold_ns(classes.get(name))
        for metric, column in METRICS:
            values, wait = reals(requests, column)[rows], waits[rows]
            known = ~np.isnan(values) & ~np.isnan(wait)
            alarm, waited = known & above(values, threshold), known & (wait > 0)
            wolf, hidden = alarm & ~waited, ~alarm & waited
            hidden_s = np.sort(wait[hidden])
            found.append(
                Confusion(
                    name=name,
                    place=place,
                    metric=metric,
                    threshold_ns=threshold,
                    warned=int((alarm & waited).sum()),
                    wolf=int(wolf.sum()),
                    hidden=int(hidden.sum()),
                    quiet=int((known & ~alarm & ~waited).sum()),
                    unsaid=int((~known).sum()),
                    wolf_ids=tuple(str(ids.iloc[row]) for row in _largest(values, wolf, rows)),
                    hidden_ids=tuple(str(ids.iloc[row]) for row in _largest(wait, hidden, rows)),
                    hidden_wait_s=float(hidden_s[rank(len(hidden_s), P50)]) if len(hidden_s) else None,
                )
            )
    return found


def above(values_s: Floats, threshold: int) -> Truths:
    """Tell which values (R,) are above the threshold, in whole ns: a value on it is in time, as everywhere."""
    return np.nan_to_num(np.round(values_s * 1e9)) > threshold


def verdict(value_s: float | None, slo: SloClass) -> str:
    """Return whether one value of TBT or TPOT is above the class's threshold, in words."""
    if value_s is None:
        return ""
    threshold = threshold_ns(slo)
    where = "above" if round(value_s * 1e9) > threshold else "within"
    return f"{seconds(value_s)}, {where} {seconds(threshold / 1e9)}"


def statement(found: Iterable[Confusion]) -> str:
    """Return sentences on the two metrics' alarms for all requests together."""
    sentences: list[str] = []
    for metric, _ in METRICS:
        mine = [one for one in found if one.metric == metric]
        alarms, wolf = sum(one.alarms for one in mine), sum(one.wolf for one in mine)
        waited, hidden = sum(one.waited for one in mine), sum(one.hidden for one in mine)
        cried = f"{metric} raises {plural(alarms, 'alarm')}"
        if alarms:
            cried += f", {wolf:,} of them where no reader waited"
        hid = f"misses {hidden:,} of the {plural(waited, 'reader')} who waited" if waited else "no reader waited"
        sentences.append(f"{cried}; it {hid}." if waited else f"{cried}; {hid}.")
    return " ".join(sentences)


HEADINGS: Final = (
    "Class, measured at",
    "Metric",
    "Threshold",
    "Requests",
    "Warned rightly",
    "Cried wolf",
    "Hid a wait",
    "Rightly quiet",
    "Hidden wait, median",
)


def lines(found: Sequence[Confusion]) -> list[tuple[str, ...]]:
    """Return the counts as the lines of a table."""
    return [
        (
            f"{one.name}, {one.place}",
            one.metric,
            seconds(one.threshold_ns / 1e9),
            number(one.judged),
            number(one.warned),
            number(one.wolf),
            number(one.hidden),
            number(one.quiet),
            seconds(one.hidden_wait_s),
        )
        for one in found
    ]


def example_lines(found: Sequence[Confusion]) -> list[tuple[str, ...]]:
    """Return trace ids worth a look as the lines of a table: class, metric, kind, ids."""
    rows: list[tuple[str, ...]] = []
    for one in found:
        for what, ids in (("cried wolf", one.wolf_ids), ("hid a wait", one.hidden_ids)):
            if ids:
                rows.append((f"{one.name}, {one.place}", one.metric, what, ", ".join(ids)))
    return rows


def _largest(values: Floats, among: Truths, rows: npt.NDArray[np.int64]) -> list[int]:
    """Return the positions of the rows with the largest values, equal ones in order of position."""
    chosen = np.flatnonzero(among)
    order = np.lexsort((rows[chosen], -values[chosen]))[:EXAMPLES]
    return [int(rows[place]) for place in chosen[order]]
