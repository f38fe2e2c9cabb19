"""Lints of time: shorter than the measurement, longer than the subject lives, or based on too few requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm import semconv
from otel_llm.config.durations import parse_duration_ns
from otel_llm.core.rule_tables import POLL_EVERY_NS
from otel_llm.rules.language.facts import FACTS, WINDOWS
from otel_llm.rules.language.intervals import Choice, Span, domain
from otel_llm.rules.language.satisfiable import boxes, extent, full_box
from otel_llm.rules.lint.lints import LintFinding, LocatedRule, shown
from otel_llm.rules.lint.unit_lints import parts, tree, with_literals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otel_llm.rules.language.intervals import Box
    from otel_llm.rules.language.types import Typed
    from otel_llm.rules.lint.lints import LocatedRule


_S: Final = 1_000_000_000
_SPEAKS_AGAIN_NS: Final = 1 * _S
"""DESIGN section 3: a silent stream sends an empty segment after 250 ms, after 500 ms, then every second."""
_LOST_S: Final = 120.0
"""After so long without a segment a stream is given up (`collect --lost-after`, its default)."""
_STREAM_LIFE_NS: Final = 600 * _S
"""Few streams live for ten minutes; a rule that waits so long has nothing left to save."""
_SHARES: Final = (
    *("attainment", "burn_rate", "idle_p99", "queue_p99"),
    *("fluidity_ok_share", "cut_share", "aborted_share"),
)
_RATES: Final = ("smooth_goodput", "goodput")
_RESOLUTIONS: Final = (
    (
        "gap_seconds",
        semconv.FLUSH_INTERVAL_S,
        f"tokens are sent every {semconv.FLUSH_INTERVAL_S:g} s: those under way look like this gap",
    ),
    (
        "silence_seconds",
        1 + semconv.FLUSH_INTERVAL_S,
        "a silent stream states its newest byte once a second: bytes under way look like this silence",
    ),
)
"""Facts on time since something was received, with the least seconds that a threshold can tell, and why."""
_WINDOW_NS: Final = {window: (72 * 3600 * _S if window == "3d" else parse_duration_ns(window)) for window in WINDOWS}


def timing_lints(located: LocatedRule) -> Iterator[LintFinding]:
    """Find what is odd in how a rule's condition relates to time and to few requests."""
    node = tree(located.rule.when)
    held = boxes(node, True, full_box(node, classes=located.classes))
    if not held:
        return
    yield from _resolution(located, node, held)
    yield from _too_long(located, node, held)
    yield from _stale(located, node, held)
    yield from _few(located, node, held)
    yield from _flapping(located, node)


def _resolution(located: LocatedRule, node: Typed, held: list[Box]) -> Iterator[LintFinding]:
    rule, path = located.rule, located.path
    for name, least_s, message in _RESOLUTIONS:
        spans = [one.get(name) for one in held]
        if any(isinstance(span, Span) and 0 < span.low < least_s for span in spans):
            cause = next((part for part in parts(node) for fact, _ in with_literals(part) if fact.name == name), None)
            if cause is not None:
                remedy = f"ask for {least_s:g} or more"
                yield LintFinding("below-resolution", (*path, "when"), message, remedy, rule.when.text, cause)
    for key, value in (("for", rule.for_ns), ("keep_firing_for", rule.keep_firing_for_ns)):
        if rule.scope != "stream" and 0 < value < _S:
            message = "instances and classes are evaluated once a second"
            yield LintFinding("below-resolution", (*path, key), message, "write 1s or more")
        elif rule.scope == "stream" and rule.when.motion.polled and 0 < value < POLL_EVERY_NS:
            message = "what `when` uses is evaluated every 100 ms"
            yield LintFinding("below-resolution", (*path, key), message, "write 100ms or more")
    if rule.scope == "stream" and rule.when.ages and rule.max_fact_age_ns < _SPEAKS_AGAIN_NS:
        message = "a silent stream speaks once a second: between, its facts would be missing"
        yield LintFinding(
            "below-resolution", (*path, "max_fact_age"), message, "write more than 1s; the default is 1500ms"
        )


