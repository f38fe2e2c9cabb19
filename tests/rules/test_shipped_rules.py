"""The rules that ship: what they see, and that they do nothing of themselves."""

from __future__ import annotations

import pytest
from rules.scripted import S, flushed, key, run, story

from otel_llm.rules.check import check_rules
from otel_llm.rules.load import load_rules
from otel_llm.rules.shipped import shipped_rules_dir

FOLDER = shipped_rules_dir()
FLUSHES = [250 * at for at in range(1, 60)]
# A healthy start: 20 tokens in 400 ms, four seconds of reading; then nothing until 7 s.
STALLED = [300 + 20 * at for at in range(20)] + [7000 + 20 * at for at in range(40)]


def test_they_are_right() -> None:
    report = check_rules([FOLDER])
    assert report.exit_code(strict=True) == 0, str(report)
    assert report.rules >= 2


def test_without_a_name_they_are_loaded_in_shadow() -> None:
    rules = load_rules()
    assert rules.shadow
    assert {rules.mode(action) for rule in rules.rules for action in rule.actions} == {"shadow"}
    assert [rule.name for rule in rules.rules] == [rule.name for rule in load_rules([FOLDER]).rules]


def test_every_action_but_an_alert_has_a_budget_and_a_time_to_live() -> None:
    for rule in load_rules().rules:
        for action in rule.actions:
            if action.verb == "alert":
                assert dict(action.arguments)["by"] == ("slo_class", "model", "instance")
                continue
            assert action.ttl_ns is not None
            assert None not in (action.limits.per_request, action.limits.per_instance, action.limits.in_flight)
            assert action.only_if is not None
            assert "exact_resume" in action.only_if.facts


def test_a_stall_behind_an_empty_buffer() -> None:
    decisions = run(load_rules(), flushed(STALLED, FLUSHES, end_ms=12_000), 20 * S)
    by_rule = {
        name: story(one for one in decisions if one.rule == name) for name in ("ReaderStarving", "ReaderAboutToStarve")
    }
    # Text lasts until 300 + 20 x 200 ms = 4300: there is warning at 2800, and starving from 4100 on for 100 ms.
    assert by_rule["ReaderAboutToStarve"] == [
        ("firing", "only_if", 2800.000001),
        ("firing", "shadow", 2800.000001),
        ("resolved", "resolved", 8000.0),
    ]
    assert by_rule["ReaderStarving"][:2] == [("firing", "only_if", 4200.000001), ("firing", "shadow", 4200.000001)]
    # Tokens come again at 7000; both are resolved when they have been content for as long as they keep firing.
    assert by_rule["ReaderStarving"][2:] == [("resolved", "resolved", 9000.0)]


def test_the_same_stall_behind_a_full_buffer_is_nobodys_business() -> None:
    tokens = [300 + 20 * at for at in range(60)] + [7000 + 20 * at for at in range(40)]
    assert run(load_rules(), flushed(tokens, FLUSHES, end_ms=9000), 20 * S) == []


@pytest.mark.parametrize("name", ["code", "voice"])
def test_other_classes_are_left_alone(name: str) -> None:
    segments = flushed(STALLED, FLUSHES, end_ms=9000)
    assert run(load_rules(), segments, 20 * S, identity={key(): {"slo_class": name}}) == []


def test_before_the_first_token_nobody_starves() -> None:
    assert run(load_rules(), flushed([], FLUSHES, end_ms=14_000), 20 * S) == []
