"""Decisions come in the order of their instants, whether or not the clock is advanced in between."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rules.scripted import one_rule
from support.core.core_cases import at, commit, ends, seen, segment, take
from support.core.core_fleets import Seen
from support.evaluate.groups import scoped

from otel_llm.rules.files.ruleset import RuleSet

RULE = "gap_seconds >= 0.5"


def reported(one: Seen) -> list[tuple[float, str, str]]:
    return [((decision.now_ns - at(0)) / 1e6, decision.scope, decision.outcome) for decision in one.decisions]


@pytest.mark.parametrize("instants", [(), (1_750,), (600, 1_501, 1_999)])
def test_a_stream_that_ends_waits_for_what_another_decided_before(instants: tuple[float, ...]) -> None:
    one = seen(one_rule(RULE, max_fact_age="10s"))
    take(one, 0, commit(0))
    take(one, 600, segment(1, 0, [], 600))
    take(one, 1_000, commit(1_000, request=2))
    for ms in instants:
        if ms > 1_000:
            one.evaluator.advance(at(ms))
    take(one, 2_000, segment(2, 0, [], 2_000, stated=ends(0, 3)))
    assert reported(one) == [(500, "stream", "done"), (1_500, "stream", "done"), (2_000, "stream", "ended")]


@pytest.mark.parametrize("instants", [(), (1_750,), (1_601, 1_999)])
def test_an_instance_waits_for_what_its_streams_decided_before(instants: tuple[float, ...]) -> None:
    (stream,) = one_rule(RULE, max_fact_age="10s").rules
    (instance,) = scoped("instance", "streams > 0").rules
    rules = RuleSet((stream, replace(instance, name="I")))
    one = seen(rules)
    take(one, 1_100, commit(1_100))
    for ms in instants:
        one.evaluator.advance(at(ms))
    take(one, 2_100, commit(2_100, request=2))
    assert reported(one)[:2] == [(1_600, "stream", "done"), (2_000, "instance", "done")]
