"""The objective of a capacity search: its text, its clauses, and the fate of each request under them.

    attainment >= 0.9 && ttft_p99 <= 500ms

Every clause is a share of requests: `ttft_p99 <= x` says that at least 99 % have their first token within x.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np

from otel_llm.config.durations import DURATION_ADVICE, parse_duration_ns
from otel_llm.config.yaml_file import did_you_mean
from otel_llm.slo.classes import ABORTED, OUTCOMES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_llm.slo.batch.judged import Judged
    from otel_llm.slo.classes import SloClass

    Fates = NDArray[np.int8]

HELD: Final = 1
MISSED: Final = 0
UNREPORTED: Final = -1
"""The fate of a request under a clause; UNREPORTED: it has no verdict, and is left out and counted."""

FLUIDITY_OK: Final = Fraction(9, 10)
"""The fluidity-index of a request that counts as fluid, if its class names none (Etalon, section 4.1)."""
_PERCENTILES: Final = {"idle_p99": Fraction(99, 100), "ttft_p99": Fraction(99, 100)}
_SHARES: Final = ("attainment", "fluidity_ok_share")
METRICS: Final = (*_SHARES, *_PERCENTILES)
_TOKEN: Final = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<sign><=|>=|==|<|>)|(?P<and>&&)|(?P<value>[^\s&<>=]+))")
_FAILED: Final = [OUTCOMES.index(outcome) for outcome in sorted(ABORTED)]


class ObjectiveError(ValueError):
    """An objective that cannot be read; the text shows it with a caret below the part that is wrong."""

    def __init__(self, text: str, begin: int, length: int, message: str) -> None:
        super().__init__(f"{message}\n  {text}\n  {' ' * begin}{'^' * max(1, length)}")
        self.begin = begin


@dataclass(frozen=True, slots=True)
class Clause:
    """One condition: at least the share `target` of the requests holds; `limit_ns` is the bound of a percentile."""

    text: str
    metric: str
    target: Fraction
    limit_ns: int | None = None

    def fates(self, judged: Judged, fluid_goals: NDArray[np.float64]) -> Fates:
        """Return the fate (R,) of requests that ended; `fluid_goals` (R,): the fluidity-index each one needs.

        A request that failed holds under no clause. UNREPORTED: `met` without a verdict, a reply without a token.
        """
        known, held = self._columns(judged, fluid_goals)
        fates = np.where(known, np.where(held, HELD, MISSED), UNREPORTED).astype(np.int8)
        fates[np.isin(judged.outcome, _FAILED)] = MISSED
        return fates

    def _columns(self, judged: Judged, fluid_goals: NDArray[np.float64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        if self.metric == "attainment":
            return judged.met_known, judged.met
        if self.metric == "fluidity_ok_share":
            column = judged.column("fluidity_index")
            return column.known, column.values >= fluid_goals
        limit_ns = self.limit_ns or 0
        if self.metric == "idle_p99":
            return judged.judged, judged.idle_ns <= limit_ns
        return judged.tokens > 0, judged.ttft_ns <= limit_ns


@dataclass(frozen=True, slots=True)
class CapacityObjective:
    """Clauses that must all hold."""

    text: str
    clauses: tuple[Clause, ...]


def fluid_goal(slo: SloClass) -> float:
    """Return the fluidity-index that a request of a class needs to count as fluid."""
    return float(slo.objective.fluidity_index or FLUIDITY_OK)


def parse_objective(text: str) -> CapacityObjective:
    """Read `METRIC >= SHARE` and `PERCENTILE <= DURATION`, joined by `&&`.

    Raises:
        ObjectiveError: the text with a caret, and what to write.
    """
    tokens = _tokens(text)
    clauses: list[Clause] = []
    place = 0
    while True:
        place = _clause(text, tokens, place, clauses)
        if place == len(tokens):
            return CapacityObjective(text.strip(), tuple(clauses))
        kind, begin, word = tokens[place]
        if kind != "and":
            raise ObjectiveError(text, begin, len(word), f"{word!r} follows a condition: join conditions by &&")
        place += 1


def _tokens(text: str) -> list[tuple[str, int, str]]:
    tokens = []
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            begin = at + len(text[at:]) - len(text[at:].lstrip())
            raise ObjectiveError(text, begin, 1, f"{text[begin]!r} cannot stand here")
        tokens.append((found.lastgroup, found.start(found.lastgroup), found[found.lastgroup]))
        at = found.end()
    return tokens


def _clause(text: str, tokens: list[tuple[str, int, str]], place: int, clauses: list[Clause]) -> int:
    """Read one clause from `place`, add it, and return the place behind it."""
    end = len(text.rstrip())
    parts = [*tokens[place : place + 3], *([("end", end, "")] * 3)][:3]
    (kind, begin, name), (sign_kind, sign_at, sign), (value_kind, value_at, value) = parts

    def refuse(at: int, word: str, message: str) -> NoReturn:
        raise ObjectiveError(text, at, len(word), message)

    if kind != "name":
        refuse(begin, name, f"a condition begins with one of {', '.join(METRICS)}")
    if name not in METRICS:
        refuse(begin, name, f"no metric {name!r}: {did_you_mean(name, METRICS)}")
    wanted = ">=" if name in _SHARES else "<="
    if sign_kind != "sign" or sign != wanted:
        refuse(sign_at, sign, f"{name} needs {wanted} here")
    if value_kind != "value":
        what = "a share, as 0.9" if name in _SHARES else f"a duration: {DURATION_ADVICE}"
        refuse(value_at, value, f"{name} {wanted} needs {what}")
    source = f"{name} {wanted} {value}"
    if name in _SHARES:
        clauses.append(Clause(source, name, _share(text, value_at, value)))
    else:
        clauses.append(Clause(source, name, _PERCENTILES[name], _limit(text, value_at, value)))
    return place + 3


def _share(text: str, at: int, word: str) -> Fraction:
    try:
        share = Fraction(word)
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share < 1:
        raise ObjectiveError(
            text,
            at,
            len(word),
            f"{word!r} is no share: write a number above 0 and below 1 (no run can show all of them)",
        )
    return share


def _limit(text: str, at: int, word: str) -> int:
    try:
        number: object = float(word)
    except ValueError:
        number = word
    try:
        limit_ns = parse_duration_ns(number)
    except ValueError as problem:
        raise ObjectiveError(text, at, len(word), f"{problem}: {DURATION_ADVICE}") from None
    if limit_ns <= 0:
        raise ObjectiveError(text, at, len(word), f"{word!r} is not longer than zero")
    return limit_ns
