"""Rules of scopes instance and class against an oracle: what ended is noted where it is judged, and added up anew.

`pytest --hypothesis-profile=long tests/evaluate/test_scope_oracle.py` tries 25 times as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple

from hypothesis import example, given, settings
from rules.scripted import ruleset
from support.chance import chances
from support.core.core_fleets import Fleet, Seen, advances, fleet
from support.evaluate.groups import scoped
from support.examples import examples

from otel_llm.evaluate.streams.final_verdict import EndedStream
from otel_llm.evaluate.streams.stream_in_flight import Group, StreamInFlight
from otel_llm.rules.decisions.decision_records import Decision, Labels
from otel_llm.rules.files.ruleset import Rule, RuleSet
from otel_llm.slo.classes import Objective, SloClasses
from otel_llm.slo.quantiles import P99, Sketch
from otel_llm.slo.verdict import Verdict

SECOND = 1_000_000_000
WINDOWS = {"1m": 60, "5m": 300}
CONDITIONS = (
    "requests_1m >= 3 && attainment_1m < 0.7",
    "requests_5m >= 2",
    "burn_rate_1m > 2.0",
    "aborted_share_5m > 0.2 || requests_1m == 1",
    "goodput_1m < 0.3",
    "fluidity_ok_share_1m < 0.6 && requests_1m > 1",
    'slo_class == "c0" && attainment_5m <= 0.5',
    "idle_p99_1m > 1.0",
)


Ended = tuple[int, Verdict | None, str]
"""The second at which a request counts, its verdict and outcome."""


class Life(NamedTuple):
    """From when to when an instance or class is followed, seconds; whether it is over then."""

    born_s: int
    last_s: int
    over: bool


@dataclass
class Noting(Seen):
    """Notes what is judged, and when."""

    noted: list[tuple[int, Group, Verdict | None, str]] = field(default_factory=list)

    def streams_judged(self, ended: Sequence[EndedStream[StreamInFlight]]) -> None:
        super().streams_judged(ended)
        for stream, _, verdict, _, row in ended:
            self.noted.append((self.evaluator.now_ns, stream.group, verdict, str(row()["outcome"])))


@dataclass
class Stepped(Seen):
    """Advance to each whole second, and note what is in flight then."""

    flying: list[tuple[int, Group]] = field(default_factory=list)
    end_s: int = 0

    def run_by_seconds(self) -> None:
        deliveries = list(self.fleet.deliveries)
        self.end_s = self.fleet.end_ns // SECOND
        for now_s in range(-(-deliveries[0].receipt_ns // SECOND), self.end_s + 1):
            while deliveries and deliveries[0].receipt_ns <= now_s * SECOND:
                self.take(deliveries.pop(0))
            self.evaluator.advance(now_s * SECOND)
            table = self.evaluator.table
            self.flying += [(now_s, table.groups[int(table.group[slot])]) for slot in table.slots_in_flight()]


def rules_of(random: Random) -> RuleSet:
    lines = ["version: 1", "groups:"]
    for scope in ("class", "instance"):
        lines += [f"- name: {scope}", f"  scope: {scope}", "  rules:"]
        for number, when in enumerate(random.sample(CONDITIONS, random.randint(1, 3))):
            lines += [f"  - rule: {scope}{number}", f"    when: {when!r}"]
            lines += [f"    for: {random.choice(('0s', '0s', '1s', '2500ms', '20s'))}"]
            lines += [f"    keep_firing_for: {random.choice(('0s', '0s', '3s', '30s'))}"]
            lines += [f"    on_missing: {random.choice(('hold', 'hold', 'false', 'fire'))}"]
            if random.random() < 0.3:
                lines += ["    resolve_when: 'requests_1m == 0'"]
            lines += ["    actions: [{alert: {name: A}}]"]
    return ruleset("\n".join([*lines, ""]))


def drawn_fleet(random: Random) -> Fleet:
    drawn = fleet(
        random, streams=random.randint(2, 25), calm=random.random() < 0.6, spread_s=random.choice((5, 60, 200))
    )
    objective = Objective(attainment=Fraction(9, 10), fluidity_index=Fraction(1, 2))
    known = SloClasses(tuple(replace(one, objective=objective) for one in drawn.classes.classes), drawn.classes.default)
    return replace(drawn, classes=known, rules=rules_of(random))


def labels_of(scope: str, group: Group) -> Labels:
    names = dict(zip(("slo_class", "model", "instance", "measured_at"), group[:4], strict=True))
    if scope == "class":
        del names["instance"]
    return tuple(sorted(names.items()))


def facts_at(now_s: int, window: str, ended: list[tuple[int, Verdict | None, str]], since_s: int) -> dict[str, Any]:
    """Return the facts over a window: of the sixtieth that a second lies in, and the 59 before."""
    step = WINDOWS[window] // 60
    begin_s = (-(-now_s // step) - 60) * step
    inside = [(verdict, outcome) for at_s, verdict, outcome in ended if begin_s < at_s <= now_s]
    verdicts = [verdict for verdict, _ in inside if verdict is not None]
    met = sum(one.met is True for one in verdicts)
    missed = sum(one.met is False for one in verdicts)
    due = [one for one in verdicts if one.deadlines]
    fluid = [one for one in due if (one.deadlines - one.deadline_misses) * 2 >= one.deadlines]  # type: ignore[operator]
    idle = Sketch()
    for one in verdicts:
        if one.idle_ns is not None:
            idle.add(one.idle_ns / 1e9)
    tokens = sum(one.tokens_read for one in verdicts if one.met)
    judged = met + missed
    return {
        f"requests_{window}": len(inside),
        f"attainment_{window}": met / judged if judged else None,
        f"burn_rate_{window}": float(Fraction(missed, judged) * 10) if judged else None,
        f"aborted_share_{window}": sum(o in ("error", "disconnected") for _, o in inside) / len(inside)
        if inside
        else None,
        f"goodput_{window}": tokens / (now_s - begin_s) if since_s <= begin_s else None,
        f"fluidity_ok_share_{window}": len(fluid) / len(due) if due else None,
        f"idle_p99_{window}": idle.quantile(P99),
    }


Flip = tuple[str, str, str, int, Labels]


def walk(rule: Rule, labels: Labels, lives: list[Life], ended: list[Ended]) -> list[Flip]:
    """Walk the seconds of each life of an instance or class with a rule's states written out."""
    found: list[Flip] = []
    requested = {window for window in WINDOWS for name in _names(rule) if name.endswith(window)}
    for life in lives:
        state, value, since = "inactive", None, 0
        for now_s in range(life.born_s, life.last_s + 1):
            known: dict[str, Any] = dict(labels)
            for window in requested:
                known |= facts_at(now_s, window, [one for one in ended if one[0] >= life.born_s], life.born_s)
            values = [known[name] for name in rule.when.facts]
            truth = None if None in values else bool(rule.when.program.run(*values))
            if truth is not None or rule.on_missing != "hold":
                holds = rule.on_missing == "fire" if truth is None else truth
                if holds != value:
                    value, since = holds, now_s
                if state == "firing":
                    ready = not holds and (now_s - since) * SECOND >= rule.keep_firing_for_ns
                    if ready and (rule.resolve_when is None or known["requests_1m"] == 0):
                        state = "inactive"
                        found.append((rule.name, "resolved", "resolved", now_s, labels))
                elif holds and (now_s - since) * SECOND >= rule.for_ns:
                    state = "firing"
                    found.append((rule.name, "firing", "done", now_s, labels))
        if life.over and state == "firing":
            found.append((rule.name, "resolved", "ended", life.last_s, labels))
    return found


