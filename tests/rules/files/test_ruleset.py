"""Rules as loaded: defaults, hashes, folders and globs, what is refused as a set."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rules.scripted import MS, S, one_rule, ruleset

from otel_llm.actions.settings import DOES
from otel_llm.config.yaml_file import ConfigError, UnreadableConfigError, parse_yaml
from otel_llm.rules.files.load import RulesError, load_rules, rule_files
from otel_llm.rules.files.rule_parser import RuleParser
from otel_llm.rules.files.ruleset import Limits, Rule, Verb
from otel_llm.rules.lint.check import check_rules, finding

FULL = """
version: 1
groups:
- name: chat
  scope: stream
  rules:
  - rule: ReaderStarving
    when: 'slo_class == "chat" && tokens_read > 0 && runway_seconds < 0.2 && gap_seconds > 0.5'
    resolve_when: 'runway_seconds > 1.0'
    for: 100ms
    keep_firing_for: 2s
    on_missing: hold            # hold | false | fire
    max_fact_age: 1500ms
    actions:
    - migrate: {to: safest, only_if: 'exact_resume'}
      mode: shadow
      ttl: 400ms
      budget: {per_request: 1, per_instance: 2 in 10s, in_flight: 4}
    - alert: {name: LlmReadersStarving, by: [slo_class, model, instance]}
"""
# The same, with other quotes, order of keys, spaces and spellings of numbers and durations.
RESPELT = """
groups:
- rules:
  - actions:
    - budget: {in_flight: 4, per_instance: '2 in 10000ms', per_request: 1}
      migrate:
        only_if: exact_resume
      ttl: 0.4
    - mode: enforce
      alert:
        by:
        - slo_class
        - model
        - instance
        name: "LlmReadersStarving"
    when: >
      slo_class == 'chat' && (tokens_read > 0)
      && runway_seconds < 2e-1 && gap_seconds > 0.25 + 0.25
    resolve_when: runway_seconds>1.0
    for: 0.1s
    keep_firing_for: 2
    rule: ReaderStarving
  scope: stream
  name: another group
