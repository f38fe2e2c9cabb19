"""The verdicts on many requests as arrays, and the columns derived from them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from otel_llm.slo.classes import OUTCOMES
from otel_llm.slo.metrics import COMPUTED
from otel_llm.slo.verdict import Verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]

LOST = OUTCOMES.index("lost")
COMPLETED = OUTCOMES.index("completed")
_EXACT = 2**53  # integers up to here are exact as floats


class Masked(NamedTuple):
    """A column: `values` (R,), valid if `known` (R,) bool is true."""

    values: NDArray[Any]
    known: Bools


@dataclass(frozen=True, slots=True)
class Judged:
    """The fields of Verdict as arrays (R,); times are int64, ns.

    A value counts only if its mask is true: `judged` for the reader's figures, `fluid` for the fluidity ones,
    `met_known` for `met`; token times if there are tokens (`ttft_ns`, `span_ns`: one, TBT: two), those of reading
    if one was read, E2E if the end was seen.
    """

    outcome: NDArray[np.uint8]
    tokens: Ints
    tokens_read: Ints
    skewed: Ints
    end_ns: Ints
    ttft_ns: Ints
    ttfo_ns: Ints
    span_ns: Ints
    tbt_p50_ns: Ints
    tbt_p99_ns: Ints
    tbt_max_ns: Ints
    judged: Bools
    idle_ns: Ints
    idle_decode_ns: Ints
    stalls: Ints
    fluid: Bools
    deadlines: Ints
    deadline_misses: Ints
    line_misses: Ints
    met: Bools
    met_known: Bools
    abort_penalty: Floats
    benefit: Floats

    @classmethod
    def empty(cls, count: int) -> Judged:
        """Return arrays for `count` verdicts, with nothing known of any."""
        kinds = {"Ints": np.int64, "Bools": np.bool_, "Floats": np.float64}
        return cls(**{item.name: np.zeros(count, kinds.get(str(item.type), np.uint8)) for item in fields(cls)})

    def __len__(self) -> int:
        return len(self.tokens)

    def put(self, index: int, verdict: Verdict) -> None:
        """Write the verdict on one request."""
        for item in fields(self):
            value = getattr(verdict, item.name, None)
            if value is not None:
                getattr(self, item.name)[index] = OUTCOMES.index(value) if item.name == "outcome" else value
        self.fluid[index] = verdict.deadlines is not None
        self.met_known[index] = verdict.met is not None

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts as a list, each equal to the result of `judge`."""
        masks = self._masks()
        cells: dict[str, list[Any]] = {
            "outcome": [OUTCOMES[code] for code in self.outcome.tolist()],
        }
        for name in Verdict._fields:
            if name not in cells:
                values = getattr(self, name)
                cells[name] = _cells(Masked(values, masks[name])) if name in masks else values.tolist()
        return [Verdict(*row) for row in zip(*(cells[name] for name in Verdict._fields), strict=True)]

    @property
    def e2e_ns(self) -> Ints:
        """Return the ends; those of lost streams do not count."""
        return self.end_ns

    def column(self, name: str) -> Masked:
        """Return a column (R,) of COMPUTED as rows show it: seconds, shares and tokens."""
        formula, masks = COMPUTED[name], self._masks()
        known = np.ones(len(self), np.bool_)
        for field_name in formula.needs:
            known &= masks.get(field_name, True)
        values = formula.top(self)
        if formula.under is not None:
            under = formula.under(self)
            known &= under > 0
            values = _ratio(values, under, known)
        return Masked(values / 1e9 if formula.in_ns else values, known)

    def _masks(self) -> dict[str, Bools]:
        some, read, gaps = self.tokens > 0, self.tokens_read > 0, self.tokens > 1
        return {
            "e2e_ns": self.outcome != LOST,
            **dict.fromkeys(("ttft_ns", "span_ns"), some),
            **dict.fromkeys(("ttfo_ns", "idle_decode_ns"), read),
            **dict.fromkeys(("tbt_p50_ns", "tbt_p99_ns", "tbt_max_ns"), gaps),
            **dict.fromkeys(("idle_ns", "stalls", "benefit"), self.judged),
            **dict.fromkeys(("deadlines", "deadline_misses", "line_misses"), self.fluid),
            "met": self.met_known,
        }


def _cells(column: Masked) -> list[Any]:
    return [
        value if known else None for value, known in zip(column.values.tolist(), column.known.tolist(), strict=True)
    ]


def _ratio(numerator: Ints, denominator: Ints, known: Bools) -> Floats:
    """Divide integers, (R,) each, every quotient rounded once; 0 if not known."""
    result = np.zeros(len(numerator))
    np.divide(numerator, denominator, out=result, where=known)
    for index in np.flatnonzero(known & ((numerator > _EXACT) | (denominator > _EXACT))).tolist():
        result[index] = int(numerator[index]) / int(denominator[index])
    return result
