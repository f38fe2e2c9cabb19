"""Strategies for requests and classes: small whole times, so that ties, bursts and exact deadlines are common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from hypothesis import strategies as st

from otel_llm.slo.classes import (
    KINDS,
    OUTCOMES,
    Benefit,
    Curve,
    Deadline,
    Fluidity,
    Objective,
    SloClass,
)

SCALES = (1, 7, 1_000_003, 60_000_000_000)


@dataclass(frozen=True)
class Request:
    """One recorded request as its parts."""

    tokens_ns: list[int]
    kinds: list[int] | None
    commit_ns: int
    end_ns: int
    outcome: str
    input_tokens: int | None

    def moved(self, shift_ns: int) -> Request:
        """Return the request with all its instants moved."""
        times_ns = [time + shift_ns for time in self.tokens_ns]
        return replace(self, tokens_ns=times_ns, commit_ns=self.commit_ns + shift_ns, end_ns=self.end_ns + shift_ns)


def lengths(scale: int, most: int = 12, least: int = 0) -> st.SearchStrategy[int]:
    return st.integers(least, most).map(lambda steps: steps * scale)


@st.composite
def first_targets(draw: st.DrawFn, scale: int) -> int | Curve:
    if draw(st.booleans()):
        return draw(lengths(scale))
    tokens = sorted(draw(st.sets(st.integers(0, 30), min_size=1, max_size=4)))
    times = sorted(draw(st.lists(lengths(scale), min_size=len(tokens), max_size=len(tokens))))
    return Curve(tuple(zip(tokens, times, strict=True)))


@st.composite
def deadlines(draw: st.DrawFn, scale: int) -> Deadline:
    policy = draw(st.sampled_from(("reading", "dslo", "ttft_tbt", "ttft_tpot", "e2e")))
    first = draw(lengths(scale, 30))
    if policy in ("reading", "e2e"):
        return Deadline("reading" if policy == "reading" else "e2e", first)
    return Deadline(policy, first, draw(lengths(scale)))  # type: ignore[arg-type]


@st.composite
def slo_classes(draw: st.DrawFn, scale: int = 1) -> SloClass:
    return SloClass(
        pace_ns=draw(lengths(scale, least=1)),
        reads=tuple(sorted(draw(st.sets(st.sampled_from(range(len(KINDS))), min_size=1)))),
        start_ns=draw(lengths(scale)),
        deadline=draw(deadlines(scale)),
        fluidity=Fluidity(
            ttft=draw(first_targets(scale)),
            tbt_ns=draw(lengths(scale, least=1)),
            slack_ns=draw(lengths(scale, 4)),
            ttft_credit=draw(st.sampled_from(("carry", "drop"))),
            count=draw(st.sampled_from(("deadlines", "tokens"))),
        ),
        benefit=Benefit(
            alpha=draw(st.sampled_from((0.0, 0.1, 1.0, 2.5, 10.0))),
            penalty=draw(st.sampled_from(("linear", "quadratic", "exponential"))),
            abort_penalty=draw(st.sampled_from((0.0, 0.3, 20.0))),
        ),
        objective=Objective(fluidity_index=draw(st.sampled_from((None, Fraction(1, 2), Fraction(9, 10), Fraction(1))))),
    )


@st.composite
def requests(draw: st.DrawFn, scale: int = 1, most_tokens: int = 12, *, early: bool = True) -> Request:
    """Draw a request; `early`: whether tokens may have been recorded before the commit."""
    commit = draw(st.sampled_from((0, 5, 1_790_000_000_123_456_789)))
    low = -3 if early else 0
    times = draw(st.lists(st.integers(low, 60), max_size=most_tokens))
    jitter = draw(st.integers(0, scale - 1))
    tokens = [commit + time * scale + (jitter if time > 0 else 0) for time in times]
    kinds = draw(st.none() | st.lists(st.sampled_from(range(len(KINDS))), min_size=len(tokens), max_size=len(tokens)))
    return Request(
        tokens_ns=tokens,
        kinds=kinds,
        commit_ns=commit,
        end_ns=commit + draw(st.integers(-2, 80)) * scale,
        outcome=draw(st.sampled_from(OUTCOMES)),
        input_tokens=draw(st.none() | st.integers(0, 40)),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[SloClass, Request]:
    """Draw a class and a request of one order of magnitude."""
    scale = draw(st.sampled_from(SCALES))
    return draw(slo_classes(scale)), draw(requests(scale))