version: 1
"""


def rule(text: str) -> Rule:
    return ruleset(text).rules[0]


def test_the_example_of_the_design() -> None:
    loaded = rule(FULL)
    assert (loaded.name, loaded.group, loaded.scope) == ("ReaderStarving", "chat", "stream")
    assert (loaded.for_ns, loaded.keep_firing_for_ns, loaded.max_fact_age_ns) == (100 * MS, 2 * S, 1500 * MS)
    assert loaded.on_missing == "hold"
    migrate, alert = loaded.actions
    assert (migrate.verb, migrate.mode, migrate.ttl_ns) == ("migrate", "shadow", 400 * MS)
    assert migrate.limits == Limits(1, (2, 10 * S), 4)
    assert dict(migrate.arguments) == {"to": "safest"}
    assert migrate.only_if is not None
    assert migrate.only_if.facts == ("exact_resume",)
    assert (alert.verb, alert.mode, alert.ttl_ns, alert.limits) == ("alert", "enforce", None, Limits())
    assert dict(alert.arguments) == {"name": "LlmReadersStarving", "by": ("slo_class", "model", "instance")}


def test_defaults() -> None:
    loaded = one_rule("tokens > 1", actions="[{migrate: {}}]").rules[0]
    assert (loaded.for_ns, loaded.keep_firing_for_ns, loaded.max_fact_age_ns) == (0, 0, 1500 * MS)
    assert loaded.on_missing == "hold"
    assert loaded.resolve_when is None
    assert (loaded.actions[0].mode, loaded.actions[0].ttl_ns) == ("shadow", 1 * S)


def test_a_hash_is_of_the_meaning() -> None:
    assert rule(FULL).hash == rule(RESPELT).hash
    # Pinned: records of one release are compared with rules of the next.
    assert rule(FULL).hash == "60b7e81702eb52cd"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ReaderStarving", "ReaderStarved"),
        ("gap_seconds > 0.5", "gap_seconds >= 0.5"),
        ("runway_seconds > 1.0", "runway_seconds > 1.1"),
        ("for: 100ms", "for: 101ms"),
        ("keep_firing_for: 2s", "keep_firing_for: 3s"),
        ("on_missing: hold", "on_missing: false"),
        ("max_fact_age: 1500ms", "max_fact_age: 2s"),
        ("to: safest", "to: pack"),
        ("'exact_resume'", "'!exact_resume'"),
        ("ttl: 400ms", "ttl: 500ms"),
        ("per_request: 1", "per_request: 2"),
        ("2 in 10s", "2 in 11s"),
        ("in_flight: 4", "in_flight: 5"),
        ("name: LlmReadersStarving", "name: Other"),
        ("[slo_class, model, instance]", "[slo_class, model]"),
    ],
)
def test_whatever_changes_the_meaning_changes_the_hash(old: str, new: str) -> None:
    assert old in FULL
    assert rule(FULL.replace(old, new)).hash != rule(FULL).hash


def test_on_missing_false_may_be_written_bare() -> None:
    for text in ("false", '"false"'):
        assert one_rule("tokens > 1", on_missing=text).rules[0].on_missing == "false"


def test_every_verb_is_read() -> None:
    actions = """
    - alert: {name: A}
    - migrate: {to: spread}
    - preempt: {only_if: 'tokens > 3'}
    - abort: {}
    - drain: {}
    - scale: {by: -1}
    - webhook: {to: pager}
    """
    verbs = [action.verb for action in one_rule("tokens > 1", actions=actions).rules[0].actions]
    assert verbs == ["alert", "migrate", "preempt", "abort", "drain", "scale", "webhook"]


@pytest.mark.parametrize("verb", [verb for verb in get_args(Verb) if verb != "alert"])
def test_what_nobody_does_yet_is_told_who_could_do_it(tmp_path: Path, verb: Verb) -> None:
    file = tmp_path / "r.yaml"
    arguments = {"webhook": "{to: pager}", "migrate": "{to: safest}"}.get(verb, "{}")
    text = FULL.replace("mode: shadow", "mode: enforce").replace("{to: safest, only_if: 'exact_resume'}", arguments)
    file.write_text(text.replace("migrate:", f"{verb}:"))
    with pytest.raises(RulesError) as refused:
        load_rules([file])
    without_relay = {"webhook"}.union(*(verbs for kind, verbs in DOES.items() if kind != "relay"))
    assert refused.value.advice == (
        "give --config FILE with settings that name who does it, or write `mode: shadow`"
        if verb in without_relay
        else "a relay does it: give these rules to `otel-llm relay`, or give --config FILE with an engine of kind "
        "relay, or write `mode: shadow`"
    )


def test_an_executor_allows_enforce(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(FULL.replace("mode: shadow", "mode: enforce"))
    with pytest.raises(RulesError, match="nothing is configured here that does `migrate`"):
        load_rules([file])
    assert load_rules([file], executors={"migrate"}).rules[0].actions[0].mode == "enforce"


def test_rules_of_other_scopes_are_distinguished_from_those_of_streams() -> None:
    rules = ruleset(
        """
version: 1
groups:
- name: fast burn
  scope: class
  rules:
  - {rule: Burn, when: 'burn_rate_5m > 14.4 && burn_rate_1h > 14.4 && requests_5m > 20', actions: [{alert: {name: B}}]}
- name: instances
  scope: instance
  rules:
  - {rule: Sick, when: 'starving_share > 0.5 && streams > 3 && instance != ""', actions: [{drain: {}}]}
