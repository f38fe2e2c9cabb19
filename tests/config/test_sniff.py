"""The message about a misplaced file says what it is and where it goes; that about a missing key, what to write."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from otel_llm.cli.main import main
from otel_llm.collector.settings import load_settings
from otel_llm.config.sniff import SETTINGS
from otel_llm.config.yaml_file import ConfigError
from otel_llm.rules.files.shipped import shipped_rules_dir
from otel_llm.rules.files.slo_file import load_slo

RULES = shipped_rules_dir() / "chat.yaml"


def refusal(folder: Path, text: str) -> str:
    path = folder / "slo.yaml"
    path.write_text(f"version: 1\n{text}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_slo(path)
    return str(caught.value).removeprefix(f"{folder}/")


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("groups: []", "slo.yaml:2:1: groups: rules, and no SLO classes (give this file with --rules)"),
        (
            "rule_files: [a.yaml]\ntests: []",
            "slo.yaml:2:1: rule_files: tests of rules, and no SLO classes (give this file to `otel-llm rules test`)",
        ),
        (
            "slo: slo.yaml\ntests: []",
            "slo.yaml:3:1: tests: tests of rules, and no SLO classes (give this file to `otel-llm rules test`)",
        ),
        (
            "tls: {certificate: a.pem}",
            "slo.yaml:2:1: tls: the collector's settings, and no SLO classes (give this file with --config)",
        ),
    ],
)
def test_another_kind_of_file_is_reported_in_place_of_slo_classes(tmp_path: Path, text: str, reported: str) -> None:
    assert refusal(tmp_path, text) == reported


def test_what_has_a_key_of_slo_files_is_one(tmp_path: Path) -> None:
    assert "slo.yaml:4:1: groups: unknown key" in refusal(tmp_path, "default: a\nclasses: {a: {}}\ngroups: []")
    assert "slo.yaml:2:1: defalt: unknown key (did you mean default?)" in refusal(tmp_path, "defalt: a")


@pytest.mark.parametrize("command", [["rules", "check", str(RULES), "--slo"], ["rules", "prometheus", "--slo"]])
def test_the_commands_say_it(command: list[str]) -> None:
    done = CliRunner().invoke(main, [*command, str(RULES)])
    assert done.exit_code in (1, 2)
    assert "rules, and no SLO classes (give this file with --rules)" in " ".join(done.output.split())


def test_the_keys_of_settings_are_those_that_the_collector_knows(tmp_path: Path) -> None:
    path = tmp_path / "collector.yaml"
    path.write_text("version: 1\n0qzq0: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    known = caught.value.advice.removeprefix("known: ").split(", ")
    assert {*SETTINGS, "version"} == set(known)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (
            "classes: {a: {}}",
            "slo.yaml:1:1: default: missing (write `default: NAME`: the class that is taken where no other fits)",
        ),
        ("default: a", "slo.yaml:1:1: classes: missing (write `classes: ...`)"),
    ],
)
def test_what_must_be_there_is_reported_with_what_to_write(tmp_path: Path, text: str, reported: str) -> None:
    assert refusal(tmp_path, text) == reported