def _too_long(located: LocatedRule, node: Typed, held: list[Box]) -> Iterator[LintFinding]:
    rule, at = located.rule, (*located.path, "for")
    if rule.scope != "stream":
        windows = [_WINDOW_NS[window] for name in rule.when.facts if (window := _window(name))]
        if windows and rule.for_ns >= max(windows):
            yield LintFinding("for-too-long", at, "longer than every window in `when`", "use a longer window instead")
        return
    if rule.for_ns >= _STREAM_LIFE_NS:
        yield LintFinding("for-too-long", at, "few streams live so long", "shorten it")
        return
    age = extent("fact_age_seconds", held)
    if age is not None and age.low + rule.for_ns / _S >= _LOST_S:
        message = f"a stream that is silent for {_LOST_S:g} s is given up for lost, and the rule with it"
        if rule.for_ns:
            yield LintFinding("for-too-long", at, message, "shorten it")
        else:
            yield LintFinding("for-too-long", (*located.path, "when"), message, "ask for less", rule.when.text, node)


def _stale(located: LocatedRule, node: Typed, held: list[Box]) -> Iterator[LintFinding]:
    rule = located.rule
    age = extent("fact_age_seconds", held)
    if age is None or rule.on_missing == "fire" or age.low * _S <= rule.max_fact_age_ns:
        return
    ageing = [name for name in rule.when.facts if FACTS[name].ages]
    if ageing:
        message = f"{ageing[0]} is missing once facts are older than max_fact_age, {rule.max_fact_age_ns / _S:g} s"
        yield LintFinding("stale-facts", (*located.path, "when"), message, "", rule.when.text, node)


def _few(located: LocatedRule, node: Typed, held: list[Box]) -> Iterator[LintFinding]:
    rule = located.rule
    for part in parts(node):
        counts = _counts_for(part.name) if part.op == "fact" else ()
        rate = _stem(part.name) in _RATES
        if not any(_speaks(part.name, one) and not _enough(counts, one, 1 if rate else 2) for one in held if counts):
            continue
        message = f"{part.name} is 0 without requests, too" if rate else f"{part.name} speaks for a single one"
        advice = f"add `{counts[-1]} >= 20`, or however many make it mean something"
        yield LintFinding("no-minimum-count", (*located.path, "when"), message, advice, rule.when.text, part)
        return


def _flapping(located: LocatedRule, node: Typed) -> Iterator[LintFinding]:
    rule = located.rule
    if rule.for_ns or rule.keep_firing_for_ns or rule.resolve_when is not None:
        return
    if all(action.verb != "alert" for action in rule.actions):
        return
    for part in parts(node):
        for fact, _ in with_literals(part):
            if fact.type == "double" and part.op in ("<", "<=", ">", ">="):
                message = f"{shown(rule.when.text, part)} is an alert each time that {fact.name} crosses it"
                yield LintFinding("flaps", (*located.path, "when"), message, "", rule.when.text, part)
                return


def _counts_for(name: str) -> tuple[str, ...]:
    """Return the counts that bound a share (one must be large for the share to mean something); write the last one."""
    if name == "fluidity_index":
        return ("tokens_read", "tokens", "deadlines")
    if name == "starving_share":
        return ("starving", "streams")
    if _stem(name) in (*_SHARES, *_RATES):
        # So many in a shorter window are in the longer one too, and so are the streams in flight now.
        counts = tuple(f"requests_{short}" for short in WINDOWS[: WINDOWS.index(_window(name)) + 1])
        return ("streams", *counts) if _stem(name) in _RATES else counts
    return ()


def _speaks(name: str, one: Box) -> bool:
    """Tell whether a share decides something in a box; for a rate, whether it is as low without requests."""
    span = one[name]
    decides = span != domain(name)
    return decides and (_stem(name) not in _RATES or (isinstance(span, Span) and span.low <= 0 <= span.high))


def _enough(counts: tuple[str, ...], one: Box, least: int) -> bool:
    return any(isinstance(span := one.get(name), Span) and span.low >= least for name in counts)


def _window(name: str) -> str:
    return next((window for window in WINDOWS if name.endswith(f"_{window}")), "")


def _stem(name: str) -> str:
    return name.removesuffix(f"_{_window(name)}")


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
    # If the classes are not known, a rule is not assumed to meet the fastest reader.
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