"""
    )
    assert [one.name for one in rules.group_rules] == ["Burn", "Sick"]
    assert rules.stream_rules == ()


def test_folders_hold_rules_beside_other_files(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(FULL)
    (tmp_path / "a.yml").write_text(FULL.replace("ReaderStarving", "Other"))
    (tmp_path / "slo.yaml").write_text("version: 1\ndefault: chat\nclasses: {chat: {}}\n")
    (tmp_path / "notes.txt").write_text("nothing")
    assert [rule.name for rule in load_rules([tmp_path]).rules] == ["Other", "ReaderStarving"]
    assert rule_files([tmp_path, tmp_path / "b.yaml", f"{tmp_path}/[ab].y*ml"]) == [
        tmp_path / "a.yml",
        tmp_path / "b.yaml",
    ]


def test_a_broken_file_in_a_folder_is_not_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(FULL)
    (tmp_path / "b.yaml").write_text("groups: [")
    with pytest.raises(RulesError, match="not YAML"):
        load_rules([tmp_path])


@pytest.mark.parametrize("argument", ["missing.yaml", "missing-*.yaml", "."])
def test_what_cannot_be_read(argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreadableConfigError):
        load_rules([argument])


def test_names_are_unique_over_all_files(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(FULL)
    with pytest.raises(RulesError) as caught:
        load_rules([tmp_path])
    assert "another rule is called ReaderStarving" in str(caught.value)
    assert f"{tmp_path / 'a.yaml'}:7" in str(caught.value)


def test_everything_that_is_wrong_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(FULL.replace("tokens_read", "tokens_red").replace("2 in 10s", "2"))
    (tmp_path / "b.yaml").write_text(FULL.replace("resolve_when: 'runway_seconds > 1.0'", "resolve_when: '1'"))
    with pytest.raises(RulesError) as caught:
        load_rules([tmp_path])
    assert len(caught.value.errors) == 3
    report = check_rules([tmp_path])
    assert (report.errors, report.exit_code(), report.files) == (3, 1, 2)


def test_a_right_file_is_reported_as_right(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(FULL)
    report = check_rules([tmp_path / "a.yaml"])
    assert str(report) == "1 rule in 1 file: 0 errors, 0 warnings"
    assert report.exit_code() == report.exit_code(strict=True) == 0


def test_rules_of_an_instance_are_right(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        FULL.replace("scope: stream", "scope: instance")
        .replace('slo_class == "chat" && tokens_read > 0 && runway_seconds < 0.2 && gap_seconds > 0.5', "starving > 3")
        .replace("runway_seconds > 1.0", "starving < 2")
        .replace("migrate: {to: safest, only_if: 'exact_resume'}", "drain: {}")
        .replace("for: 100ms", "for: 2s")
    )
    report = check_rules([tmp_path / "a.yaml"])
    assert report.findings == ()
    assert report.exit_code(strict=True) == 0


def test_in_shadow_nothing_is_done() -> None:
    rules = ruleset(FULL).in_shadow()
    assert {rules.mode(action) for action in rules.rules[0].actions} == {"shadow"}
    assert rules.rules[0].hash == ruleset(FULL).rules[0].hash


NOISE = [
    "",
    " ",
    "\n",
    "  ",
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "'",
    '"',
    "&a",
    "*a",
    "!x ",
    "|",
    ">",
    "#",
    "1",
    "\t",
    "\x00",
]
EDITS = st.tuples(st.integers(0, len(FULL)), st.integers(0, 30), st.sampled_from(NOISE))


@given(st.lists(EDITS, min_size=1, max_size=3))
def test_a_file_with_anything_in_it_is_read_or_refused(edits: list[tuple[int, int, str]]) -> None:
    text = FULL
    for at, length, put in edits:
        text = text[:at] + put + text[at + length :]
    try:
        file = parse_yaml(text.encode(), "f.yaml")
    except ConfigError:
        return
    parser = RuleParser(file)
    rules = parser.rules()
    for error in parser.errors:
        shown = finding(error, file.text)
        assert error.line is not None
        assert f"f.yaml:{error.line}:" in str(shown)
        assert "^" in shown.shown[1]
    assert rules or parser.errors or not [rule for group in file.data["groups"] for rule in group["rules"]]