def lives_of(busy: set[int], rules: list[Rule], end_s: int) -> list[Life]:
    """Return from when to when an instance or class is followed: until a minute, or what is asked, after its last."""
    windows = [WINDOWS[name[-2:]] for rule in rules for name in _names(rule) if name[-2:] in WINDOWS]
    times = [rule.for_ns + rule.keep_firing_for_ns for rule in rules]
    lasting_ns = max(60 * SECOND, max(windows, default=0) * SECOND + max(times))
    found: list[Life] = []
    for now_s in sorted(busy):
        over_s = -(-(now_s * SECOND + lasting_ns) // SECOND)
        if found and now_s <= found[-1].last_s:
            # In the second in which it would be over it is busy again.
            found[-1] = Life(found[-1].born_s, min(over_s, end_s), over=over_s <= end_s)
        else:
            found.append(Life(now_s, min(over_s, end_s), over=over_s <= end_s))
    return found


def _names(rule: Rule) -> list[str]:
    return [name for one in (rule.when, rule.resolve_when) if one is not None for name in one.facts]


def stories(decisions: list[Decision]) -> list[tuple[Any, ...]]:
    return [
        (one.rule, one.state, one.outcome, one.flip_ns, one.now_ns, one.subject, dict(one.facts), one.fact_age_ns)
        for one in decisions
    ]


@settings(max_examples=examples(8))
@given(chances())
def test_any_way_of_taking_exports_in_decides_the_same(random: Random) -> None:
    drawn = drawn_fleet(random)
    extra = "(starving_share > 0.3 && streams > 1) || smooth_goodput_1m < 0.0 || smooth_goodput_5m > 0.4"
    more = scoped("instance", extra).rules
    drawn = replace(drawn, rules=RuleSet((*drawn.rules.rules, *more)))
    reported = stories(Seen(drawn).run().decisions)
    assert stories(Seen(drawn).run(advances=advances(random, drawn)).decisions) == reported
    assert stories(Seen(drawn, by_columns=False).run(columns=False, scrape=True).decisions) == reported


@settings(max_examples=examples(8))
@given(chances())
@example(Random(5335))  # a stream that begins before an idle second that is late to be looked at
def test_decisions_are_those_of_adding_everything_up_anew(random: Random) -> None:
    drawn = drawn_fleet(random)
    one = Noting(drawn)
    one.run()
    if not drawn.deliveries:
        return
    stepped = Stepped(drawn)
    stepped.run_by_seconds()
    wanted: list[Flip] = []
    for scope in ("instance", "class"):
        rules = [rule for rule in drawn.rules.rules if rule.scope == scope]
        ended: dict[Labels, list[Ended]] = {}
        busy: dict[Labels, set[int]] = {}
        for at_ns, group, verdict, outcome in one.noted:
            ended.setdefault(labels_of(scope, group), []).append((-(-at_ns // SECOND), verdict, outcome))
            busy.setdefault(labels_of(scope, group), set()).add(-(-at_ns // SECOND))
        for now_s, group in stepped.flying:
            busy.setdefault(labels_of(scope, group), set()).add(now_s)
        for labels, seconds in busy.items():
            lives = lives_of({now_s for now_s in seconds if now_s <= stepped.end_s}, rules, stepped.end_s)
            for rule in rules:
                wanted += walk(rule, labels, lives, ended.get(labels, []))
    got = [(d.rule, d.state, d.outcome, d.flip_ns // SECOND, d.subject) for d in one.decisions]
    assert all(d.flip_ns % SECOND == 0 for d in one.decisions)
    assert sorted(got, key=repr) == sorted(wanted, key=repr)
    assert stories(stepped.decisions) == stories(one.decisions)
