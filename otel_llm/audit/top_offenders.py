"""The top offenders: the requests with the longest idle time, then those with the lowest fluidity among the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_llm.audit.kernel.judged_columns import column_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_llm.audit.kernel.judged_columns import Rows

BY_IDLE: Final = 6
BY_FLUIDITY: Final = 3
CHOICE_RULE: Final = (
    f"The {BY_IDLE} requests whose readers waited longest (idle_s), then of the others the {BY_FLUIDITY} with the "
    "lowest fluidity_index below 1. Equals are taken in order of their start."
)


@dataclass(frozen=True, slots=True)
class TopOffender:
    """One request worth a look: its position among the rows, and why it was chosen (`idle` or `fluidity`)."""

    position: int
    why: str


def choose(rows: Rows, by_idle: int = BY_IDLE, by_fluidity: int = BY_FLUIDITY) -> list[TopOffender]:
    """Return the positions of the top offenders; requests without a wait or a verdict are none."""
    idle = column_of(rows, "idle_s")
    waited = idle.known & (idle.values > 0)
    first = [TopOffender(position, "idle") for position in _least(-idle.values.astype(np.float64), waited, by_idle)]
    fluidity = column_of(rows, "fluidity_index")
    missed = fluidity.known & (fluidity.values < 1)
    missed[[one.position for one in first]] = False
    return first + [TopOffender(position, "fluidity") for position in _least(fluidity.values, missed, by_fluidity)]


def _least(values: NDArray[Any], chosen: NDArray[np.bool_], most: int) -> list[int]:
    """Return the indexes of the least of the chosen values, equal ones in their order."""
    places = np.flatnonzero(chosen)
    found: list[int] = places[np.argsort(values[places], kind="stable")][:most].tolist()
    return found
