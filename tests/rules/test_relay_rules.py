"""What a relay adds to the language: its verbs enforced, a placement, and a lint of runways."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from click.testing import CliRunner

from otel_llm.actions.execute.executors import RELAY_DOES, load_enforced
from otel_llm.actions.settings import ServiceSettings
from otel_llm.cli.main import main
from otel_llm.collector.settings import load_settings
from otel_llm.rules.files.load import RulesError, load_rules
from otel_llm.rules.files.shipped import shipped_rules_dir
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.rules.lint.check import Report, check_rules, token_read_times
from otel_llm.slo.stream import Stream

EXAMPLE = Path(__file__).parents[2] / "examples" / "relay" / "rules.yaml"
RULE = """version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: A
    when: '{when}'
    actions:
    - {verb}: {{only_if: 'exact_resume'}}
      mode: {mode}
      budget: {{per_request: 1}}
"""
SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()
STALL = "tokens_read > 0 && gap_seconds > 0.3"


def written(tmp_path: Path, when: str = STALL, verb: str = "migrate", mode: str = "enforce") -> Path:
    file = tmp_path / "rules.yaml"
    file.write_text(RULE.format(when=when, verb=verb, mode=mode), encoding="utf-8")
    return file


def output(*arguments: object) -> tuple[int, str]:
    ran = CliRunner().invoke(main, [str(one) for one in arguments])
    return ran.exit_code, ran.output


@pytest.mark.parametrize("verb", ["migrate", "preempt"])
def test_check_says_that_a_relay_is_needed(tmp_path: Path, verb: str) -> None:
    file = written(tmp_path, verb=verb)
    for strict in ((), ("--strict",)):
        code, text = output("rules", "check", *strict, file)
        assert code == 0
        assert text == (
            f"{file}:10:13: groups[0].rules[0].actions[0].mode: note: a relay is needed, which does `{verb}` (run "
            "`otel-llm relay --rules` with this file, or name an engine of kind relay in --config)\n"
            "   10 |       mode: enforce\n"
            "      |             ^\n"
            "1 rule in 1 file: 0 errors, 0 warnings, 1 note\n"
        )


@pytest.mark.parametrize("verb", ["migrate", "preempt"])
def test_where_the_settings_name_a_relay_it_may_be_enforced(tmp_path: Path, verb: str) -> None:
    file, config = written(tmp_path, verb=verb), tmp_path / "config.yaml"
    (tmp_path / "relay.secret").write_text(SECRET)
    engine = "kind: relay, instances: {'*': 'http://127.0.0.1:9465'}, secret_file: relay.secret"
    config.write_text(f"version: 1\nactions: {{engines: {{r: {{{engine}}}}}}}\n")
    code, text = output("rules", "check", "--strict", "--config", config, file)
    assert (code, text) == (0, "1 rule in 1 file: 0 errors, 0 warnings\n")
    load_enforced([file], load_settings(config))
    config.write_text("version: 1\nactions: {engines: {r: {kind: vllm, instances: {'*': 'http://127.0.0.1:9'}}}}\n")
    code, text = output("rules", "check", "--config", config, file)
    assert (code, text.count("note: a relay is needed")) == (0, 1)
    with pytest.raises(RulesError, match=f"nothing is configured here that does `{verb}`"):
        load_enforced([file], load_settings(config))


@pytest.mark.parametrize("verb", sorted(RELAY_DOES))
def test_the_settings_of_a_relay_are_understood(tmp_path: Path, verb: str) -> None:
    file, config = written(tmp_path, verb=verb), tmp_path / "relay.yaml"
    config.write_text("version: 1\nbackends: {a: {url: 'http://127.0.0.1:8000'}}\n")
    code, text = output("rules", "check", "--strict", "--config", config, file)
    assert (code, text) == (0, "1 rule in 1 file: 0 errors, 0 warnings\n")
    config.write_text("version: 1\nbackends: {a: {uri: 'http://127.0.0.1:8000'}}\n")
    code, text = output("rules", "check", "--config", config, file)
    assert (code, f"{config}:2:16: backends.a.uri: unknown key" in text) == (2, True)


def test_in_shadow_nothing_is_needed(tmp_path: Path) -> None:
    assert output("rules", "check", written(tmp_path, mode="shadow")) == (
        0,
        "1 rule in 1 file: 0 errors, 0 warnings\n",
    )


def test_what_the_settings_can_name_somebody_for_is_refused_without_them(tmp_path: Path) -> None:
    code, text = output("rules", "check", written(tmp_path, verb="abort"))
    assert code == 1
    assert "nothing is configured here that does `abort`" in text


def test_collect_refuses_what_needs_a_relay_and_names_it(tmp_path: Path) -> None:
    code, text = output("collect", "--rules", written(tmp_path), "--journal", tmp_path / "journal")
    assert code == 2
    assert "rules.yaml:10:13" in text
    assert (
        "nothing is configured here that does `migrate` (a relay does it: give these rules to `otel-llm relay`, "
        "or give --config FILE with an engine of kind relay" in text
    )


@pytest.mark.parametrize("verb", sorted(RELAY_DOES))
def test_a_relay_loads_what_it_does_itself(tmp_path: Path, verb: str) -> None:
    file = written(tmp_path, verb=verb)
    rules, files = load_enforced([file], ServiceSettings(), RELAY_DOES)
    assert rules.mode(rules.rules[0].actions[0]) == "enforce"
    assert [one.path for one in files] == [file]
    with pytest.raises(RulesError):
        load_enforced([file], ServiceSettings())


def test_a_relay_scales_nothing(tmp_path: Path) -> None:
    with pytest.raises(RulesError, match="nothing is configured here that does `scale`"):
        load_enforced([written(tmp_path, verb="scale")], ServiceSettings(), RELAY_DOES)


@pytest.mark.parametrize("to", ["safest", "pack", "spread", "least_load"])
def test_where_a_migration_goes(tmp_path: Path, to: str) -> None:
    file = written(tmp_path, mode="shadow")
    file.write_text(file.read_text().replace("{only_if", f"{{to: {to}, only_if"))
    (rule,) = load_rules([file]).rules
    assert dict(rule.actions[0].arguments) == {"to": to}


def test_the_example_is_enforced_and_right() -> None:
    code, text = output("rules", "check", "--strict", EXAMPLE)
    assert (code, text.count("note: a relay is needed")) == (0, 2)
    assert output("rules", "test", EXAMPLE.with_name("rules.test.yaml"))[0] == 0
    rule, other = load_enforced([EXAMPLE], ServiceSettings(), RELAY_DOES)[0].rules
    assert [action.verb for action in other.actions] == ["preempt"]
    assert rule.when.text == "tokens_read > 0 && runway_seconds < 0.25 && gap_seconds > 0.3"


def test_what_ships_stays_in_shadow() -> None:
    rules = load_rules([shipped_rules_dir()]).rules
    assert {action.mode for rule in rules for action in rule.actions if action.verb != "alert"} == {"shadow"}


@pytest.mark.parametrize("slo", load_slo().classes, ids=lambda slo: slo.name)
def test_after_its_first_token_a_stream_has_the_reading_time_of_one(slo: object) -> None:
    """What the lint supposes."""
    stream = Stream(slo, 0)  # type: ignore[arg-type]
    stream.extend([700_000_000])
    read_s = token_read_times(load_slo())[slo.name]  # type: ignore[attr-defined]
    assert stream.at(700_000_000).runway_ns == pytest.approx(read_s * 1e9, abs=1)


def linted(tmp_path: Path, when: str, **more: object) -> Report:
    return check_rules([written(tmp_path, when, mode="shadow")], **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "when",
    [
        "runway_seconds < 0.2",
        "runway_seconds <= 0.2",
        "0.25 > runway_seconds",
        "!(runway_seconds >= 1.5)",
        "tokens_read > 0 && runway_seconds < 0.25",
        "tokens_read > 0 && runway_seconds < 0.25 && gap_seconds >= 0.0",
        "gap_seconds < 0.3 && runway_seconds < 0.25",
        "tokens_read > 0 && (runway_seconds < 0.25 || gap_seconds > 3.0)",
        'slo_class == "voice" && runway_seconds < 0.31',
        'slo_class == "code" && runway_seconds < 0.05',
        'slo_class != "batch" && runway_seconds < 0.25',
    ],
)
def test_what_holds_right_after_the_first_token(tmp_path: Path, when: str) -> None:
    found = linted(tmp_path, when)
    assert "[fires-at-first-token]" in str(found)
    assert (found.exit_code(), found.exit_code(strict=True)) == (0, 1)


@pytest.mark.parametrize(
    "when",
    [
        "runway_seconds < 0.19",
        "runway_seconds < 0.25 && gap_seconds > 0.3",
        "runway_seconds < 1.5 && 1.0 < gap_seconds",
        "tokens_read > 10 && runway_seconds < 1.0",
        "ttft_seconds > 5.0 && runway_seconds < 0.5",
        "idle_decode_seconds > 0.5 && runway_seconds < 0.5",
        "rate_tokens_per_second < 4.0 && runway_seconds < 0.5",
        "runway_seconds > 0.2",
        'slo_class == "voice" && runway_seconds < 0.3',
        'slo_class == "code" && runway_seconds < 0.04',
        'slo_class == "mine" && runway_seconds < 0.5',
    ],
)
def test_what_does_not(tmp_path: Path, when: str) -> None:
    assert "fires-at-first-token" not in str(linted(tmp_path, when))


def test_a_for_that_a_healthy_stream_outruns_is_a_bound(tmp_path: Path) -> None:
    file = written(tmp_path, "tokens_read > 0 && runway_seconds < 0.5", mode="shadow")
    for long, warned in (("299ms", True), ("400ms", False)):
        text = RULE.format(when="tokens_read > 0 && runway_seconds < 0.5", verb="migrate", mode="shadow")
        file.write_text(text.replace("    actions:", f"    for: {long}\n    actions:"))
        assert ("fires-at-first-token" in str(check_rules([file]))) is warned


def test_the_reading_speeds_are_those_of_the_slo_file(tmp_path: Path) -> None:
    slo = tmp_path / "slo.yaml"
    slo.write_text("version: 1\ndefault: fast\nclasses: {fast: {reading_speed: 20}, slow: {reading_speed: 2}}\n")
    for when, name in (
        ("runway_seconds < 0.1", "fast"),
        ('slo_class == "slow" && runway_seconds < 0.5', "slow"),
        ('slo_class == "slow" && runway_seconds < 0.4', None),
        ("runway_seconds < 0.04", None),
    ):
        code, text = output("rules", "check", "--slo", slo, written(tmp_path, when, mode="shadow"))
        assert code == 0
        assert (f"a stream of class {name} has" in text) is (name is not None), text
        assert ("fires-at-first-token" in text) is (name is not None)
