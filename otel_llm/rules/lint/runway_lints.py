"""The lint of runways: thresholds below which every healthy stream is right after its first token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.rules.language.intervals import Choice, Span
from otel_llm.rules.language.satisfiable import boxes, extent, full_box
from otel_llm.rules.lint.lints import LintFinding
from otel_llm.rules.lint.unit_lints import parts, tree, with_literals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otel_llm.rules.language.intervals import Box
    from otel_llm.rules.language.types import Typed
    from otel_llm.rules.lint.lints import LocatedRule

_RUNWAY: Final = "runway_seconds"
_INSTANT_S: Final = 1e-9
"""The instant of the check, in seconds after the first token."""
_SOON_S: Final = 1.0
"""The longest time to the first token of a healthy stream."""
_AFTER_FIRST_TOKEN: Final[Mapping[str, tuple[float, float]]] = {
    "tokens": (1, 1),
    "tokens_read": (1, 1),
    "age_seconds": (0.0, _SOON_S),
    "ttft_seconds": (0.0, _SOON_S),
    "gap_seconds": (_INSTANT_S, _INSTANT_S),
    "silence_seconds": (_INSTANT_S, _INSTANT_S),
    "idle_seconds": (0.0, _SOON_S),
    "idle_decode_seconds": (0.0, 0.0),
    "deadlines": (0, 1),
    "deadline_misses": (0, 0),
    "fluidity_index": (1.0, 1.0),
    "fact_age_seconds": (0.0, _SOON_S),
}
"""The facts of a healthy stream at that instant, but for its runway: the least and the largest number."""
_MISSING_THEN: Final = "rate_tokens_per_second"
"""Facts that are missing until the second token, and with them any condition that uses them."""
_LONG_S: Final = (1e9, float("inf"))
"""Long runways only: a condition that holds for them too has no threshold on the runway."""


def runway_lints(located: LocatedRule) -> Iterator[LintFinding]:
    """Find a condition that holds right after the first token of every stream of a class, since its runway is short."""
    rule = located.rule
    if rule.scope != "stream" or _RUNWAY not in rule.when.facts or _MISSING_THEN in rule.when.facts:
        return
    node = tree(rule.when)
    for name, read_s in _classes(located):
        left_s = read_s - _INSTANT_S
        if not _holding(located, node, name, (left_s, left_s)) or _holding(located, node, name, _LONG_S):
            continue
        threshold = extent(_RUNWAY, _holding(located, node, name, (left_s, float("inf"))))
        # At twice the reading speed the runway grows by a second each second.
        if threshold is None or rule.for_ns / 1e9 > max(0.0, threshold.high - read_s):
            continue
        message = f"a stream of class {name} has {read_s:.3g} s of text right after its first token, however healthy"
        cause = next((part for part in parts(node) for fact, _ in with_literals(part) if fact.name == _RUNWAY), node)
        yield LintFinding("fires-at-first-token", (*located.path, "when"), message, "", rule.when.text, cause)
        return


def _classes(located: LocatedRule) -> list[tuple[str, float]]:
    """Return the classes to which a rule may apply, and the seconds in which a token is read."""
    found = list(located.token_read_s.items())
    # Where the classes are not known, a rule is not assumed to meet the fastest reader.
    return found[:1] if located.classes is None and "slo_class" not in located.rule.when.facts else found


def _holding(located: LocatedRule, node: Typed, slo_class: str, runway_s: tuple[float, float]) -> list[Box]:
    """Return the facts for which a condition holds right after the first token of a class, with these runways."""
    (one,) = full_box(node, classes=located.classes)
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
