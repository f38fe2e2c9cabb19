"""The facts of an instance or a class at an instant, and which of them a set of rules needs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from otel_llm.rules.language.facts import FACTS, WINDOWS, Scope
from otel_llm.slo.quantiles import P99

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from otel_llm.rules.decisions.decision_records import Labels
    from otel_llm.rules.engine.sliding_window import SlidingWindow, Totals
    from otel_llm.rules.files.ruleset import Rule
    from otel_llm.rules.language.tokens import Value
    from otel_llm.slo.classes import Objective

SECOND_NS: Final = 1_000_000_000
GROUP_SCOPES: Final[tuple[Scope, ...]] = ("instance", "class")
LABELS_OF: Final[Mapping[Scope, tuple[str, ...]]] = {
    scope: tuple(fact.name for fact in FACTS.values() if scope in fact.scopes and fact.type == "string")
    for scope in GROUP_SCOPES
}
"""The labels that identify the subjects of a scope."""
WINDOW_NS: Final[Mapping[str, int]] = {
    name: int(name[:-1]) * {"m": 60, "h": 3600, "d": 86_400}[name[-1]] * SECOND_NS for name in WINDOWS
}
_STARVING: Final = frozenset({"starving", "starving_share"})


@dataclass(frozen=True, slots=True)
class Needs:
    """The data to keep for the rules of one scope.

    `windows`: names; `lasting_ns`: how long after its last stream a subject may still get decisions; `starving_ns`:
    the greatest ages of telemetry (ns) up to which streams count as known to starve; `rates`, `benefit`: whether a rule
    uses an amount per second, and smooth goodput.
    """

    windows: tuple[str, ...] = ()
    lasting_ns: int = 0
    starving_ns: tuple[int, ...] = ()
    rates: bool = False
    benefit: bool = False


def needs(rules: Iterable[Rule]) -> Needs:
    """Return the data that rules of one scope need."""
    windows: set[str] = set()
    ages: set[int] = set()
    stems: set[str] = set()
    times_ns = [0]
    for rule in rules:
        times_ns.append(rule.for_ns + rule.keep_firing_for_ns)
        conditions = [rule.when, rule.resolve_when, *(action.only_if for action in rule.actions)]
        for name in {name for condition in conditions if condition is not None for name in condition.facts}:
            stem, window = split(name)
            if window is not None:
                windows.add(window)
            if name in _STARVING:
                ages.add(rule.max_fact_age_ns)
            stems.add(stem)
    return Needs(
        windows=tuple(window for window in WINDOWS if window in windows),
        lasting_ns=max((WINDOW_NS[window] for window in windows), default=0) + max(times_ns),
        starving_ns=tuple(sorted(ages)),
        rates=not stems.isdisjoint({"goodput", "smooth_goodput"}),
        benefit="smooth_goodput" in stems,
    )


def split(name: str) -> tuple[str, str | None]:
    """Return a fact's name without its window, and the window; None if it has none."""
    stem, _, window = name.rpartition("_")
    return (stem, window) if window in WINDOW_NS else (name, None)


@dataclass(slots=True)
class InFlightCounts:
    """Counts of streams in flight; `known`: by the age (ns) up to which telemetry counts, known and starving ones."""

    streams: int
    known: dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ScopeFacts:
    """One instance or class at an instant of the collector's clock.

    `since_ns`: since when each window has been filled; `heard_ns`: when anything was last received about it;
    `objective`: the class's, None if the class no longer exists.
    """

    scope: Scope
    labels: Labels
    now_ns: int
    heard_ns: int
    in_flight: InFlightCounts
    windows: Mapping[str, SlidingWindow]
    since_ns: Mapping[str, int]
    objective: Objective | None

    def value(self, name: str, max_age_ns: int) -> Value | None:
        """Return a fact; None if it is missing."""
        stem, window = split(name)
        if window is not None:
            return _WINDOWED[stem](self, window, self.windows[window].total(self.now_ns))
        if name == "streams":
            return self.in_flight.streams
        if name in _STARVING:
            return self._starving(name, max_age_ns)
        return dict(self.labels)[name]

    def rate(self, window: str, amount: float) -> float | None:
        """Return an amount per second of a window; None if the window is not filled as far as it reaches."""
        reach_ns = self.windows[window].reach_ns(self.now_ns)
        return None if self.since_ns[window] > self.now_ns - reach_ns else amount / (reach_ns / SECOND_NS)

    def next_change_ns(self, *, rates: bool) -> int | None:
        """Return the next instant at which a fact may change without a receipt; None if none will.

        `rates`: whether a rule uses an amount per second, which falls as the window's reach grows.
        """
        instants = []
        for window, rolling in self.windows.items():
            total = rolling.total(self.now_ns)
            if rates and (total.goodput_tokens or total.benefit.value):
                return self.now_ns + 1
            if (change_ns := rolling.next_change_ns()) is not None:
                instants.append(change_ns)
            if rates and self.since_ns[window] > self.now_ns - rolling.reach_ns(self.now_ns):
                instants.append(self.now_ns - rolling.reach_ns(self.now_ns) + rolling.window_ns + 1)
        return min(instants, default=None)

    def _starving(self, name: str, max_age_ns: int) -> Value | None:
        known, starving = self.in_flight.known[max_age_ns]
        if name == "starving":
            return starving if known or not self.in_flight.streams else None
        return starving / known if known else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _burn_rate(facts: ScopeFacts, total: Totals) -> float | None:
    wanted = None if facts.objective is None else facts.objective.attainment
    judged = total.met_true + total.met_false
    if wanted is None or wanted >= 1 or not judged:
        return None
    return float(Fraction(total.met_false, judged) / (1 - wanted))


def _fluidity_ok_share(facts: ScopeFacts, total: Totals) -> float | None:
    promised = facts.objective is not None and facts.objective.fluidity_index is not None
    return _share(total.fluid_kept, total.fluid) if promised else None


_WINDOWED: Final[dict[str, Callable[[ScopeFacts, str, Totals], Value | None]]] = {
    "requests": lambda _facts, _window, total: total.requests_ended,
    "attainment": lambda _facts, _window, total: _share(total.met_true, total.met_true + total.met_false),
    "burn_rate": lambda facts, _window, total: _burn_rate(facts, total),
    "smooth_goodput": lambda facts, window, total: facts.rate(window, total.benefit.value),
    "goodput": lambda facts, window, total: facts.rate(window, total.goodput_tokens),
    "idle_p99": lambda _facts, _window, total: total.idle.quantile(P99),
    "queue_p99": lambda _facts, _window, total: total.queue.quantile(P99),
    "fluidity_ok_share": lambda facts, _window, total: _fluidity_ok_share(facts, total),
    "cut_share": lambda _facts, _window, total: _share(total.cut, total.requests_ended),
    "aborted_share": lambda _facts, _window, total: _share(total.aborted, total.requests_ended),
}
"""The function that reads each fact over a window; a test compares its keys with the table of facts."""
