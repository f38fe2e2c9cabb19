"""Rules decide at first hand what they decide in a collector that receives the same tokens with no lateness.

If each token has the rules evaluated, as each segment has in a collector, all is the same: rules, streams, groups,
states, outcomes, facts, budgets, flips, the instants of the decisions, and the rows. By definition two things differ,
and no rule that is drawn asks for them: the age of facts, which is 0 here, and `smooth_goodput`, which a collector
charges when telemetry comes.

A relay evaluates the rules of one stream for tokens at most every `EVALUATE_EVERY_NS`. So it decides what a collector
does whose segments end where the relay evaluated: a condition that holds only between two evaluations is found by
neither. That is asserted of one stream rule: of several, one that falls due by its own timer is evaluated alone.

`pytest --hypothesis-profile=long tests/evaluate/own_streams/test_first_hand_agrees.py` tries 25 times as many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from rules.scripted import ruleset
from support.chance import chances
from support.core.core_fleets import KIND_WORDS, Delivery, Fleet, Seen, slo_classes
from support.core.core_rules import rule
from support.core.core_spans import sent_segment
from support.evaluate.sinks import KeepingSink
from support.examples import examples
from support.otlp import T0_NS, Value, request_span, span_id, token, trace_id

from otel_llm import semconv
from otel_llm.evaluate.own_streams.first_hand import EVALUATE_EVERY_NS, FirstHand
from otel_llm.evaluate.own_streams.own_stream import Identity, OwnStream, Statement
from otel_llm.evaluate.timers import Timeouts
from otel_llm.formats.rows import Row
from otel_llm.rules.decisions.decision_records import Decision
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.rules.files.ruleset import Rule, RuleSet
from otel_llm.rules.language.condition import condition
from otel_llm.slo.token_events import TokenEvents

MS = 1_000_000
HOUR_NS = 3_600_000 * MS
Name = tuple[int, int]
"""Number of a request, and a choice of it."""


@dataclass(frozen=True)
class Story:
    """One stream: its attributes, and its events' times in ns since T0."""

    name: Name
    commit_ns: int
    stated: Mapping[str, str | bool | float]
    tokens: tuple[tuple[int, int, int], ...]
    """Instant, count and kind."""
    end_ns: int

    @property
    def queue_s(self) -> float | None:
        found = self.stated.get(semconv.GEN_AI_LATENCY_QUEUE)
        return found if isinstance(found, float) else None

    @property
    def identity(self) -> Identity:
        stated = self.stated
        declared, instance = stated.get(semconv.SLO_CLASS), stated.get(semconv.INSTANCE)
        return Identity(
            declared_class=None if declared is None else str(declared),
            attributes=stated,
            model=str(stated[semconv.GEN_AI_REQUEST_MODEL]),
            instance=None if instance is None else str(instance),
            exact_resume=bool(stated.get(semconv.EXACT_RESUME, False)),
        )


GAPS_MS = st.sampled_from([0, 0.000001, 3, 20, 49.999999, 50, 100, 125, 200, 250, 300, 300.000001, 700, 1600])
ALWAYS_SAID: dict[str, st.SearchStrategy[str | bool | float]] = {
    semconv.GEN_AI_OPERATION_NAME: st.just("chat"),
    semconv.GEN_AI_REQUEST_MODEL: st.sampled_from(["m", "n"]),
    semconv.MEASURED_AT: st.just("relay"),
}
SOMETIMES_SAID: dict[str, st.SearchStrategy[str | bool | float]] = {
    semconv.SLO_CLASS: st.sampled_from(["c0", "c1", "nobody"]),
    semconv.INSTANCE: st.sampled_from(["a", "b"]),
    semconv.EXACT_RESUME: st.just(True),
    semconv.GEN_AI_LATENCY_QUEUE: st.sampled_from([0.1, 0.4]),
}


@st.composite
def stories(draw: st.DrawFn) -> list[Story]:
    """Draw one to four streams; some are choices of one request."""
    found = []
    for number in range(1, draw(st.integers(1, 2)) + 1):
        commit_ns = draw(st.sampled_from([0, 0, 7, 130, 1000])) * MS
        stated = draw(st.fixed_dictionaries(ALWAYS_SAID, optional=SOMETIMES_SAID))
        for choice in range(draw(st.sampled_from([1, 1, 1, 2]))):
            at_ns, tokens = commit_ns, []
            for gap_ms, count, kind in draw(
                st.lists(
                    st.tuples(GAPS_MS, st.sampled_from([1, 1, 1, 2, 9, 0]), st.sampled_from([0, 0, 0, 1])), max_size=12
                )
            ):
                at_ns += round(gap_ms * MS)
                tokens.append((at_ns, count, kind))
            found.append(Story((number, choice), commit_ns, stated, tuple(tokens), at_ns + round(draw(GAPS_MS) * MS)))
    return found


