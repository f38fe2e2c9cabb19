"""The rules that ship: what they see, and that they do nothing of themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from rules.scripted import S, flushed, key, run, story

from otel_llm.backtest.cases.case_parser import read_test_file
from otel_llm.backtest.cases.case_runner import run_test
from otel_llm.cli.main import main
from otel_llm.rules.files.load import load_rules
from otel_llm.rules.files.shipped import shipped_rules_dir
from otel_llm.rules.lint.check import check_rules

FOLDER = shipped_rules_dir()
PAGES = Path(__file__).parents[2] / "docs" / "rules"
FLUSHES = [250 * at for at in range(1, 60)]
# A healthy start: 20 tokens in 400 ms, four seconds of reading; then nothing until 7 s.
STALLED = [300 + 20 * at for at in range(20)] + [7000 + 20 * at for at in range(40)]


def test_they_are_right() -> None:
    report = check_rules([FOLDER])
    assert report.exit_code(strict=True) == 0, str(report)
    assert report.rules == 8


def test_without_a_name_they_are_loaded_in_shadow() -> None:
    rules = load_rules()
    assert rules.shadow
    assert {rules.mode(action) for rule in rules.rules for action in rule.actions} == {"shadow"}
    assert [rule.name for rule in rules.rules] == [rule.name for rule in load_rules([FOLDER]).rules]


def test_every_action_but_an_alert_has_a_budget_and_a_time_to_live() -> None:
    by = {
        "stream": ("slo_class", "model", "instance"),
        "instance": ("slo_class", "model", "instance"),
        "class": ("slo_class", "model", "measured_at"),
    }
    for rule in load_rules().rules:
        assert any(action.verb == "alert" for action in rule.actions), rule.name
        for action in rule.actions:
            if action.verb == "alert":
                assert dict(action.arguments)["by"] == by[rule.scope]
                continue
            assert action.ttl_ns is not None
            assert None not in (action.limits.per_instance, action.limits.in_flight)
            assert action.only_if is not None
            if rule.scope == "stream":
                assert action.limits.per_request is not None
                assert "exact_resume" in action.only_if.facts


SCRIPTS = [
    pytest.param(path, one.name, id=f"{path.name.removesuffix('.test.yaml')}: {one.name}")
    for path in sorted(FOLDER.glob("*.test.yaml"))
    for one in read_test_file(path).tests
]


@pytest.mark.parametrize(("path", "name"), SCRIPTS)
def test_the_rules_pass_their_own_tests(path: Path, name: str) -> None:
    file = read_test_file(path)
    result = run_test(file, next(one for one in file.tests if one.name == name))
    assert result.passed, result.text(path.name)


def test_every_rule_is_seen_to_fire_and_not_to_fire() -> None:
    seen: dict[str, set[bool]] = {}
    for path in FOLDER.glob("*.test.yaml"):
        for test in yaml.safe_load(path.read_text("utf-8"))["tests"]:
            for one in test["expect"]:
                if "rule" in one and "firing" in one:
                    seen.setdefault(one["rule"], set()).add(bool(one["firing"]))
    assert seen == {rule.name: {True, False} for rule in load_rules().rules}


def test_every_rule_has_its_page_which_shows_it_as_it_ships() -> None:
    shipped: dict[str, object] = {}
    for path in FOLDER.glob("*.yaml"):
        for group in yaml.safe_load(path.read_text("utf-8")).get("groups", ()):
            shipped |= {rule["rule"]: rule for rule in group["rules"]}
    index = (PAGES / "README.md").read_text("utf-8")
    shown: dict[str, object] = {}
    for page in sorted(PAGES.glob("*.md")):
        if page.name == "README.md":
            continue
        text = page.read_text("utf-8")
        blocks = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
        names = [rule["rule"] for block in blocks for rule in yaml.safe_load(block)]
        assert text.startswith(f"# {', '.join(names)}\n")
        assert "**What it means.**" in text
        assert "**What to do.**" in text
        for block in blocks:
            shown |= {rule["rule"]: rule for rule in yaml.safe_load(block)}
        for name in names:
            assert f"[{name}]({page.name})" in index
    assert shown == shipped


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


def command(*arguments: str | Path) -> tuple[int, str]:
    ran = CliRunner().invoke(main, ["rules", *map(str, arguments)])
    return ran.exit_code, ran.output


def test_a_pattern_leaves_out_what_a_folder_leaves_out() -> None:
    folder = shipped_rules_dir()
    assert command("check", folder / "*.yaml") == command("check", folder)
    assert command("check", folder)[0] == 0
    code, reported = command("check", folder / "*.test.yaml")
    assert (code, "no rule files" in reported) == (2, True)


@pytest.mark.parametrize(
    ("verb", "name", "says"),
    [
        ("check", "chat.test.yaml", "rule_files: tests of rules (give this file to `otel-llm rules test`)"),
        ("check", "slo.yaml", "classes: SLO classes (give this file with --slo)"),
        ("test", "chat.yaml", "groups: rules, and no tests of them (give this file to `otel-llm rules check`"),
    ],
)
def test_a_file_for_another_command_is_distinguished(verb: str, name: str, says: str) -> None:
    code, reported = command(verb, shipped_rules_dir() / name)
    assert (code, says in reported, reported.count(name)) == (1, True, 1), reported
