"""The worked requests of tests/vectors/vectors.json, as the package's own types."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from otel_llm.slo.classes import KINDS, Benefit, Deadline, Fluidity, SloClass

FOLDER = Path(__file__).parents[1] / "vectors"


@dataclass(frozen=True)
class Vector:
    """One worked request: its story is its name, `expect` is in seconds and tokens."""

    name: str
    tokens_ns: list[int]
    kinds: list[int] | None
    commit_ns: int
    end_ns: int
    outcome: str
    slo: SloClass
    expect: dict[str, int | float | bool | None]


@cache
def document() -> dict[str, Any]:
    """Return the whole file."""
    loaded: dict[str, Any] = json.loads((FOLDER / "vectors.json").read_text(encoding="utf-8"))
    return loaded


@cache
def vectors() -> tuple[Vector, ...]:
    """Return the worked requests in file order."""
    return tuple(_vector(entry) for entry in document()["requests"])


def vector(name: str) -> Vector:
    """Return the worked request of this name."""
    return next(found for found in vectors() if found.name == name)


def _vector(entry: dict[str, Any]) -> Vector:
    kinds = entry.get("kinds")
    return Vector(
        name=entry["name"],
        tokens_ns=entry["tokens_ns"],
        kinds=None if kinds is None else [KINDS.index(kind) for kind in kinds],
        commit_ns=entry["commit_ns"],
        end_ns=entry["end_ns"],
        outcome=entry["outcome"],
        slo=_slo(entry["class"]),
        expect=entry["expect"],
    )


def _slo(body: dict[str, Any]) -> SloClass:
    fluidity, benefit, deadline = body["fluidity"], body["benefit"], body["deadline"]
    return SloClass(
        pace_ns=round(10**9 / Fraction(str(body["reading_speed"]))),
        reads=tuple(KINDS.index(kind) for kind in body["reads"]),
        start_ns=_ns(body["start_s"]),
        deadline=Deadline(deadline[0], *(_ns(length) for length in deadline[1:])),
        fluidity=Fluidity(
            ttft=_ns(fluidity["ttft_s"]),
            tbt_ns=_ns(fluidity["tbt_s"]),
            slack_ns=_ns(fluidity["slack_s"]),
            ttft_credit=fluidity["ttft_credit"],
            count=fluidity["count"],
        ),
        benefit=Benefit(benefit["alpha"], benefit["penalty"], benefit["abort_penalty"]),
    )


def _ns(length_s: float) -> int:
    return round(Fraction(str(length_s)) * 10**9)
