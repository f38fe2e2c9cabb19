"""What the counters get of every stream is never negative and comes to its benefit, whenever somebody looks."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from support.chance import chances
from support.core.core_cases import at, commit, ends, request, seen, segment, take
from support.core.core_fleets import Seen, fleet, slo_classes
from support.examples import examples
from support.otlp import IDENTITY

from otel_llm import semconv
from otel_llm.evaluate.usage import Metered
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.classes import Benefit, SloClass, SloClasses


def balance(metered: list[Metered]) -> tuple[float, float]:
    """Return what all charges come to, and how much was moved in all; none may be negative."""
    for one in metered:
        assert min(one.tokens_read, one.idle_ns, one.penalty_tokens, one.refunded_tokens) >= 0
    kept = math.fsum(one.tokens_read - one.penalty_tokens + one.refunded_tokens for one in metered)
    return kept, math.fsum(one.tokens_read + one.penalty_tokens + one.refunded_tokens for one in metered)


@settings(max_examples=examples(60))
@given(chances())
def test_charges_come_to_the_benefit_whenever_somebody_reads_them(random: Random) -> None:
    drawn = fleet(random)
    one = Seen(drawn)
    often = random.choice((0.0, 0.1, 0.5, 0.9))
    for delivery in drawn.deliveries:
        if random.random() < often / 10:
            one.evaluator.reload(slo_classes(random), RuleSet(()), delivery.receipt_ns - 1)
        one.take(delivery)
        while random.random() < often:
            one.metered += one.evaluator.meter.charge_in_flight()
    one.rest()
    benefit = math.fsum(verdict.benefit or 0.0 for verdict in one.verdicts if verdict is not None)
    kept, moved = balance(one.metered)
    assert kept == pytest.approx(benefit, abs=1e-6 + 1e-9 * moved)
    groups = {(row["slo_class"], row["model"] or "") for row in one.rows}
    assert {one.group[:2] for one in one.metered if one.tokens_read and not often} <= groups


def test_nothing_is_charged_twice() -> None:
    one = seen()
    take(one, 0, commit())
    take(one, 1000, segment(1, 0, [100, 900], 1000))
    (first,) = one.evaluator.meter.charge_in_flight()
    assert list(one.evaluator.meter.charge_in_flight()) == []
    # 400 ms until the second token is due at the reader's pace, and 900 it came: half a second of waiting.
    assert (first.tokens_read, first.idle_ns, first.penalty_tokens, first.refunded_tokens) == (
        2,
        500 * 10**6,
        1.25,
        0.0,
    )
    take(one, 1200, segment(2, 2, [], 1200, stated=ends(2, 3)), request(1200))
    assert [charge[1:] for charge in one.metered] == [(0, 0, 0.0, 0.0)]


def test_waiting_that_turns_out_to_be_none_is_given_back() -> None:
    one = seen()
    take(one, 0, commit())
    take(one, 1000, segment(1, 0, [], 1000))
    (waited,) = one.evaluator.meter.charge_in_flight()
    assert waited.idle_ns == 800 * 10**6
    take(
        one, 1100, segment(2, 0, [], 1100, stated=ends(0, 3)), request(1100)
    )  # completed without a token: nothing to judge
    (back,) = one.metered
    assert (back.idle_ns, back.refunded_tokens) == (0, waited.penalty_tokens)


def test_a_stream_that_is_distinguished_late_is_charged_under_its_name() -> None:
    one = seen()
    take(one, 0, commit(stated={}))
    take(one, 500, segment(1, 0, [100, 200], 500))
    one.metered += one.evaluator.meter.charge_in_flight()
    take(
        one,
        600,
        segment(2, 2, [], 600, stated=ends(2, 3)),
        request(600, stated={**IDENTITY, semconv.SLO_CLASS: "agent"}),
    )
    assert balance([charge for charge in one.metered if charge.group[0] == "chat"])[0] == pytest.approx(0.0)
    (verdict,) = one.verdicts
    assert verdict is not None
    assert balance([charge for charge in one.metered if charge.group[0] == "agent"])[0] == pytest.approx(
        verdict.benefit
    )


@pytest.mark.parametrize("penalty", ["linear", "quadratic", "exponential"])
def test_many_streams_of_many_classes_at_one_evaluation(penalty: str) -> None:
    names = [f"k{number}" for number in range(5)]
    slo = [
        SloClass(name, pace_ns=10**8 * (at + 1), benefit=Benefit(1.5 * at, penalty))  # type: ignore[arg-type]
        for at, name in enumerate(names)
    ]
    one = seen(classes=SloClasses(tuple(slo), "k0"))
    for number in range(1, 51):
        stated = {**IDENTITY, semconv.SLO_CLASS: names[number % 5], semconv.GEN_AI_REQUEST_MODEL: f"m{number % 3}"}
        take(one, 0, commit(request=number, stated=stated))
        take(one, 2000, segment(1, 0, [number * 10, 1500], 2000, request=number))
    found = {charge.group: charge for charge in one.evaluator.meter.charge_in_flight()}
    assert len(found) == 15
    for group, charge in found.items():
        streams = [stream for stream in one.evaluator.live.values() if stream.group == group]
        waits = [stream.stream.at(at(2000)).idle_ns for stream in streams]
        assert charge.tokens_read == 2 * len(streams)
        assert charge.idle_ns == sum(waits)
        owed = math.fsum(stream.slo.benefit.penalty_tokens(wait) for stream, wait in zip(streams, waits, strict=True))
        assert charge.penalty_tokens == pytest.approx(owed, rel=1e-12)
        assert charge.refunded_tokens == 0.0


def test_the_class_of_a_stream_in_flight_stays_what_it_was_charged_by() -> None:
    known = load_slo()
    dearer = replace(known.classes[0], benefit=Benefit(alpha=10.0))
    one = seen(classes=known)
    take(one, 0, commit())
    take(one, 1000, segment(1, 0, [900], 1000))
    one.metered += one.evaluator.meter.charge_in_flight()
    one.evaluator.reload(SloClasses((dearer, *known.classes[1:]), "chat"), RuleSet(()), at(1100))
    one.metered += one.evaluator.meter.charge_in_flight()
    take(one, 1300, segment(2, 1, [], 1300, stated=ends(1, 3)), request(1300))
    (verdict,) = one.verdicts
    assert verdict is not None
    assert verdict.benefit == pytest.approx(1 - 10 * 0.7)
    assert balance(one.metered)[0] == pytest.approx(verdict.benefit)
