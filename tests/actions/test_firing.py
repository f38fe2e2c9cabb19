"""Alerts out of decisions, on instants that a test gives: who joins, who leaves, what is sent, what a restart keeps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules.scripted import flushed, one_rule, run
from support.actions.alerting import T0, S, decision
from support.chance import chances
from support.examples import examples

from otel_llm.actions.alerts.alert_formats import annotations_of, event_id, for_alertmanager, label_name
from otel_llm.actions.alerts.alerts import State, state_bytes, state_of
from otel_llm.actions.alerts.firing import Alert, Event, Firing
from otel_llm.rules.decisions.decision_records import Decision

SETTLE_NS = 5 * S
KEEP_NS = 900 * S
CHAT_A = (("alertname", "Starving"), ("instance", "a"), ("model", "m"), ("slo_class", "chat"))


def begun(*saved: Alert, saved_s: float | None = None) -> Firing:
    firing = Firing(SETTLE_NS, KEEP_NS)
    firing.begin(saved, None if saved_s is None else T0 + round(saved_s * S), T0)
    return firing


def reported(events: Sequence[Event]) -> list[tuple[str, dict[str, str], int]]:
    return [(event.status, dict(event.alert.key), event.alert.starts_ns - T0) for event in events]


def test_two_thousand_streams_are_one_alert() -> None:
    firing = begun()
    for number in range(2000):
        firing.take(decision(number, 1 + number / 1000))
    ((alert, status),) = firing.poll(T0 + 4 * S)
    assert (status, alert.key, alert.starts_ns) == ("firing", CHAT_A, T0 + S)
    assert annotations_of(alert) == {
        "summary": "ReaderStarving: 2000 streams now, 2000 since 2026-09-21T14:13:21.000000000Z",
        "count": "2000",
        "total": "2000",
        "rules": "ReaderStarving",
        "facts": "gap_seconds 0.700, runway_seconds missing",
        "trace_ids": ", ".join(f"{number:032x}" for number in range(5)),
    }
    for number in range(1999):
        firing.take(decision(number, 5, "resolved"))
    assert firing.poll(T0 + 100 * S) == []
    assert annotations_of(alert)["summary"].startswith("ReaderStarving: 1 stream now, 2000 since")
    firing.take(decision(1999, 101, "resolved"))
    assert firing.poll(T0 + 106 * S - 1) == []
    assert firing.next_ns() == T0 + 106 * S
    assert [(event.alert.ends_ns, event.status) for event in firing.poll(T0 + 106 * S)] == [(T0 + 101 * S, "resolved")]
    assert firing.poll(T0 + 107 * S) == []
    assert len(firing.alerts()) == 1  # it is sent again for a while
    firing.poll(T0 + 101 * S + KEEP_NS)
    assert firing.alerts() == []


def test_labels_tell_alerts_apart_and_only_those_of_by() -> None:
    firing = begun()
    firing.take(decision(1, 1, by=("instance",), instance="a", model="m"))
    firing.take(decision(2, 1, by=("instance",), instance="b", model="n"))
    firing.take(decision(3, 1, by=("instance",), instance="a", model="n"))
    firing.take(decision(4, 1, by=("instance",), instance=""))
    firing.take(decision(5, 1, by=(), name="Any"))
    assert {alert.key: alert.count for alert in firing.alerts()} == {
        (("alertname", "Starving"), ("instance", "a")): 2,
        (("alertname", "Starving"), ("instance", "b")): 1,
        (("alertname", "Starving"),): 1,
        (("alertname", "Any"),): 1,
    }


@pytest.mark.parametrize("outcome", ["shadow", "budget", "only_if"])
def test_what_was_not_sent_is_no_alert(outcome: str) -> None:
    firing = begun()
    firing.take(decision(1, 1, outcome=outcome))  # type: ignore[arg-type]
    firing.take(decision(2, 1, action="migrate", outcome="unconfirmed"))
    firing.take(decision(1, 2, "resolved"))
    assert firing.poll(T0 + 100 * S) == []
    assert firing.alerts() == []


def test_a_stream_of_two_rules_counts_once_and_stays_until_both_have_ended() -> None:
    firing = begun()
    firing.take(decision(1, 1, rule="A"))
    firing.take(decision(1, 2, rule="B"))
    (alert,) = firing.alerts()
    assert (alert.count, alert.total, alert.rules) == (1, 1, ["A", "B"])
    firing.take(decision(1, 3, "resolved", rule="A"))
    assert (alert.count, alert.empty_ns) == (1, None)
    firing.take(decision(1, 4, "resolved", rule="B", outcome="ended"))
    assert (alert.count, alert.empty_ns) == (0, T0 + 4 * S)


def test_streams_that_take_turns_make_one_alert_not_fifty() -> None:
    firing = begun()
    events = []
    for number in range(50):
        firing.take(decision(number, number * 2.0))
        events += firing.poll(T0 + round((number * 2 + 0.5) * S))
        firing.take(decision(number, number * 2 + 1.0, "resolved"))
        events += firing.poll(T0 + round((number * 2 + 1.5) * S))
    events += firing.poll(T0 + 1000 * S)
    assert reported(events) == [("firing", dict(CHAT_A), 0), ("resolved", dict(CHAT_A), 0)]
    assert events[-1].alert.total == 50


def test_an_alert_that_begins_again_is_another() -> None:
    firing = begun()
    events = []
    for at_s in (0, 100):
        firing.take(decision(1, at_s))
        events += firing.poll(T0 + (at_s + 1) * S)
        ids = [event_id(event) for event in events]
        firing.take(decision(1, at_s + 2, "resolved"))
        events += firing.poll(T0 + (at_s + 50) * S)
    assert [(status, starts // S) for status, _, starts in reported(events)] == [
        ("firing", 0),
        ("resolved", 0),
        ("firing", 100),
        ("resolved", 100),
    ]
    ids = [event_id(event) for event in events]
    assert len(set(ids)) == 4
    assert all("." not in one for one in ids)


def test_other_scopes_are_alerts_of_their_labels() -> None:
    firing = begun()
    firing.take(decision("a", 1, scope="class", by=("slo_class",), slo_class="chat", model="m"))
    firing.take(decision("b", 1, scope="class", by=("slo_class",), slo_class="chat", model="n"))
    (alert,) = firing.alerts()
    assert annotations_of(alert)["summary"].startswith("ReaderStarving: 2 classes now")
    assert "trace_ids" not in annotations_of(alert)
    firing.take(decision("a", 2, "resolved", scope="class", slo_class="chat", model="m"))
    assert alert.count == 1


def test_names_for_alertmanager() -> None:
    assert label_name("gen_ai.request.model") == "gen_ai_request_model"
    assert label_name("2nd-model") == "_2nd_model"
    firing = begun()
    firing.take(decision(1, 1, instance='a "quoted" \\ ünï \n name'))
    (alert,) = firing.alerts()
    entry = for_alertmanager(alert, T0 + 2 * S, 240 * S)
    assert entry["labels"]["instance"] == 'a "quoted" \\ ünï \n name'
    assert (entry["startsAt"], entry["endsAt"]) == ("2026-09-21T14:13:21.000000000Z", "2026-09-21T14:17:22.000000000Z")
    alert.ends_ns = T0 + 3 * S
    assert for_alertmanager(alert, T0 + 9 * S, 240 * S)["endsAt"] == "2026-09-21T14:13:23.000000000Z"


def test_a_restart_takes_up_what_fires_and_ends_what_fires_no_more() -> None:
    before = begun()
    for number, instance in ((1, "a"), (2, "b"), (3, "c")):
        before.take(decision(number, number, instance=instance))
    before.take(decision(3, 4, "resolved", instance="c"))
    assert len(before.poll(T0 + 20 * S)) == 4
    saved = reread(before, 20)
    after = Firing(SETTLE_NS, KEEP_NS)
    after.take(decision(1, 1.5, instance="a"))  # the journal begins later: the first member is not in it
    after.take(decision(4, 21, instance="d"))  # began after the last time of writing
    after.take(decision(5, 22, instance="e"))  # as well, and is over
    after.take(decision(5, 23, "resolved", instance="e"))
    after.take(decision(6, 10, instance="f"))  # is over, and was sent and forgotten long ago
    after.take(decision(6, 11, "resolved", instance="f"))
    after.begin(saved.alerts, saved.saved_ns, T0 + 30 * S)
    events = after.poll(T0 + 31 * S) + after.poll(T0 + 36 * S)
    assert [(status, labels["instance"], starts // S) for status, labels, starts in reported(events)] == [
        ("firing", "d", 21),
        ("firing", "e", 22),
        ("resolved", "e", 22),
        ("resolved", "b", 2),
    ]
    by_instance = {dict(alert.key)["instance"]: alert for alert in after.alerts()}
    assert by_instance["a"].starts_ns == T0 + 1 * S  # as it was sent
    assert by_instance["c"].status == "resolved"  # and will be sent again
    assert by_instance["b"].ends_ns == T0 + 30 * S


def test_what_ended_and_was_told_in_the_last_second_is_not_told_again() -> None:
    taken = [decision(1, 19.5), decision(1, 19.6, "resolved")]
    before = Firing(S // 10, KEEP_NS)
    before.begin([], None, T0)
    for one in taken:
        before.take(one)
    assert len(before.poll(T0 + 20 * S)) == 2
    saved = reread(before, 20)
    after = Firing(S // 10, KEEP_NS)
    for one in taken:
        after.take(one)
    after.begin(saved.alerts, saved.saved_ns, T0 + 21 * S)
    assert after.poll(T0 + 30 * S) == []
    assert [alert.status for alert in after.alerts()] == ["resolved"]  # it is sent again for a while all the same


def test_a_rule_at_its_threshold_with_noise_makes_one_alert_not_fifty() -> None:
    """Tokens come every 450 to 560 ms, and the rule says more than 500: it fires and resolves again and again."""
    chance = random.Random(6)
    tokens_ms, at_ms = [], 0
    for _ in range(120):
        at_ms += chance.randrange(450, 560)
        tokens_ms.append(at_ms)
    rules = one_rule("gap_seconds > 0.5", actions="[{alert: {name: A, by: [instance]}}]")
    segments = flushed(tokens_ms, range(50, at_ms + 50, 50), end_ms=at_ms + 50)
    decisions = run(rules, segments, (at_ms + 1000) * 1_000_000)
    fired = sum(one.action == "alert" for one in decisions)
    assert fired > 50
    firing = Firing(SETTLE_NS, KEEP_NS)
    firing.begin([], None, 0)
    events = []
    for one in decisions:
        firing.take(one)
        events += firing.poll(one.now_ns)
    events += firing.poll((at_ms + 60_000) * 1_000_000)
    assert [event.status for event in events] == ["firing", "resolved"]
    assert events[0].alert.total == fired


def test_without_a_state_what_fires_is_told_and_nothing_that_is_over() -> None:
    firing = Firing(SETTLE_NS, KEEP_NS)
    firing.take(decision(1, 1, instance="a"))
    firing.take(decision(2, 1, instance="b"))
    firing.take(decision(2, 2, "resolved", instance="b"))
    firing.begin([], None, T0 + 3 * S)
    assert reported(firing.poll(T0 + 60 * S)) == [("firing", dict(CHAT_A), S)]


def reread(firing: Firing, saved_s: float) -> State:
    """Return what another run reads of what this one writes."""
    import json

    return state_of(json.loads(state_bytes(State(T0 + round(saved_s * S), firing.alerts()))))


@settings(max_examples=examples(200))
@given(chance=chances(), crash_s=st.integers(1, 60))
def test_a_crash_at_any_second_loses_nothing_and_doubles_nothing(chance: random.Random, crash_s: int) -> None:
    """Looked at, and written down, every second; the journal is read again from its beginning."""
    decisions = script(chance)

    def run(firing: Firing, from_s: int, until_s: int) -> list[Event]:
        events = []
        for second in range(from_s, until_s):
            for one in decisions:
                if T0 + second * S <= one.now_ns < T0 + (second + 1) * S:
                    firing.take(one)
            if second + 1 < until_s or until_s == END_S:
                events += firing.poll(T0 + (second + 1) * S)
        return events

    whole = reported(run(begun(), 0, END_S))
    first = begun()
    events = reported(run(first, 0, crash_s))  # what was taken in the last second is not looked at any more
    looked = begun()  # what stands in the state is what the last look has left there
    run(looked, 0, crash_s - 1)
    looked.poll(T0 + (crash_s - 1) * S)
    saved = reread(looked, crash_s - 1)
    second = Firing(SETTLE_NS, KEEP_NS)
    for one in decisions:
        if one.now_ns < T0 + crash_s * S:
            second.take(one)
    second.begin(saved.alerts, saved.saved_ns, T0 + crash_s * S)
    events += reported(second.poll(T0 + crash_s * S)) + reported(run(second, crash_s, END_S))
    assert sorted(map(repr, events)) == sorted(map(repr, whole))
    for instance in "ab":
        mine = [status for status, labels, _ in events if labels["instance"] == instance]
        assert all(one != other for one, other in pairwise(mine)), "twice in a row"
        assert mine[:1] in ([], ["firing"])


END_S = 90


def script(chance: random.Random) -> list[Decision]:
    """Return streams that fire once each, on two instances, within a minute, at instants between whole seconds."""
    found = []
    for number in range(chance.randrange(1, 12)):
        instance = chance.choice("ab")
        start_s = chance.randrange(0, 60) + 0.5
        end_s = start_s + chance.choice((0.25, 1, 3, 8, 20))
        found.append(decision(number, start_s, instance=instance))
        if end_s < 75:
            found.append(decision(number, end_s, "resolved", instance=instance))
    return sorted(found, key=lambda one: one.now_ns)
