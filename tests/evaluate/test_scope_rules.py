"""Rules of scopes instance and class, from exports to decisions: worked numbers, and what they are made of."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from support.core.core_cases import seen
from support.core.core_fleets import Seen
from support.evaluate.groups import at, commit, ends, identity, reported, request, scoped, segment, take, whole
from support.otlp import IDENTITY

from otel_llm import semconv
from otel_llm.evaluate.evaluator import Evaluator
from otel_llm.evaluate.registry import RegistryLimits
from otel_llm.evaluate.streams.stream_in_flight import Group
from otel_llm.evaluate.subjects import OTHER, Subjects
from otel_llm.evaluate.windowing import Windowing
from otel_llm.rules.decisions.decision_records import Decided, Decision
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.rules.engine.scope_facts import Needs
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.classes import Benefit, Objective, Penalty, SloClasses


def classes(attainment: str | None = "9/10") -> SloClasses:
    known = load_slo()
    objective = Objective(attainment=None if attainment is None else Fraction(attainment))
    return SloClasses(tuple(replace(one, objective=objective) for one in known.classes), "chat")


def flips(one: Seen) -> list[tuple[str, str, float]]:
    return [(state, outcome, flip) for _, state, outcome, flip, _ in reported(one)]


def test_a_class_burns_and_recovers() -> None:
    rules = scoped("class", "requests_1m >= 4 && burn_rate_1m > 2.0")
    one = seen(rules, classes=classes())
    for number in range(1, 9):  # two of eight are late: a quarter of a budget of a tenth
        whole(one, 10_000 + 1_000 * number, number=number, met=number not in (4, 5))
    one.evaluator.advance(at(90_000))
    # At 14 s one of four is late: 0.25 / 0.1. At 15 s two of five. At 74 s the late one of 14 s is a minute old, that
    # of 15 s is among the four left until 75 s, when only three are left.
    assert reported(one) == [
        ("R", "firing", "done", 14_000, {"requests_1m": 4, "burn_rate_1m": pytest.approx(2.5)}),
        ("R", "resolved", "resolved", 75_000, {"requests_1m": 3, "burn_rate_1m": 0.0}),
    ]
    first = one.decisions[0]
    assert (first.stream, first.scope, first.now_ns, first.offset_ns) == (None, "class", at(14_000), 0)
    assert first.identity == {"slo_class": "chat", "model": "m", "measured_at": "client"}
    assert first.fact_age_ns == 0
    assert first.record()["labels"] == first.identity


def test_what_ends_in_a_second_counts_from_its_end_on() -> None:
    one = seen(scoped("class", "requests_1m > 0"))
    whole(one, 10_400, number=1)
    one.evaluator.advance(at(10_999))
    assert reported(one) == []
    one.evaluator.advance(at(90_000))
    assert flips(one) == [("firing", "done", 11_000), ("resolved", "resolved", 71_000)]


def test_instances_are_distinguished() -> None:
    one = seen(scoped("instance", 'attainment_1m < 0.5 && instance != ""', actions="[{drain: {}}]"))
    for number, instance in enumerate(("a", "b", "a", ""), start=1):
        whole(one, 10_000 + number, number=number, met=instance == "b", stated=identity(instance))
    one.evaluator.advance(at(20_000))
    (decision,) = one.decisions
    assert decision.identity == {"slo_class": "chat", "model": "m", "instance": "a", "measured_at": "client"}
    assert (decision.action, decision.mode, decision.outcome) == ("drain", "shadow", "shadow")
    assert decision.facts == {"attainment_1m": 0.0, "instance": "a"}


def starve(one: Seen, number: int, instance: str, *, until: int = 9_000) -> None:
    """Let a stream begin at 1 s, get a token, and then only word that none comes, up to `until` ms."""
    take(one, 1_000, commit(1_000, request=number, stated=identity(instance)))
    for seq, ms in enumerate(range(1_200, until + 1, 200), start=1):
        tokens = [1_150] if seq == 1 else []
        take(one, ms, segment(seq, 0 if seq == 1 else 1, tokens, ms, request=number))


def test_readers_that_wait_are_counted_at_each_second() -> None:
    one = seen(scoped("instance", "starving >= 1 && starving_share > 0.4", max_fact_age="1s"))
    starve(one, 1, "a", until=3_000)
    take(one, 3_050, commit(3_050, request=2, stated=identity("a")))
    one.evaluator.advance(at(8_000))
    # The token of 1.15 s is read by 1.35 s. At 4 s its stream's last word is a second old, just not too old; the other
    # began and its reader waits too.
    assert reported(one) == [("R", "firing", "done", 2_000, {"starving": 1, "starving_share": 1.0})]


def test_what_is_received_behind_a_second_is_not_known_at_it() -> None:
    """Of two streams one gets ten tokens at 2.05 s: both starve at 2 s."""
    one = seen(scoped("instance", "starving >= 2"))
    for number in (1, 2):
        take(one, 1_000 + number, commit(1_000, request=number, stated=identity("a")))
        take(one, 1_200 + number, segment(1, 0, [1_150], 1_200, request=number))
        take(one, 1_700 + number, segment(2, 1, [], 1_700, request=number))
    take(one, 1_950, segment(3, 1, [], 1_950, request=1))
    take(one, 2_050, segment(3, 1, [1_990] * 10, 2_050, request=2))
    one.evaluator.advance(at(2_100))
    assert reported(one) == [("R", "firing", "done", 2_000, {"starving": 2})]


def test_of_streams_that_say_nothing_it_is_not_known_whether_they_starve() -> None:
    rules = scoped("instance", "streams >= 1 && starving_share > 0.4", on_missing="false", max_fact_age="1s")
    one = seen(rules)
    starve(one, 1, "a", until=3_000)
    one.evaluator.advance(at(8_000))
    assert reported(one) == [
        ("R", "firing", "done", 2_000, {"streams": 1, "starving_share": 1.0}),
        ("R", "resolved", "resolved", 5_000, {"streams": 1, "starving_share": None}),
    ]


def test_a_stream_with_a_segment_missing_is_not_known_to_starve() -> None:
    one = seen(scoped("instance", "starving_share > 0.4", on_missing="false"))
    starve(one, 1, "a", until=1_200)
    take(one, 1_600, segment(3, 2, [], 1_600))
    take(one, 2_100, segment(4, 2, [], 2_100))
    assert reported(one) == []
    take(one, 2_150, segment(2, 1, [1_300], 1_400))
    one.evaluator.advance(at(3_000))
    assert flips(one) == [("firing", "done", 3_000)]


def test_a_share_of_nothing_is_missing_and_a_count_of_nothing_is_not() -> None:
    held = seen(scoped("class", "attainment_1m < 0.5"))
    counted = seen(scoped("class", "attainment_1m < 0.5 && requests_1m > 0", on_missing="false"))
    for one in (held, counted):
        whole(one, 10_000, number=1, met=False)
        take(one, 12_000, commit(12_000, request=2))
        for seq in range(1, 80):
            take(one, 12_000 + 1_000 * seq, segment(seq, 0, [], 12_000 + 1_000 * seq, request=2))
    assert flips(held) == [("firing", "done", 10_000)]
    assert reported(counted)[1] == ("R", "resolved", "resolved", 70_000, {"attainment_1m": None, "requests_1m": 0})


def test_for_and_keep_firing_for_are_over_on_whole_seconds() -> None:
    rules = scoped("class", "requests_1m >= 1", for_="1500ms", keep_firing_for="2500ms")
    one = seen(rules)
    whole(one, 10_000, number=1)
    one.evaluator.advance(at(100_000))
    assert flips(one) == [("firing", "done", 12_000), ("resolved", "resolved", 73_000)]


def test_what_does_not_hold_long_enough_never_fires() -> None:
    one = seen(scoped("class", "requests_1m == 1", for_="3s"))
    whole(one, 10_000, number=1)
    whole(one, 12_500, number=2)
    one.evaluator.advance(at(69_900))
    assert reported(one) == []
    one.evaluator.advance(at(100_000))
    # From 70 s on only the second is left; it leaves at 73 s.
    assert flips(one) == []


def test_a_rule_waits_for_its_own_end() -> None:
    one = seen(scoped("class", "requests_1m >= 2", resolve_when="requests_1m == 0"))
    whole(one, 10_000, number=1)
    whole(one, 20_000, number=2)
    one.evaluator.advance(at(200_000))
    assert reported(one)[1:] == [("R", "resolved", "resolved", 80_000, {"requests_1m": 0})]


def test_flapping_makes_one_alert() -> None:
    rules = scoped("class", "requests_1m >= 3", resolve_when="requests_1m < 2", keep_firing_for="10s")
    one = seen(rules)
    for number in range(1, 60):  # one each 30 s, but for the first: two and three in turn
        whole(one, 10_000 + (0 if number == 1 else 29_500 * (number // 2) + 500 * (number % 2)), number=number)
    assert [state for state, _, _ in flips(one)] == ["firing"]


def test_what_fires_is_over_with_its_subject() -> None:
    one = seen(scoped("class", "attainment_1m < 0.5"))
    whole(one, 10_000, number=1, met=False)
    one.evaluator.advance(at(200_000))
    assert reported(one)[1:] == [("R", "resolved", "ended", 70_000, {"attainment_1m": None})]
    assert one.evaluator.next_timer() is None or one.evaluator.groups.next_tick_ns is None


def test_smooth_goodput_is_charged_while_readers_wait() -> None:
    one = seen(scoped("class", "smooth_goodput_1m < 0.0 - 0.5"))
    take(one, 1_000, commit(1_000))
    take(one, 1_200, segment(1, 0, [1_100], 1_200))
    for seq in range(2, 100):
        take(one, 1_000 * seq, segment(seq, 1, [], 1_000 * seq))
    # The first stream began at 1 s, so that the rate is known from 61 s on. By then the reader of one token, who needs
    # 0.2 s for it and gave the first 0.2 s, has waited 59.6 s: at alpha 2.5 each second takes two and a half tokens.
    ((_, state, _, flip, facts),) = reported(one)
    assert (state, flip) == ("firing", 61_000)
    assert facts["smooth_goodput_1m"] == pytest.approx((1 - 2.5 * 59.6) / 60)


@pytest.mark.parametrize("penalty", ["linear", "quadratic", "exponential"])
@pytest.mark.parametrize("outcome", ["completed", "error"])
def test_benefit_adds_up_to_the_verdict(penalty: Penalty, outcome: str) -> None:
    benefit = Benefit(alpha=2.5, penalty=penalty, abort_penalty=20.0)
    known = SloClasses(tuple(replace(one, benefit=benefit) for one in load_slo().classes), "chat")
    one = seen(scoped("class", "smooth_goodput_1m > 1000.0"), classes=known)
    take(one, 1_000, commit(1_000))
    take(one, 1_500, segment(1, 0, [1_400], 1_500))
    take(one, 3_500, segment(2, 1, [3_400], 3_500))
    take(one, 5_500, segment(3, 2, [5_400], 5_500, stated=ends(3, 4, outcome)), request(5_500, start=1_000))
    one.evaluator.advance(at(6_000))
    (row,) = one.rows
    groups = one.evaluator.groups
    assert groups is not None
    (subject,) = groups.subjects()
    assert subject.windows["1m"].total(at(6_000)).benefit.value == pytest.approx(row["benefit"], abs=1e-12)


def test_what_was_charged_under_another_name_goes_back() -> None:
    """Which model it is only the request span says."""
    one = seen(scoped("class", "smooth_goodput_1m > 1000.0"))
    nameless = {name: value for name, value in IDENTITY.items() if name != semconv.GEN_AI_REQUEST_MODEL}
    take(one, 1_000, commit(1_000, stated=nameless))
    take(one, 1_500, segment(1, 0, [1_400], 1_500))
    one.evaluator.advance(at(2_000))
    stated = identity(model="other")
    take(one, 2_500, segment(2, 1, [], 2_500, stated=ends(1, 3)), request(2_500, start=1_000, stated=stated))
    one.evaluator.advance(at(3_000))
    groups = one.evaluator.groups
    assert groups is not None
    found = {dict(one.labels)["model"]: one.windows["1m"].total(at(3_000)) for one in groups.subjects()}
    assert {model: total.benefit.value for model, total in found.items()} == {
        "": 0.0,
        "other": pytest.approx(one.rows[0]["benefit"], abs=1e-12),
    }


def test_goodput_is_of_requests_that_met() -> None:
    one = seen(scoped("class", "goodput_1m > 0.04"))
    for number in range(1, 8):
        whole(one, 10_000 * number, number=number, met=number % 2 == 0)
    one.evaluator.advance(at(70_000))
    # The window is filled from 10 s on; at 70 s it holds the ends of 20, 40 and 60 s that met, a token each.
    assert reported(one) == [("R", "firing", "done", 70_000, {"goodput_1m": 3 / 60})]


def test_idle_p99_fluidity_and_aborted_shares() -> None:
    one = seen(
        scoped("class", "idle_p99_1m > 4.0 && fluidity_ok_share_1m < 1.0 && aborted_share_1m > 0.3"),
        classes=load_slo(),
    )
    whole(one, 10_000, number=1)
    whole(one, 10_100, number=2)
    whole(one, 10_200, number=3, met=False, outcome="error")
    one.evaluator.advance(at(11_000))
    ((_, _, _, _, facts),) = reported(one)
    assert facts["aborted_share_1m"] == pytest.approx(1 / 3)
    assert facts["fluidity_ok_share_1m"] == pytest.approx(2 / 3)
    assert facts["idle_p99_1m"] == pytest.approx(4.8, rel=0.01)  # the token came 5 s after the commit; 0.2 s are free


def test_the_share_of_replies_that_were_cut() -> None:
    one = seen(scoped("class", "cut_share_5m > 0.4 && requests_5m >= 4"))
    for number, reason in enumerate(["stop", "MAX_TOKENS", "content_filter", None], 1):
        whole(one, 10_000 + 100 * number, number=number, reason=reason)
    one.evaluator.advance(at(11_000))
    ((_, _, _, _, facts),) = reported(one)
    assert facts["cut_share_5m"] == 0.5


def test_the_time_in_the_queue_is_that_of_requests_that_say_it() -> None:
    one = seen(scoped("instance", "queue_p99_1m > 0.4 && requests_1m >= 3"))
    for number, queue_s in enumerate([0.1, 0.5, None], 1):
        stated = dict(IDENTITY) if queue_s is None else {**IDENTITY, semconv.GEN_AI_LATENCY_QUEUE: queue_s}
        whole(one, 10_000 + 100 * number, number=number, stated={**stated, semconv.INSTANCE: "i"})
    one.evaluator.advance(at(11_000))
    ((_, _, _, _, facts),) = reported(one)
    assert facts["queue_p99_1m"] == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize("attainment", [None, "1"])
def test_without_a_budget_nothing_burns(attainment: str | None) -> None:
    one = seen(scoped("class", "burn_rate_1m > 0.1"), classes=classes(attainment))
    whole(one, 10_000, number=1, met=False)
    one.evaluator.advance(at(20_000))
    assert reported(one) == []


def test_budgets_hold_for_labels() -> None:
    actions = "[{scale: {by: 1}, ttl: 1s, budget: {per_request: 1}}, {alert: {name: A}}]"
    one = seen(scoped("class", "requests_1m == 1", actions=actions))
    whole(one, 10_000, number=1)
    whole(one, 12_000, number=2)  # two, and from 70 s on one again
    one.evaluator.advance(at(70_000))
    assert [(d.action, d.outcome, dict(d.budget)) for d in one.decisions if d.action == "scale"] == [
        ("scale", "shadow", {"per_request": True}),
        ("scale", "budget", {"per_request": False}),
    ]


def test_only_if_is_asked_of_the_same_facts() -> None:
    actions = "[{scale: {by: 1, only_if: 'requests_1m > 1'}}]"
    one = seen(scoped("class", "requests_1m > 0", actions=actions))
    whole(one, 10_000, number=1)
    one.evaluator.advance(at(10_000))
    assert flips(one) == [("firing", "only_if", 10_000)]


def test_beyond_the_bound_the_rest_is_other() -> None:
    one = seen(scoped("class", "requests_1m > 0"), limits=RegistryLimits(subjects=2))
    for number, model in enumerate(("a", "b", "c", "d", "c"), start=1):
        whole(one, 10_000 + number, number=number, stated=identity(model=model))
    one.evaluator.advance(at(11_000))
    assert sorted((d.identity["model"], d.facts["requests_1m"]) for d in one.decisions) == [
        ("a", 1),
        ("b", 1),
        ("other", 3),
    ]
    assert one.evaluator.counts["folded_groups"] == 2


def test_a_subject_without_a_stream_gives_way_and_what_fires_on_it_ends() -> None:
    one = seen(scoped("class", "requests_1m > 0"), limits=RegistryLimits(subjects=2))
    take(one, 9_000, commit(9_000, request=100, stated=identity(model="flying")))
    for number, model in enumerate(("a", "b", "c", "b"), start=1):
        whole(one, 10_000 + 2_000 * number, number=number, stated=identity(model=model))
    one.evaluator.advance(at(19_000))
    assert [(d.identity["model"], d.state, d.outcome, (d.flip_ns - at(0)) // 1_000_000) for d in one.decisions] == [
        ("a", "firing", "done", 12_000),
        ("a", "resolved", "ended", 14_000),
        ("b", "firing", "done", 14_000),
        ("b", "resolved", "ended", 16_000),
        ("c", "firing", "done", 16_000),
        ("c", "resolved", "ended", 18_000),
        ("b", "firing", "done", 18_000),
    ]
    assert one.evaluator.counts["gave_way.subjects"] == 3
    assert one.evaluator.counts["folded_groups"] == 0


def test_five_hundred_and_twenty_models_leave_room_for_a_later_one() -> None:
    one = seen(scoped("class", "requests_1m > 0"))
    for number in range(1, 521):
        whole(one, 10_000 + number, number=number, stated=identity(model=f"e{number}"))
    one.evaluator.advance(at(12_000))
    whole(one, 17_000, number=600, stated=identity(model="llama"))
    one.evaluator.advance(at(18_000))
    assert ("llama", "firing") in [(d.identity["model"], d.state) for d in one.decisions]
    assert one.evaluator.counts["folded_groups"] == 20


@pytest.mark.parametrize(("shop", "name"), [("shop", "llama"), ("flood", OTHER)])
def test_a_tenants_streams_in_flight_leave_room_for_anothers(shop: str, name: str) -> None:
    subjects = Subjects(Counter(), most=8)
    made_up = [Group("chat", f"m{number}", "", "client", "flood") for number in range(8)]
    honest = Group("chat", "llama", "", "client", shop)
    for second in (1, 2):
        subjects.begin_tick([*made_up, honest])
        found = [subjects.of("class", group, Needs(), second) for group in (*made_up, honest)]
        assert dict(found[-1].labels)["model"] == name
    gone = subjects.take_gone()
    assert [dict(one.labels)["model"] for one in gone] == (["m0"] if shop == "shop" else [])


def test_without_such_rules_nothing_is_kept() -> None:
    one = seen(RuleSet(()))
    whole(one, 10_000, number=1)
    assert one.evaluator.groups.subjects() == []
    assert one.evaluator.groups.next_tick_ns is None


def test_windows_of_an_hour_are_kept_in_minutes() -> None:
    one = seen(scoped("class", "requests_1h >= 2"))
    whole(one, 30_000, number=1)
    whole(one, 600_000, number=2)
    one.evaluator.advance(at(5_000_000))
    ((_, _, _, fired, _), (_, _, _, resolved, _)) = reported(one)
    assert fired == 600_000
    # The first leaves with its minute: after an hour at the latest, and not before 59 minutes.
    assert 30_000 + 3_540_000 <= resolved <= 30_000 + 3_600_000 + 1_000


def test_a_reload_keeps_what_is_counted_and_ends_what_is_gone() -> None:
    rules = scoped("class", "requests_1m >= 1")
    one = seen(rules)
    whole(one, 10_000, number=1)
    one.evaluator.advance(at(12_000))
    one.evaluator.reload(one.evaluator.classes, rules, at(12_500))
    one.evaluator.advance(at(14_000))
    assert flips(one) == [("firing", "done", 10_000)]
    one.evaluator.reload(one.evaluator.classes, scoped("class", "requests_1m >= 1 && streams < 9"), at(14_500))
    one.evaluator.advance(at(20_000))
    assert flips(one)[1:] == [("resolved", "ended", 14_500), ("firing", "done", 15_000)]
    one.evaluator.reload(one.evaluator.classes, RuleSet(()), at(20_500))
    assert flips(one)[3:] == [("resolved", "ended", 20_500)]
    whole(one, 21_000, number=2)
    assert one.evaluator.groups.subjects() == []
    assert one.evaluator.groups.next_tick_ns is None


def test_rules_that_come_with_a_reload_begin_there() -> None:
    one = seen(RuleSet(()))
    take(one, 9_000, commit(9_000, request=7))
    whole(one, 10_000, number=1)
    one.evaluator.reload(one.evaluator.classes, scoped("class", "streams >= 1"), at(12_500))
    one.evaluator.advance(at(14_000))
    assert flips(one) == [("firing", "done", 13_000)]


def reported_again(one: Seen, now_ns: int) -> list[Decided]:
    """Return the firings that a subscriber gets after a restart."""
    again: list[Decision] = []
    fleet = one.fleet
    engine = RuleEngine(fleet.rules, [decision.key for decision in one.decisions], again.append)
    windowing = Windowing(fleet.window_ns, fleet.timeouts.lateness_ns)
    evaluator = Evaluator(fleet.classes, engine, windowing, one, fleet.timeouts)
    evaluator.pause_group_rules()
    evaluator.resume_group_rules(now_ns)
    return [decision.key for decision in again]


def test_what_fires_by_the_decision_file_fires_after_a_restart() -> None:
    rules = scoped("class", "requests_1m >= 1", keep_firing_for="5s")
    one = seen(rules)
    whole(one, 10_000, number=1)
    one.evaluator.advance(at(12_000))
    again = Seen(one.fleet, known=[decision.key for decision in one.decisions])
    again.evaluator.pause_group_rules()
    whole(again, 10_000, number=1)
    again.evaluator.resume_group_rules(at(12_000))
    again.evaluator.advance(at(30_000))
    # What ended before the restart is forgotten: nothing holds any more, and it is said when that has been so for 5 s.
    assert flips(again) == [("resolved", "resolved", 18_000)]
    assert reported_again(one, at(12_000)) == [one.decisions[0].key]
    once_more = Seen(one.fleet, known=[decision.key for decision in (*one.decisions, *again.decisions)])
    once_more.evaluator.resume_group_rules(at(40_000))
    once_more.evaluator.advance(at(80_000))
    assert reported(once_more) == []


def test_a_journal_read_from_its_middle_decides_nothing() -> None:
    one = seen(scoped("class", "requests_1m >= 1"))
    one.evaluator.pause_group_rules()
    whole(one, 10_000, number=1)
    one.evaluator.advance(at(20_000))
    one.evaluator.resume_group_rules(at(20_000))
    one.evaluator.advance(at(22_000))
    assert reported(one) == []
    whole(one, 23_000, number=2)
    one.evaluator.advance(at(23_000))
    assert reported(one) == [("R", "firing", "done", 23_000, {"requests_1m": 1})]
