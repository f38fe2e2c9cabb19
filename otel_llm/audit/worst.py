"""Which requests to look at first: the longest idle, then the lowest fluidity among the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_llm.readers.rows import Cell

BY_IDLE: Final = 6
BY_FLUIDITY: Final = 3
CHOICE_RULE: Final = (
    f"The {BY_IDLE} requests whose readers waited longest (idle_s), then of the others the {BY_FLUIDITY} with the "
    "lowest fluidity_index below 1. Equals are taken in order of their start."
)


@dataclass(frozen=True, slots=True)
class Worst:
    """One request worth a look: its position among the rows, and why it was chosen (`idle` or `fluidity`)."""

    position: int
    why: str


def choose(rows: Sequence[Mapping[str, Cell]], by_idle: int = BY_IDLE, by_fluidity: int = BY_FLUIDITY) -> list[Worst]:
    """Return the positions of the worst rows; a request that nobody waited for, or that cannot be judged, is none."""
    idle = [(-value, position) for position, row in enumerate(rows) if (value := _real(row["idle_s"])) is not None]
    first = [Worst(position, "idle") for value, position in sorted(idle)[:by_idle] if value < 0]
    taken = {one.position for one in first}
    fluidity = [
        (value, position)
        for position, row in enumerate(rows)
        if position not in taken and (value := _real(row["fluidity_index"])) is not None
    ]
    return first + [Worst(position, "fluidity") for value, position in sorted(fluidity)[:by_fluidity] if value < 1]


def _real(value: Cell) -> float | None:
    return value if isinstance(value, float) else None
