"""The rule prefilter finds what is worked out by hand, and the same in every mode."""

from __future__ import annotations

import hashlib
from random import Random

import numpy as np
import pytest
from rules.drawn_streams import COMMIT, Rows, drawn
from rules.scripted import View, one_rule
from support.core.core_rules import rule
from support.core.kernel_modes import MODES, shown_in
from support.examples import SEED, examples

from otel_llm.core.rule_tables import FIRING_FINAL, FIRING_REFUTABLE, INACTIVE
from otel_llm.rules.engine.prefilter import Prefilter
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.rules.language.parser import MAX_DEPTH
from otel_llm.slo.classes import SloClass
from otel_llm.slo.live.columns import NEVER
from otel_llm.slo.stream import Stream

MS = 1_000_000


def evaluate_at(when: str, x_ms: int, state: int = INACTIVE, max_fact_age: str = "1h") -> tuple[bool, float | None]:
    """Look at a stream at an instant (ms since the commit); return whether the rule stirs, and when it may next.

    Tokens come at 1000, 1100, 1200 and 2000 ms; the user reads one in 200 ms, from the commit on: the text runs dry at
    2200 ms. Etalon's deadlines begin at 1000 ms, each 50 ms after the token before: 1, 2 + 2 and 16 are missed.
    """
    stream = Stream(SloClass(), COMMIT)
    stream.extend([COMMIT + at * MS for at in (1000, 1100, 1200, 2000)], [0] * 4)
    one = View(stream, watermark_ns=COMMIT + 2000 * MS, offset_ns=70 * MS)
    found = Rows([one], Prefilter(one_rule(when, max_fact_age=max_fact_age))).evaluate([COMMIT + x_ms * MS], state)
    opens_ns = int(found.opens_ns[0, 0])
    return bool(found.may_change[0, 0]), None if opens_ns == NEVER else (opens_ns - COMMIT) / MS


BEYOND = 1e-6
"""ms by which what must be more than a constant is later than what must reach it: a ns."""


@pytest.mark.parametrize(
    ("when", "opens_ms"),
    [
        ("tokens_read > 0 && runway_seconds < 0.2 && gap_seconds > 0.5", 2500 + BEYOND),
        ("runway_seconds <= -0.3", 2500),
        ("idle_seconds >= 2.0", 3000),
        ("idle_seconds > 1.1", "stirs"),  # 1.2 s at least
        ("idle_decode_seconds > 0.4", 2200 + BEYOND),
        ("idle_decode_seconds >= 0.4", "stirs"),
        ("age_seconds > 3.0", 3000 + BEYOND),
        ("age_seconds < 2.0", None),
        ("fact_age_seconds >= 5.0", 7000),
        ("gap_seconds == 0.1", "stirs"),
        ("gap_seconds != 0.1", 2100 + BEYOND),
        ("gap_seconds == 0.25", 2250),
        ("ttft_seconds == 1.0 && rate_tokens_per_second == 3.0", "stirs"),
        ("deadline_misses == 22 && deadlines == 23", "stirs"),  # 20, and those due at 2050 and 2100 ms
        ("deadline_misses > 22", 2200),  # one more is due at 2150 ms; looks are every 100 ms
        ("deadlines > 20 && fluidity_index < 0.043", 2200),
        ("tokens > 4", None),
        ("(gap_seconds > 0.5 || runway_seconds < -0.1) && tokens == 4", 2300 + BEYOND),
        ("!(gap_seconds > 0.5) || tokens > 9", "stirs"),
        ("!(gap_seconds < 0.5 || model == 'x' && (tokens > 9 || age_seconds < 9.0))", 2500),
        ("model == 'm' && slo_class != 'chat'", None),
        ("false", None),
        ("true && gap_seconds > 0.0", "stirs"),
    ],
)
def test_when_a_rule_opens_is_as_worked_out_by_hand(when: str, opens_ms: float | str | None) -> None:
    expected = (True, None) if opens_ms == "stirs" else (False, opens_ms)
    assert evaluate_at(when, 2100) == expected


def test_now_is_not_before_the_last_token() -> None:
    assert evaluate_at("gap_seconds >= 0.0", 1500) == (True, None)


def test_a_deadline_is_missed_behind_its_instant() -> None:
    assert evaluate_at("deadline_misses > 20", 2050) == (False, 2100)
    assert evaluate_at("deadline_misses > 20", 2051) == (True, None)


def test_an_old_fact_opens_nothing() -> None:
    assert evaluate_at("gap_seconds > 0.5", 2100, max_fact_age="500ms") == (False, None)
    assert evaluate_at("gap_seconds >= 0.5", 2100, max_fact_age="500ms") == (False, 2500)
    assert evaluate_at("gap_seconds > 0.25", 2500, max_fact_age="500ms") == (True, None)
    assert evaluate_at("gap_seconds > 0.25", 2501, max_fact_age="500ms") == (False, None)
    assert evaluate_at("fact_age_seconds > 0.25", 2501, max_fact_age="500ms") == (True, None)


def test_a_rule_that_fires_does_so_until_a_term_changes_or_for_good_when_facts_are_old() -> None:
    assert evaluate_at("gap_seconds < 0.5", 2100, FIRING_FINAL) == (False, 2500)
    assert evaluate_at("gap_seconds < 0.5", 2100, FIRING_FINAL, "500ms") == (False, 2500)
    assert evaluate_at("gap_seconds < 0.5", 2500, FIRING_FINAL) == (True, None)
    assert evaluate_at("gap_seconds < 0.5", 2100, FIRING_FINAL, "400ms") == (False, None)
    assert evaluate_at("gap_seconds < 0.5", 2500, FIRING_FINAL, "400ms") == (False, None)
    assert evaluate_at("deadline_misses > 5", 2100, FIRING_REFUTABLE) == (False, 2200)


@pytest.mark.parametrize(("innermost", "found"), [("tokens == 4", (True, None)), ("tokens == 5", (False, None))])
def test_the_deepest_condition_of_the_language_is_evaluated(innermost: str, found: tuple[bool, None]) -> None:
    when = innermost
    for depth in range(MAX_DEPTH - 2):  # the comparison and the fact are two more
        when = f"tokens > 0 && ({when})" if depth % 2 else f"tokens > 9 || ({when})"
    assert evaluate_at(when, 2100) == found


def digest_of_all(number: int) -> str:
    """Return a digest of what is found in so many looks at twenty streams."""
    found = hashlib.sha256()
    random = Random(SEED)
    for _ in range(number):
        views, x_ns = drawn(random, 20)
        prefilter = Prefilter(RuleSet(tuple(rule(random, f"R{at}", plain=True) for at in range(3))))
        if prefilter.clear:
            rows = Rows(views, prefilter)
            states = [
                [random.choice((INACTIVE, INACTIVE, FIRING_FINAL, FIRING_REFUTABLE)) for _ in range(3)] for _ in views
            ]
            evaluations = rows.evaluate(x_ns, np.array(states, dtype=np.int8))
            for column in (evaluations.unchanged, evaluations.may_change, evaluations.opens_ns, rows.table.due_ns):
                found.update(column.tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_finds_the_same(mode: dict[str, str]) -> None:
    number = examples(200)
    assert shown_in(mode, "core.test_rule_prefilter", f"digest_of_all({number})") == digest_of_all(number)
