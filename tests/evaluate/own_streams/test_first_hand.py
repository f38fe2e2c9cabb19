"""Rules on streams that this process owns: worked examples, in ms since the commit."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import TypeAlias

import pytest
from rules.scripted import one_rule
from support.evaluate.sinks import KeepingSink

from otel_llm.evaluate.own_streams.first_hand import FirstHand
from otel_llm.evaluate.own_streams.own_stream import Identity, OwnStream
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.slo.classes import SloClass, SloClasses
from otel_llm.slo.token_events import TokenEvents
from otel_llm.slo.verdict import Verdict

MS = 1_000_000
T0 = 1_790_000_000_000_000_000
CHAT = SloClass(name="chat")
CLASSES = SloClasses((CHAT,), default="chat")
STALLED = "gap_seconds > 0.3"
WHO = Identity(model="m", instance="a", exact_resume=True)
Decided: TypeAlias = "tuple[str | None, str, float, float]"
"""Action, outcome, flip, and when it was decided."""


@dataclass
class Owner(KeepingSink):
    """A process that owns streams, and keeps what is found."""

    rules: RuleSet

    def __post_init__(self) -> None:
        self.first_hand = FirstHand(CLASSES, RuleEngine(self.rules), self)

    def begin(
        self,
        ms: float = 0,
        number: int = 1,
        choice: int = 0,
        *,
        commit_ms: float | None = None,
        identity: Identity = WHO,
    ) -> OwnStream:
        key = (number.to_bytes(16, "big"), number.to_bytes(8, "big"), "default", choice)
        return self.first_hand.begin(key, at(ms if commit_ms is None else commit_ms), identity, at(ms))

    def tokens(self, stream: OwnStream, *instants: float) -> None:
        for ms in instants:
            self.first_hand.tokens(stream, TokenEvents([at(ms)]), at(ms))

    def end(self, stream: OwnStream, ms: float, outcome: str = "completed") -> Verdict | None:
        return self.first_hand.end(stream, at(ms), outcome, at(ms))

    def wait(self, ms: float) -> list[Decided]:
        """Let time pass; return what was decided since this was last asked."""
        self.first_hand.advance(at(ms))
        found: list[Decided] = [
            (one.action, one.outcome, since(one.flip_ns), since(one.now_ns)) for one in self.decisions
        ]
        self.decisions.clear()
        return found

    def reload(self, rules: RuleSet, ms: float, classes: SloClasses = CLASSES) -> None:
        self.first_hand.reload(classes, rules, at(ms))


def at(ms: float) -> int:
    return T0 + round(ms * MS)


def since(at_ns: int) -> float:
    return (at_ns - T0) / MS


def fires(ms: float, now_ms: float | None = None, *, outcome: str = "done") -> Decided:
    return ("alert", outcome, ms, ms if now_ms is None else now_ms)


def stops(ms: float, now_ms: float | None = None, *, outcome: str = "resolved") -> Decided:
    return (None, outcome, ms, ms if now_ms is None else now_ms)


# What is known at first hand.


def test_facts_are_those_of_the_process_itself_and_have_no_age() -> None:
    owner = Owner(one_rule('measured_at == "relay" && fact_age_seconds < 0.001 && gap_seconds > 60.0'))
    owner.tokens(owner.begin(), 100)
    owner.first_hand.advance(at(59_000))
    owner.first_hand.advance(at(61_000))
    (decision,) = owner.decisions
    assert (decision.flip_ns, decision.now_ns, decision.offset_ns) == (at(60_100) + 1, at(60_100) + 1, 0)
    assert decision.facts == {"measured_at": "relay", "fact_age_seconds": 0.0, "gap_seconds": 60.000000001}
    assert decision.fact_age_ns == 0
    assert decision.identity == {"slo_class": "chat", "model": "m", "instance": "a", "measured_at": "relay"}


def test_facts_grow_old_while_no_backend_is_connected() -> None:
    owner = Owner(one_rule("gap_seconds > 10.0"))
    stream = owner.begin()
    owner.first_hand.disconnected(stream, at(1000))
    assert owner.wait(20_000) == [], "older than `max_fact_age`"
    owner.first_hand.connected(stream, at(20_000))
    assert owner.wait(30_000) == [fires(20_000)]


def test_each_choice_has_facts_of_its_own() -> None:
    owner = Owner(one_rule(STALLED))
    first, second = owner.begin(), owner.begin(choice=1)
    owner.tokens(first, 100)
    owner.tokens(second, 200)
    owner.first_hand.advance(at(1000))
    assert [(one.subject[3], since(one.flip_ns)) for one in owner.decisions] == [(0, 400.000001), (1, 500.000001)]


def test_a_stream_that_is_announced_late_is_evaluated_back_to_its_commit() -> None:
    owner = Owner(one_rule("age_seconds > 0.1"))
    owner.begin(250, commit_ms=0)
    assert owner.wait(250) == [fires(100.000001, 250)]


def test_tokens_have_rules_evaluated_at_most_every_50_ms_and_the_flip_is_the_true_one() -> None:
    owner = Owner(one_rule("tokens >= 3"))
    stream = owner.begin()
    owner.tokens(stream, 100)
    owner.wait(100)
    owner.tokens(stream, 110, 120, 130)
    assert owner.wait(149) == []
    assert owner.wait(200) == [fires(120, 150)]


def test_what_fell_due_before_a_token_is_decided_without_it() -> None:
    owner = Owner(one_rule(STALLED))
    stream = owner.begin()
    owner.tokens(stream, 100, 400.000002)
    assert owner.wait(460) == [fires(400.000001), stops(400.000002, 450.000001)]


def test_a_token_at_the_very_flip_is_in_time() -> None:
    owner = Owner(one_rule(STALLED))
    stream = owner.begin()
    owner.tokens(stream, 100, 400.000001)
    assert owner.wait(700) == []


# The end.


def test_what_fires_ends_with_its_stream_and_nothing_comes_of_it_then() -> None:
    owner = Owner(one_rule(STALLED))
    stream = owner.begin()
    owner.tokens(stream, 100)
    assert owner.end(stream, 600) is not None
    owner.tokens(stream, 700)
    owner.first_hand.hold_back(stream, blocked=True, now_ns=at(710))
    owner.first_hand.hold_back(stream, blocked=False, now_ns=at(720))
    assert owner.end(stream, 800) is None
    assert owner.wait(5000) == [fires(400.000001), stops(600, outcome="ended")]
    assert [row["tokens"] for row in owner.rows] == [1]
    assert owner.first_hand.next_timer() is None


def test_a_paused_stream_has_no_rules_evaluated_nor_its_past() -> None:
    owner = Owner(one_rule(STALLED))
    stream = owner.begin()
    owner.tokens(stream, 100)
    owner.first_hand.pause(stream, at(200))
    assert owner.wait(5000) == []
    owner.first_hand.resume(stream, at(5000))
    assert owner.wait(5000) == [fires(5000)]


# Tokens after a stream was calm.


def test_rules_that_are_loaded_later_see_tokens() -> None:
    owner = Owner(RuleSet(()))
    stream = owner.begin()
    owner.tokens(stream, 100)
    owner.wait(110)
    owner.reload(one_rule("tokens >= 3"), 120)
    owner.tokens(stream, 200, 300)
    assert owner.wait(1000) == [fires(300)]


def test_rules_that_begin_to_apply_see_tokens() -> None:
    owner = Owner(one_rule("instance == 'b' && tokens >= 3"))
    stream = owner.begin()
    owner.tokens(stream, 100)
    owner.wait(110)
    owner.first_hand.identify(stream, instance="b", now_ns=at(120))
    owner.wait(120)
    owner.tokens(stream, 200, 300)
    assert owner.wait(1000) == [fires(300)]


# Other rules.

LIMITED = "[{alert: {name: A}, budget: {per_request: 1}}]"


def test_rules_that_mean_the_same_go_on_firing_and_keep_their_budget() -> None:
    owner = Owner(one_rule(STALLED, actions=LIMITED))
    stream = owner.begin()
    assert owner.wait(400) == [fires(300.000001)]
    owner.reload(one_rule(f"( {STALLED} )", actions=LIMITED), 500)
    owner.tokens(stream, 600)
    assert owner.wait(1000) == [stops(600), fires(900.000001, outcome="budget")]


def test_a_firing_of_a_rule_that_is_gone_ends() -> None:
    owner = Owner(one_rule(STALLED))
    owner.begin()
    assert owner.wait(400) == [fires(300.000001)]
    owner.reload(one_rule("gap_seconds > 9.0"), 500)
    assert owner.wait(10_000) == [stops(500, outcome="ended"), fires(9000.000001)]


def test_streams_in_flight_are_judged_by_the_class_as_it_is_now() -> None:
    owner = Owner(one_rule("runway_seconds < 0.25 && tokens_read > 0"))
    stream = owner.begin()
    owner.tokens(stream, *[100] * 10)
    owner.wait(110)
    quick = SloClasses((SloClass(name="chat", pace_ns=20 * MS),), default="chat")
    owner.reload(owner.rules, 110, quick)
    assert owner.wait(110) == [fires(100, 110)], "10 tokens of 20 ms are less than 250 ms from the first on"
    verdict = owner.end(stream, 400, "cancelled")
    assert verdict is not None
    assert verdict.idle_decode_ns == 100 * MS


def test_a_reload_does_not_evaluate_a_stream_whose_bytes_wait() -> None:
    owner = Owner(one_rule(STALLED))
    stream = owner.begin()
    owner.first_hand.hold_back(stream, blocked=True, now_ns=at(100))
    owner.reload(one_rule("gap_seconds > 0.2"), 500)
    assert owner.wait(1000) == []
    owner.first_hand.hold_back(stream, blocked=False, now_ns=at(1000))
    assert owner.wait(2000) == [fires(1050)]


# Who serves.


def test_a_firing_ends_when_its_stream_can_no_longer_be_resumed() -> None:
    owner = Owner(one_rule(f"exact_resume && {STALLED}"))
    stream = owner.begin()
    assert owner.wait(500) == [fires(300.000001)]
    owner.first_hand.identify(stream, exact_resume=False, now_ns=at(700))
    assert owner.wait(2000) == [stops(700)]


def test_a_firing_goes_on_for_as_long_as_it_is_kept_firing_behind_a_change() -> None:
    owner = Owner(one_rule(f"instance == 'a' && {STALLED}", keep_firing_for="500ms"))
    stream = owner.begin()
    assert owner.wait(2000) == [fires(300.000001)]
    owner.first_hand.identify(stream, instance="b", now_ns=at(2000))
    assert owner.wait(4000) == [stops(2500)]


@pytest.mark.parametrize("when", [f"exact_resume && {STALLED}", f"(exact_resume || tokens > 9) && {STALLED}"])
def test_what_did_not_hold_before_a_change_is_not_counted(when: str) -> None:
    owner = Owner(one_rule(when, **{"for": "1s"}))
    stream = owner.begin()
    owner.wait(500)
    owner.first_hand.identify(stream, exact_resume=False, now_ns=at(600))
    owner.wait(3000)
    owner.first_hand.identify(stream, exact_resume=True, now_ns=at(3000))
    assert owner.wait(5000) == [fires(4000)]


def test_what_held_before_a_change_and_behind_it_is_counted() -> None:
    owner = Owner(one_rule(f"(exact_resume || tokens == 0) && {STALLED}", **{"for": "1s"}))
    stream = owner.begin()
    owner.wait(500)
    owner.first_hand.identify(stream, exact_resume=False, now_ns=at(600))
    assert owner.wait(5000) == [fires(1300.000001)]


# A client that reads slowly.


@pytest.mark.parametrize(
    ("when", "on_missing"), [(STALLED, "hold"), (STALLED, "false"), (STALLED, "fire"), ("tokens >= 2", "hold")]
)
def test_nothing_is_decided_while_bytes_wait_for_the_client(when: str, on_missing: str) -> None:
    owner = Owner(one_rule(when, on_missing=on_missing))
    stream = owner.begin()
    owner.tokens(stream, 100)
    owner.first_hand.hold_back(stream, blocked=True, now_ns=at(110))
    owner.tokens(stream, 150)
    assert owner.wait(2000) == []
    owner.first_hand.hold_back(stream, blocked=False, now_ns=at(2000))
    assert owner.wait(3000) == [fires(2050)]


def test_what_the_backend_sent_while_bytes_waited_is_no_stall() -> None:
    owner = Owner(one_rule(STALLED))
    stream = owner.begin()
    owner.first_hand.hold_back(stream, blocked=True, now_ns=at(100))
    owner.first_hand.hold_back(stream, blocked=False, now_ns=at(2000))
    owner.tokens(stream, 2000.5, 2020)
    assert owner.wait(2300) == []
    assert owner.wait(3000) == [fires(2320.000001)]


def test_bytes_that_wait_again_and_again_keep_rules_from_being_evaluated() -> None:
    owner = Owner(one_rule(STALLED))
    stream = owner.begin()
    for ms in range(100, 1000, 40):
        owner.first_hand.hold_back(stream, blocked=True, now_ns=at(ms))
        owner.first_hand.hold_back(stream, blocked=False, now_ns=at(ms + 20))
    owner.first_hand.pause(stream, at(1010))
    assert owner.wait(2000) == []
    owner.first_hand.resume(stream, at(2000))
    assert owner.wait(2000) == [fires(2000)]


# What is left behind.


class Attributes(dict[str, str]):
    """Attributes whose end can be seen."""


def test_nothing_of_a_stream_is_kept_until_a_rule_would_have_been_due() -> None:
    owner = Owner(one_rule("age_seconds > 3600.0"))
    stated = Attributes(colour="red")
    gone = weakref.ref(stated)
    stream = owner.begin(identity=Identity(attributes=stated))
    owner.tokens(stream, 100)
    owner.wait(1000)
    owner.end(stream, 1000)
    del stream, stated
    gc.collect()
    assert gone() is None