TERMS = (
    "gap_seconds > 0.3",
    "gap_seconds >= 0.1",
    "silence_seconds > 0.3",
    "runway_seconds < 0.25",
    "runway_seconds < 0.0",
    "idle_seconds > 0.5",
    "idle_decode_seconds > 0.2",
    "age_seconds > 1.0",
    "tokens_read > 0",
    "tokens >= 4",
    "deadline_misses >= 2",
    "exact_resume",
    "slo_class == 'c0'",
)


def stall(random: Random, one: Rule) -> Rule:
    """Return a rule with a condition of the usual shape: terms that must all hold, at least one opened by time."""
    terms = random.sample(TERMS, random.randint(0, 2))
    text = " && ".join([random.choice(TERMS[:8]), *terms])
    return replace(one, when=condition(text, "stream"))


def at_first_hand(one: Rule) -> bool:
    """Tell whether a rule asks for nothing that differs by definition."""
    conditions = [one.when, one.resolve_when, *(action.only_if for action in one.actions)]
    return not any("fact_age_seconds" in condition.facts for condition in conditions if condition is not None)


GROUP_RULES = """
version: 1
groups:
- name: g
  scope: {scope}
  rules:
  - {{rule: S, when: '{when}', for: {for_}, on_missing: {missing}, max_fact_age: 1h, actions: [{{alert: {{name: A}}}}]}}
"""
GROUPS_WHEN = (
    "starving >= 1",
    "streams >= 2 && starving_share > 0.4",
    "streams == 0 && requests_1m >= 2",
    "attainment_1m < 0.6",
    "idle_p99_1m > 0.5 || burn_rate_1m > 1.0",
    "fluidity_ok_share_1m < 0.9 && goodput_5m < 100.0",
    "queue_p99_1m > 0.2",
)


def group_rule(random: Random) -> Rule:
    """Draw a rule of a scope whose facts do not depend on when telemetry comes, as those of `smooth_goodput` do."""
    text = GROUP_RULES.format(
        scope=random.choice(("instance", "class")),
        when=random.choice(GROUPS_WHEN),
        for_=random.choice(("0s", "0s", "2s")),
        missing=random.choice(("hold", "false", "fire")),
    )
    return ruleset(text).rules[0]


def rule_set(random: Random, count: int) -> RuleSet:
    """Draw so many stream rules, of the usual shape or of every, and one of another scope; facts are never too old."""
    drawn: list[Rule] = []
    plain, calm = random.random() < 0.5, random.random() < 0.7
    for at in range(count):
        while not at_first_hand(one := rule(random, f"R{at}", plain=plain)):
            pass
        one = replace(one, max_fact_age_ns=HOUR_NS)
        drawn.append(stall(random, one) if calm else one)
    return RuleSet((*drawn, group_rule(random)))


@dataclass
class Owner(KeepingSink):
    """The process that owns the streams; it lets time pass from one due instant to the next."""

    fleet: Fleet
    evaluate_every_ns: int
    streams: dict[Name, OwnStream] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first_hand = FirstHand(self.fleet.classes, RuleEngine(self.fleet.rules), self, self.evaluate_every_ns)

    def wait(self, until_ns: int) -> Iterator[int]:
        """Let time pass from one due instant to the next, up to an instant; yield each when it has passed."""
        while (due_ns := self.first_hand.next_timer()) is not None and due_ns <= until_ns:
            self.first_hand.advance(due_ns)
            yield due_ns

    def take(self, now_ns: int, story: Story, event: Event) -> None:
        number, choice = story.name
        if isinstance(event, Begins):
            key = (trace_id(number), span_id(number), "default", choice)
            self.streams[story.name] = self.first_hand.begin(key, now_ns, story.identity, now_ns)
        elif isinstance(event, Ends):
            statement = Statement("exact", queue_s=story.queue_s)
            self.first_hand.end(self.streams.pop(story.name), now_ns, "completed", now_ns, statement)
        else:
            stream = self.streams[story.name]
            if event.count:
                self.first_hand.tokens(stream, TokenEvents([now_ns], bytes([event.kind]), [event.count]), now_ns)
            else:
                self.first_hand.heard(stream, now_ns)


@dataclass(frozen=True)
class Begins:
    """The commit."""


@dataclass(frozen=True)
class Arrives:
    """Bytes at one instant: tokens, or only a keep-alive."""

    count: int
    kind: int


@dataclass(frozen=True)
class Ends:
    """The end."""


Event = Begins | Arrives | Ends


def events(reported: Iterable[Story]) -> list[tuple[int, list[tuple[Story, Event]]]]:
    """Return what happens, by instant, in unix ns."""
    found: list[tuple[int, Story, Event]] = []
    for story in reported:
        found.append((T0_NS + story.commit_ns, story, Begins()))
        found += [(T0_NS + at_ns, story, Arrives(count, kind)) for at_ns, count, kind in story.tokens]
        found.append((T0_NS + story.end_ns, story, Ends()))
    found.sort(key=lambda one: one[0])
    return [(at_ns, [one[1:] for one in group]) for at_ns, group in groupby(found, key=lambda one: one[0])]


