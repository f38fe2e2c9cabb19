"""The facts of many streams as columns are those of each alone, and a rule found calm until then is calm until then."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules.scripted import View, key, one_rule
from support.core_fleets import MS, slo_class
from support.core_rules import LENGTHS, expression, rule
from support.core_spans import examples

from otel_llm.rules.cell import Cell, is_asleep, next_due_ns
from otel_llm.rules.facts import STREAM_FACTS
from otel_llm.rules.linear import first_exceeding_ns, first_reaching_ns
from otel_llm.rules.machine import State
from otel_llm.rules.retry import Retry
from otel_llm.rules.ruleset import RuleSet
from otel_llm.rules.sieve import AT_WORK, CALM, OPEN, SETTLED, Sieve, state_of
from otel_llm.rules.sieve_facts import ALWAYS, NEVER, Columns, Given
from otel_llm.rules.snapshot import IDENTITY, READ, Snapshot
from otel_llm.slo.stream import Stream

COMMIT = 1_790_000_000_000_000_000
FAR_NS = 20_000 * MS
LINEAR = [fact.name for fact in STREAM_FACTS if fact.linear]
OTHERS = [fact.name for fact in STREAM_FACTS if not fact.linear and fact.name not in IDENTITY]


def view(random: Random, number: int) -> View:
    """Draw a stream in the middle of its life, of a class of its own."""
    slo = slo_class(random, f"c{number % 2}")
    stream = Stream(slo, COMMIT + random.randrange(10**9), random.choice((None, 5, 50, 500)))
    at_ns = stream.commit_ns
    for _ in range(random.choice((0, 0, 1, 2, 9))):
        times = []
        for _ in range(random.choice((1, 2, 8, 40))):
            at_ns += random.choice((0, 1, 20 * MS, 50 * MS, 199 * MS, 900 * MS))
            times.append(at_ns)
        kind = random.choice((0, 0, 1, 2))
        stream.extend(times, [kind] * len(times))
    return View(
        stream,
        key=key(number),
        slo_class=slo.name,
        model=random.choice(("m", "n")),
        instance=random.choice(("a", "")),
        exact_resume=random.random() < 0.5,
        watermark_ns=at_ns + random.choice((0, 3, 250 * MS)),
        offset_ns=random.randrange(-(10**9), 10**9),
    )


def columns_of(views: list[View], x_ns: list[int], sieve: Sieve | None = None, *, more_tokens: int = 0) -> Columns:
    """Return the columns of streams, each at its now, as the evaluator's table holds them.

    `more_tokens`: how many have come since the engine looked at them.
    """
    found: dict[str, list[int]] = {name: [] for name in Given._fields}
    for one, x in zip(views, x_ns, strict=True):
        stream, run = one.stream, one.stream.running
        identity = (one.slo_class, one.model, one.instance, one.measured_at, one.exact_resume)
        row = {
            "x_ns": x,
            "offset_ns": one.offset_ns,
            "watermark_ns": one.watermark_ns,
            "commit_ns": stream.commit_ns,
            "tokens": len(stream.times_ns),
            "first_token_ns": stream.times_ns[0] if stream.times_ns else stream.commit_ns,
            "last_token_ns": stream.last_ns,
            "tokens_read": run.count,
            "first_read_ns": run.first_ns,
            "last_read_ns": run.last_ns,
            "allowance_ns": run.allowance_ns,
            "dry_ns": run.dry_ns,
            "pace_ns": stream.slo.pace_ns,
            "due_ns": -1 if run.due_ns is None else run.due_ns,
            "tbt_ns": stream.slo.fluidity.tbt_ns,
            "late": run.late,
            "missed": run.missed,
            "one_a_token": int(stream.slo.fluidity.count == "tokens"),
            "identity": 0 if sieve is None else sieve.bits(identity),
            "known_tokens": len(stream.times_ns) - more_tokens,
        }
        for name, value in row.items():
            found[name].append(value)
    return Columns(Given(**{name: np.array(values, dtype=np.int64) for name, values in found.items()}))


def drawn(random: Random, number: int) -> tuple[list[View], list[int]]:
    views = [view(random, at + 1) for at in range(number)]
    later = (0, 1, 30 * MS, 100 * MS, 777 * MS, 3_000 * MS)
    return views, [max(one.stream.last_ns, one.watermark_ns) + random.choice(later) for one in views]


@settings(max_examples=examples(100))
@given(st.integers(0, 2**32))
def test_every_fact_of_many_streams_is_that_of_each_alone(seed: int) -> None:
    views, x_ns = drawn(Random(seed), 12)
    columns = columns_of(views, x_ns)
    for name in OTHERS:
        values, present = columns.value(name).tolist(), columns.present((name,)).tolist()
        for at, (one, x) in enumerate(zip(views, x_ns, strict=True)):
            alone = READ[name](Snapshot(one), x)
            assert present[at] == (alone is not None), name
            assert alone is None or values[at] == alone, name


@settings(max_examples=examples(100))
@given(st.integers(0, 2**32))
def test_every_length_of_time_crosses_where_it_does_alone(seed: int) -> None:
    random = Random(seed)
    views, x_ns = drawn(random, 12)
    columns = columns_of(views, x_ns)
    for name in LINEAR:
        lines = columns.line(name)
        for text in LENGTHS[name]:
            first = random.choice((first_reaching_ns, first_exceeding_ns))(float(text))
            crosses = lines.reaches(first).tolist()
            for at, (one, x) in enumerate(zip(views, x_ns, strict=True)):
                line = Snapshot(one).line(name)
                for instant in (x, x + 1, x + 50 * MS, crosses[at] - 1, crosses[at], crosses[at] + 1):
                    if one.stream.last_ns <= instant < 2**62:
                        beyond = line.value(instant) >= first if lines.rises else line.value(instant) < first
                        assert beyond == (instant >= crosses[at]), (name, text)


def engine_alone(one: View, cell: Cell, x_ns: int) -> int | None:
    """Return when the engine, looking at a calm rule whenever it would, finds that it holds, if no token comes."""
    facts, at_ns = Snapshot(one), x_ns
    while at_ns < x_ns + FAR_NS:
        truth = cell.rule.when.truth(facts, at_ns, cell.rule.max_fact_age_ns)
        if truth:
            return at_ns
        if is_asleep(cell, facts, at_ns):
            return None
        following = next_due_ns(cell, facts, at_ns, truth, muted=False)
        if following is None:
            return None
        at_ns = following
    return None


@settings(max_examples=examples(150))
@given(st.integers(0, 2**32))
def test_a_rule_that_is_calm_until_then_is_calm_until_then(seed: int) -> None:
    random = Random(seed)
    chosen = rule(random, "R", plain=True)
    sieve = Sieve(RuleSet((chosen,)))
    if not sieve.clear:
        return
    views, x_ns = drawn(random, 20)
    columns = columns_of(views, x_ns, sieve)
    stirred, (due_ns,) = sieve.look(columns, np.full((len(views), 1), CALM, dtype=np.int8))
    for one, x, may, due in zip(views, x_ns, stirred[0].tolist(), due_ns.tolist(), strict=True):
        first = engine_alone(one, Cell(chosen, one.stream.commit_ns), x)
        if first == x:
            assert may, chosen.when.text
        elif not may:
            assert due > x
            assert first is None or due <= first, chosen.when.text


@settings(max_examples=examples(150))
@given(st.integers(0, 2**32))
def test_a_rule_that_fires_until_then_fires_until_then(seed: int) -> None:
    random = Random(seed)
    chosen = rule(random, "R", plain=True)
    sieve = Sieve(RuleSet((chosen,)))
    if not sieve.clear:
        return
    views, x_ns = drawn(random, 20)
    columns = columns_of(views, x_ns, sieve)
    stirred, (due_ns,) = sieve.look(columns, np.full((len(views), 1), SETTLED, dtype=np.int8))
    for one, x, may, due in zip(views, x_ns, stirred[0].tolist(), due_ns.tolist(), strict=True):
        facts = Snapshot(one)
        if may:
            continue
        assert chosen.when.truth(facts, x, chosen.max_fact_age_ns) is not False, chosen.when.text
        for instant in chosen.when.looks(facts, x, min(due - 1, x + FAR_NS)):
            assert chosen.when.truth(facts, instant, chosen.max_fact_age_ns) is not False, chosen.when.text


@settings(max_examples=examples(50))
@given(st.integers(0, 2**32))
def test_what_a_token_may_refute_is_as_settled_until_one_comes(seed: int) -> None:
    random = Random(seed)
    sieve = Sieve(RuleSet((rule(random, "R", plain=True), rule(random, "S", plain=True))))
    if not sieve.clear:
        return
    views, x_ns = drawn(random, 20)
    states = np.array([[random.choice([CALM, SETTLED]) for _ in range(2)] for _ in views], dtype=np.int8)
    opened = np.array([[random.random() < 0.5 for _ in range(2)] for _ in views]) & (states == SETTLED)
    expected = sieve.look(columns_of(views, x_ns, sieve), states)
    found = sieve.look(columns_of(views, x_ns, sieve), np.where(opened, OPEN, states).astype(np.int8))
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    columns = columns_of(views, x_ns, sieve, more_tokens=1)
    stirred, _ = sieve.look(columns, np.where(opened, OPEN, states).astype(np.int8))
    assert np.array_equal(stirred, expected[0] | opened.T)


@pytest.mark.parametrize(
    "when",
    [
        "gap_seconds > 0.5",
        "0.5 < gap_seconds",
        "slo_class == 'chat' && tokens_read > 0 && runway_seconds < 0.2 && gap_seconds > 0.5",
        "!(gap_seconds <= 0.5) || !exact_resume",
        "slo_class in ['chat', 'voice'] && idle_seconds >= 1.0",
        "deadline_misses > 3",
        "fluidity_index < 0.9 && tokens > 10 && model == 'm'",
        "true",
        "gap_seconds == 0.5 || idle_decode_seconds != 0.0",
    ],
)
def test_rules_that_are_looked_at_by_columns(when: str) -> None:
    assert Sieve(one_rule(when)).clear


@pytest.mark.parametrize(
    "when",
    [
        "gap_seconds > ttft_seconds",
        "gap_seconds in [0.5, 1.0]",
        "gap_seconds + 1.0 > 2.0",
        "tokens / 2 > 3",
        "exact_resume == (gap_seconds > 0.25)",
        "gap_seconds > 2000000000.0",
        "deadline_misses > 3 && gap_seconds > 0.5",
        "deadline_misses > 3 || tokens > 9",
    ],
)
def test_rules_that_are_left_to_the_engine(when: str) -> None:
    assert not Sieve(one_rule(when)).clear


@pytest.mark.parametrize("on_missing", ["false", "fire"])
def test_rules_that_do_something_about_missing_facts_are_left_to_the_engine(on_missing: str) -> None:
    assert not Sieve(one_rule("gap_seconds > 0.5", on_missing=on_missing)).clear


def test_more_terms_on_identity_than_there_are_bits_are_left_to_the_engine() -> None:
    terms = " && ".join(f"model != 'm{number}'" for number in range(62))
    assert Sieve(one_rule(f"{terms} && gap_seconds > 0.5")).clear
    assert not Sieve(one_rule(f"{terms} && instance != 'x' && gap_seconds > 0.5")).clear


def test_most_conditions_are_looked_at_by_columns() -> None:
    random = Random(1)
    rules = [rule(random, "R", plain=True) for _ in range(200)]
    assert sum(Sieve(RuleSet((one,))).clear for one in rules) > 120
    assert len({expression(random) for _ in range(200)}) > 150


def test_a_firing_that_can_still_be_refuted_is_not_settled() -> None:
    (chosen,) = one_rule("gap_seconds > 0.5").stream_rules
    cell = Cell(chosen, COMMIT)
    assert state_of(cell) == CALM
    firing = replace(cell, state=State.FIRING)
    assert state_of(firing) == SETTLED
    assert state_of(replace(firing, flip_tokens=3)) == OPEN
    assert state_of(replace(firing, missing=True)) == AT_WORK
    assert state_of(replace(firing, retries={0: Retry(0)})) == AT_WORK
    assert state_of(replace(cell, state=State.PENDING)) == AT_WORK


def test_never_and_always_are_no_instants() -> None:
    assert ALWAYS < 0 < 2**62 < NEVER
