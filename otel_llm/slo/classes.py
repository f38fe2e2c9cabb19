"""SLO classes: reading pace, deadlines, fluidity targets, benefit and objectives."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

CONTENT: Final = 0
REASONING: Final = 1
TOOL: Final = 2
KINDS: Final = ("content", "reasoning", "tool")
"""Kinds of token; the index is the code in arrays and packed records."""

OUTCOMES: Final = ("completed", "cancelled", "abandoned", "disconnected", "error", "lost")
"""Outcomes of a stream; the index is the code in arrays."""
ABORTED: Final = frozenset({"error", "disconnected"})
"""Outcomes caused by the server's side: never met, and charged with the class's abort penalty."""

NS_PER_S: Final = 1_000_000_000
EXPONENTIAL_CAP_S: Final = 60.0
"""Idle time beyond this costs no more under the exponential penalty: e^60 exceeds every sum of tokens."""

Attribute = str | int | float | bool
Policy = Literal["reading", "dslo", "ttft_tbt", "ttft_tpot", "e2e"]
Penalty = Literal["linear", "quadratic", "exponential"]


class UnknownClassError(LookupError):
    """A class is not in the SLO file; the text names the classes that are."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"no SLO class {name!r}: the file defines {', '.join(known)}")
        self.name = name
        self.known = known


@dataclass(frozen=True, slots=True)
class Deadline:
    """The condition under which a request counts as met.

    `first_ns` is `max_idle` for `reading`, `ttft` for `dslo`, `ttft_tbt` and `ttft_tpot`, and the whole allowance for
    `e2e`; `next_ns` is the time a further token may take, None if the policy has no such parameter.
    """

    policy: Policy = "reading"
    first_ns: int = NS_PER_S
    next_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """The first token's target by prompt length: linear between points, constant outside.

    `points`: (input tokens, ns) pairs, tokens strictly increasing, times not decreasing. Etalon section 4.1 asks for
    a first-token target that grows with the prompt.
    """

    points: tuple[tuple[int, int], ...]

    def at(self, input_tokens: int) -> int:
        """Return the target for a prompt of so many tokens, in ns, rounded to the nearest (ties to even)."""
        points = self.points
        if input_tokens <= points[0][0]:
            return points[0][1]
        for (left, low), (right, high) in pairwise(points):
            if input_tokens <= right:
                quotient, rest = divmod((input_tokens - left) * (high - low), right - left)
                half = 2 * rest - (right - left)
                return low + quotient + (half > 0 or (half == 0 and (low + quotient) % 2 == 1))
        return points[-1][1]


@dataclass(frozen=True, slots=True)
class Fluidity:
    """The targets of the fluidity-index (Etalon, section 4.1), in ns.

    `ttft_credit`: whether an early first token's spare time is kept (`carry`) or dropped; `count`: every deadline
    that passes inside a stall (`deadlines`, the paper's algorithm) or one miss a late token (`tokens`, its prose).
    """

    ttft: int | Curve = NS_PER_S
    tbt_ns: int = 50_000_000
    slack_ns: int = 0
    ttft_credit: Literal["carry", "drop"] = "carry"
    count: Literal["deadlines", "tokens"] = "deadlines"

    def first_deadline_ns(self, input_tokens: int | None = None) -> int | None:
        """Return the first token's deadline, scheduling slack included; None if a curve lacks its prompt length."""
        if isinstance(self.ttft, int):
            return self.ttft + self.slack_ns
        return None if input_tokens is None else self.ttft.at(input_tokens) + self.slack_ns


@dataclass(frozen=True, slots=True)
class Benefit:
    """The weight of idle time against tokens (Wang et al., equation 10); `abort_penalty` in tokens."""

    alpha: float = 2.5
    penalty: Penalty = "linear"
    abort_penalty: float = 0.0

    def penalty_tokens(self, idle_ns: int) -> float:
        """Return alpha f(l), the cost of idle time, in tokens."""
        idle_s = idle_ns / 1e9
        if self.penalty == "linear":
            return self.alpha * idle_s
        if self.penalty == "quadratic":
            return self.alpha * (idle_s * idle_s)
        return self.alpha * math.expm1(min(idle_s, EXPONENTIAL_CAP_S))


@dataclass(frozen=True, slots=True)
class Objective:
    """A promise over many requests; exact fractions of the decimal text, None if nothing is promised.

    `fluidity_index` is promised to a `share` of the requests, `attainment` is the share of requests that meet their
    deadlines.
    """

    fluidity_index: Fraction | None = None
    share: Fraction | None = None
    attainment: Fraction | None = None


@dataclass(frozen=True, slots=True)
class SloClass:
    """One class of requests; the defaults are those of an absent key in the SLO file.

    `pace_ns` is P, the reader's time for a token; `start_ns` the start-up allowance of the reading line;
    `reads` the codes of the kinds of token that the user reads.
    """

    name: str = "chat"
    match: tuple[tuple[str, Attribute], ...] = ()
    pace_ns: int = 200_000_000
    priority: int = 0
    reads: tuple[int, ...] = (CONTENT,)
    start_ns: int = 0
    deadline: Deadline = field(default_factory=Deadline)
    fluidity: Fluidity = field(default_factory=Fluidity)
    benefit: Benefit = field(default_factory=Benefit)
    objective: Objective = field(default_factory=Objective)

    @property
    def token_time_ns(self) -> int | None:
        """Return the promised time per token: 1 / reading speed, `tpot` or `tbt`; None for `e2e`."""
        return self.pace_ns if self.deadline.policy == "reading" else self.deadline.next_ns

    @property
    def first_token_ns(self) -> int | None:
        """Return the promised time to the first token: `ttft`, of `reading` `max_idle`; None for `e2e`."""
        return None if self.deadline.policy == "e2e" else self.deadline.first_ns

    def matches(self, attributes: Mapping[str, Attribute]) -> bool:
        """Tell whether every `match` pair equals an attribute; a class without pairs matches nothing."""
        return bool(self.match) and all(
            key in attributes and _same(attributes[key], wanted) for key, wanted in self.match
        )


@dataclass(frozen=True, slots=True)
class SloClasses:
    """The classes of one SLO file in file order, and the rule that gives a request its class."""

    classes: tuple[SloClass, ...]
    default: str
    only: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names in file order."""
        return tuple(slo.name for slo in self.classes)

    def get(self, name: str) -> SloClass:
        """Return the class of that name, or raise UnknownClassError."""
        found = self._named(name)
        if found is None:
            raise UnknownClassError(name, self.names)
        return found

    def _named(self, name: str) -> SloClass | None:
        for slo in self.classes:
            if slo.name == name:
                return slo
        return None

    def choose(self, declared: str | None, attributes: Mapping[str, Attribute]) -> tuple[SloClass, bool]:
        """Return a request's class, and whether it declared a name that is not defined here.

        The declared name wins, then the first class whose `match` pairs all hold, then the default.
        """
        named = None if declared is None else self._named(declared)
        unknown = declared is not None and named is None
        if self.only is not None:
            return self.get(self.only), unknown
        if named is not None:
            return named, False
        for slo in self.classes:
            if slo.matches(attributes):
                return slo, unknown
        return self.get(self.default), unknown

    def judging(self, name: str) -> SloClasses:
        """Return the same classes, with every request judged by one of them; raises UnknownClassError."""
        self.get(name)
        return replace(self, only=name)


def _same(left: Attribute, right: Attribute) -> bool:
    # Python has True == 1; an attribute that says `true` does not say `1`.
    return isinstance(left, bool) == isinstance(right, bool) and left == right