@dataclass
class Sender:
    """Tells a collector of streams by segments that arrive when they end."""

    seen: Seen
    waiting: dict[Name, list[tuple[int, Arrives]]] = field(default_factory=dict)
    """What was not sent yet."""
    sent: dict[Name, tuple[int, int, int]] = field(default_factory=dict)
    """Segments, tokens, and the end of the last segment."""

    def send(self, now_ns: int, begun: Iterable[Story], reported: Iterable[Story], ended: Iterable[Story]) -> None:
        """Send in one export the commits, the ends, and what is waiting of `reported`, be it nothing."""
        over = list(ended)
        spans = [self._span(now_ns, story) for story in (*begun, *(story for story in reported if story not in over))]
        spans += [self._span(now_ns, story, over=True) for story in over]
        spans += [
            # With the commit, so that no end has to wait for it.
            request_span(request=story.name[0], start_ns=now_ns, end_ns=now_ns, attributes=story.stated)
            for story in begun
            if story.name[1] == 0
        ]
        if spans:
            self.seen.take(Delivery(now_ns, tuple(spans)))

    def _span(self, now_ns: int, story: Story, *, over: bool = False) -> Span:
        number, choice = story.name
        seq, tokens, since_ns = self.sent.get(story.name, (0, 0, now_ns))
        reported = self.waiting.pop(story.name, []) if seq else []
        count = sum(one.count for _, one in reported)
        stated: Mapping[str, Value] = story.stated if seq == 0 else {}
        if over:
            stated = {
                semconv.OUTCOME: "completed",
                semconv.TOKENS: tokens + count,
                semconv.TOKEN_BASIS: "exact",
                semconv.SEGMENTS: seq + 1,
            }
        if reported:
            stated = {**stated, semconv.SEGMENT_LAST_BYTE: reported[-1][0]}
        self.sent[story.name] = (seq + 1, tokens + count, now_ns)
        return sent_segment(
            seq,
            tokens,
            [token(at_ns, one.count, KIND_WORDS[one.kind]) for at_ns, one in reported if one.count],
            request=number,
            choice=choice,
            start_ns=since_ns,
            end_ns=now_ns,
            attributes=stated,
        )


def play(reported: list[Story], fleet: Fleet, evaluate_every_ns: int, *, lags: bool = False) -> tuple[Owner, Seen]:
    """Tell both of the streams. With 0 segments are sent with each token, else by looks.

    `lags`: the owner's timers are late: what is due is found only when the next thing happens.
    """
    owner, seen = Owner(fleet, evaluate_every_ns), Seen(fleet)
    sender = Sender(seen)

    def to_tell(at_ns: int) -> list[Story]:
        """Return the streams with a segment that ends now."""
        waiting = {name for name in owner.streams if name in sender.waiting}
        if evaluate_every_ns:
            calm = {name for name, one in owner.streams.items() if one.inactive_states is not None}
            waiting = waiting & calm | {name for name, one in owner.streams.items() if one.evaluated_ns == at_ns}
        return [story for story in reported if story.name in waiting]

    for now_ns, happens in events(reported):
        for due_ns in () if lags else owner.wait(now_ns - 1):
            if evaluate_every_ns:
                sender.send(due_ns, (), to_tell(due_ns), ())
        for story, event in happens:
            if isinstance(event, Arrives):
                sender.waiting.setdefault(story.name, []).append((now_ns, event))
            owner.take(now_ns, story, event)
        for _ in owner.wait(now_ns):
            pass
        begun = [story for story, event in happens if isinstance(event, Begins)]
        ended = [story for story, event in happens if isinstance(event, Ends)]
        sender.send(now_ns, begun, to_tell(now_ns), ended)
    rest_ns = max(T0_NS + story.end_ns for story in reported) + 4_000 * MS
    for _ in owner.wait(rest_ns):
        pass
    seen.evaluator.advance(rest_ns)
    return owner, seen


def by_instant(decisions: list[Decision]) -> list[Decision]:
    """Return decisions in order of time and stream, but for the age of facts."""
    found = [replace(one, fact_age_ns=0) for one in decisions]
    return sorted(found, key=lambda one: (one.now_ns, one.rule, one.subject))


def by_stream(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (str(row["trace_id"]), int(row["choice"] or 0)))


def drawn_fleet(random: Random, rules: int) -> Fleet:
    return Fleet(slo_classes(random), rule_set(random, rules), Timeouts(), 10_000 * MS, ())


@settings(max_examples=examples(25))
@given(stories(), chances(), st.sampled_from([0, EVALUATE_EVERY_NS]), st.booleans())
def test_rules_decide_as_in_a_collector(
    reported: list[Story], random: Random, evaluate_every_ns: int, lags: bool
) -> None:
    fleet = drawn_fleet(random, 1 if evaluate_every_ns else random.randint(1, 3))
    owner, seen = play(reported, fleet, evaluate_every_ns, lags=lags and not evaluate_every_ns)
    assert by_instant(owner.decisions) == by_instant(seen.decisions)
    assert by_stream(owner.rows) == by_stream(seen.rows)
