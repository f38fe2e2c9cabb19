"""Where a request goes: backends compared by their load, each with a score and a reason. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Load:
    """What a backend has to do: streams in flight, and their tokens (prompt and output so far)."""

    name: str
    streams: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend that was compared; of each score the lower is the better."""

    name: str
    score: Mapping[str, float]
    reason: str

    def record(self) -> dict[str, Any]:
        """Return its row of a decision record."""
        return {"instance": self.name, "score": dict(self.score), "reason": self.reason}


def _least_load(load: Load) -> Candidate:
    score = {"tokens": float(load.tokens), "streams": float(load.streams)}
    return Candidate(load.name, score, f"{load.tokens} tokens of {load.streams} streams in flight")


def _spread(load: Load) -> Candidate:
    return Candidate(load.name, {"streams": float(load.streams)}, f"{load.streams} streams in flight")


POLICIES: Final[Mapping[str, Callable[[Load], Candidate]]] = {"least_load": _least_load, "spread": _spread}
"""Policies by name. `pack` and `safest` need to predict an iteration's time, and are no policies yet."""
DEFAULT: Final = "least_load"


def rank(policy: str, loads: Iterable[Load]) -> list[Candidate]:
    """Return the candidates, best first; equal ones as given. A policy that is not known here ranks as `least_load`."""
    score = POLICIES.get(policy, _least_load)
    return sorted((score(load) for load in loads), key=lambda one: tuple(one.score.values()))
