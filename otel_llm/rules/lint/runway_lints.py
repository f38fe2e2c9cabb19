"""The lint of runways: thresholds under which every healthy stream is right after its first token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.rules.language.intervals import Choice, Span
from otel_llm.rules.language.satisfiable import boxes, extent, whole_box
from otel_llm.rules.lint.lints import Complaint
from otel_llm.rules.lint.unit_lints import parts, tree, with_literals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otel_llm.rules.language.intervals import Box
    from otel_llm.rules.language.types import Typed
    from otel_llm.rules.lint.lints import Placed

_RUNWAY: Final = "runway_seconds"
_INSTANT_S: Final = 1e-9
"""How long after the first token it is looked at."""
_SOON_S: Final = 1.0
"""How long a healthy stream takes to its first token, at most."""
_AFTER_FIRST_TOKEN: Final[Mapping[str, tuple[float, float]]] = {
    "tokens": (1, 1),
    "tokens_read": (1, 1),
    "age_seconds": (0.0, _SOON_S),
    "ttft_seconds": (0.0, _SOON_S),
    "gap_seconds": (_INSTANT_S, _INSTANT_S),
    "idle_seconds": (0.0, _SOON_S),
    "idle_decode_seconds": (0.0, 0.0),
    "deadlines": (0, 1),
    "deadline_misses": (0, 0),
    "fluidity_index": (1.0, 1.0),
    "fact_age_seconds": (0.0, _SOON_S),
}
"""The facts of a healthy stream then, but for its runway, from which to which number."""
_MISSING_THEN: Final = "rate_tokens_per_second"
"""Missing until the second token, and with it any condition that uses it."""
_LONG_S: Final = (1e9, float("inf"))
"""Runways of which none is short: a condition that holds for them too has no threshold there."""


def runway_lints(placed: Placed) -> Iterator[Complaint]:
    """Find a condition that holds right after the first token of every stream of a class, since its runway is short."""
    rule = placed.rule
    if rule.scope != "stream" or _RUNWAY not in rule.when.facts or _MISSING_THEN in rule.when.facts:
        return
    node = tree(rule.when)
    for name, read_s in _classes(placed):
        left_s = read_s - _INSTANT_S
        if not _held(placed, node, name, (left_s, left_s)) or _held(placed, node, name, _LONG_S):
            continue
        threshold = extent(_RUNWAY, _held(placed, node, name, (left_s, float("inf"))))
        # At twice the reading speed the runway grows by a second each second.
        if threshold is None or rule.for_ns / 1e9 > max(0.0, threshold.high - read_s):
            continue
        message = f"a stream of class {name} has {read_s:.3g} s of text right after its first token, however healthy"
        cause = next((part for part in parts(node) for fact, _ in with_literals(part) if fact.name == _RUNWAY), node)
        yield Complaint("fires-at-first-token", (*placed.path, "when"), message, "", rule.when.text, cause)
        return


def _classes(placed: Placed) -> list[tuple[str, float]]:
    """Return the classes that a rule may be about, and how long a token takes to be read."""
    found = list(placed.token_read_s.items())
    # Of classes that are not known it is not said that every rule meets the fastest reader.
    return found[:1] if placed.classes is None and "slo_class" not in placed.rule.when.facts else found


def _held(placed: Placed, node: Typed, slo_class: str, runway_s: tuple[float, float]) -> list[Box]:
    """Return the facts for which a condition holds right after the first token of a class, with these runways."""
    (one,) = whole_box(node, classes=placed.classes)
    given: Box = {}
    for fact, values in one.items():
        limits = runway_s if fact == _RUNWAY else _AFTER_FIRST_TOKEN.get(fact)
        narrowed = values
        if isinstance(values, Span) and limits is not None:
            found = values.meet(Span(*limits, whole=values.whole))
            if found is None:
                return []
            narrowed = found
        elif isinstance(values, Choice) and fact == "slo_class":
            chosen = values.only(frozenset((slo_class,)))
            if chosen is None:
                return []
            narrowed = chosen
        given[fact] = narrowed
    return boxes(node, True, [given])
