"""Each lint has tiny files that it is about, with the very message; near misses stay silent, and so does what ships.

`python tests/rules/lint/test_lints.py` writes the messages anew; read the difference before it is committed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from otel_llm.cli.rules_commands.rules_command import rules
from otel_llm.rules.docs.lints_page import lints_page
from otel_llm.rules.files.load import load_rules, read_rule_files
from otel_llm.rules.files.shipped import shipped_rules_dir, shipped_slo_file
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.rules.lint.check import Report, check_rules
from otel_llm.rules.lint.lints import LINTS

if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER = Path(__file__).parent / "lints"
FILES = sorted(path for path in FOLDER.glob("*.yaml") if path.stem != "nothing")
DOCS = Path(__file__).parents[3] / "docs"
EXECUTORS = ("abort",)


def checked(path: Path) -> Report:
    return check_rules([path], EXECUTORS)


def report(path: Path) -> str:
    return str(checked(path)).replace(str(path), path.name) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_message(path: Path) -> None:
    found = checked(path)
    assert (found.errors, found.warnings) == (0, 1)
    assert (found.exit_code(), found.exit_code(strict=True)) == (0, 1)
    assert f"[{path.name.split('.')[0]}]" in str(found)
    assert report(path) == path.with_suffix(".txt").read_text(encoding="utf-8")


def test_every_lint_has_its_files() -> None:
    assert {path.name.split(".")[0] for path in FILES} == {lint.name for lint in LINTS}
    assert {path.stem for path in FOLDER.glob("*.txt")} == {path.stem for path in FILES}
    assert len(LINTS) >= 12


def test_the_page_of_lints_is_current() -> None:
    page = (DOCS / "lints.md").read_text(encoding="utf-8")
    assert page == lints_page(), "run `python -m otel_llm.rules.docs.lints_page docs/lints.md` and read the difference"


def test_what_is_nearly_so_is_not_warned_about() -> None:
    found = checked(FOLDER / "nothing.yaml")
    assert (found.errors, found.warnings) == (0, 0), str(found)
    assert found.rules > 20


def test_what_ships_is_not_warned_about_with_its_own_classes() -> None:
    found = check_rules([shipped_rules_dir()], classes=load_slo(shipped_slo_file()).names)
    assert (found.errors, found.warnings) == (0, 0), str(found)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda path: path.stem)
def test_the_examples_of_the_pages_are_not_warned_about(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(yaml_blocks(page)):
        file = tmp_path / f"{number}.yaml"
        file.write_text(block, encoding="utf-8")
        found = check_rules([file], ("abort", "drain", "scale", "webhook"))
        assert (found.errors, found.warnings) == (0, 0), str(found)


def yaml_blocks(page: Path) -> Iterable[str]:
    blocks = re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [block for block in blocks if re.search(r"^groups:$", block, re.MULTILINE) and "  - rule:" in block]


def test_a_class_that_the_slo_file_lacks(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(CHTA, encoding="utf-8")
    slo = str(shipped_slo_file())
    assert checked(file).warnings == 0
    reported = CliRunner().invoke(rules, ["check", "--slo", slo, str(file)])
    assert reported.exit_code == 0
    assert 'slo_class is "agent" or "batch" or "chat" or "code" or "voice"' in reported.output
    assert "[never-true]" in reported.output
    assert CliRunner().invoke(rules, ["check", "--strict", "--slo", slo, str(file)]).exit_code == 1
    assert CliRunner().invoke(rules, ["check", "--slo", str(tmp_path / "none.yaml"), str(file)]).exit_code == 2


CHTA = """version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: A
    when: 'slo_class == "chta" && gap_seconds > 1.0'
    keep_firing_for: 5s
    actions: [{alert: {name: X}}]
"""


def test_an_alert_of_one_name_in_two_files(tmp_path: Path) -> None:
    for name, by in (("a", "[model]"), ("b", "[model, instance]"), ("c", "[model]")):
        text = CHTA.replace("rule: A", f"rule: {name}").replace("name: X", f"name: X, by: {by}")
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    found = check_rules([tmp_path])
    assert found.warnings == 1
    assert str(found.findings[0]).startswith(f"{tmp_path / 'b.yaml'}:9:")


def test_a_file_with_an_error_is_told_its_error_alone(tmp_path: Path) -> None:
    text = CHTA.replace("gap_seconds > 1.0", "gap_seconds > 500.0") + "    more: 1\n"
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    found = check_rules([tmp_path])
    assert (found.errors, found.warnings) == (1, 0)


def test_lints_change_nothing_about_loading() -> None:
    for file in read_rule_files(FILES, EXECUTORS):
        assert [rule.hash for rule in load_rules([file.path], EXECUTORS).rules] == [rule.hash for rule in file.rules]
        assert len(file.key_paths) == len(file.rules)


if __name__ == "__main__":
    for file in FILES:
        file.with_suffix(".txt").write_text(report(file), encoding="utf-8")
