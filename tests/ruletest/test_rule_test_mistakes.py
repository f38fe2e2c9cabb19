"""One tiny file of tests a mistake, and beside it the very message it must give.

`python tests/ruletest/test_rule_test_mistakes.py` writes the messages anew; read the difference before it is committed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from otel_llm.backtest.cases.case_parser import read_test_file
from otel_llm.backtest.cases.case_runner import run_test
from otel_llm.cli.rules_commands.rules_test_command import test as command
from otel_llm.config.yaml_file import ConfigError

FOLDER = Path(__file__).parent / "mistakes"
FILES = sorted(FOLDER.glob("*.yaml"))


def report(path: Path) -> tuple[int, str]:
    ran = CliRunner().invoke(command, [str(path)])
    return ran.exit_code, ran.output.replace(f"{FOLDER}/", "")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_message(path: Path) -> None:
    code, reported = report(path)
    assert code == 1
    assert reported == path.with_suffix(".txt").read_text(encoding="utf-8")
    assert reported.count("\n    ") + reported.count("^") >= 1
    assert reported.endswith("0 passed, 0 failed, 1 refused\n")


def test_every_message_has_its_file() -> None:
    assert len(FILES) > 35
    assert {path.stem for path in FOLDER.glob("*.txt")} == {path.stem for path in FILES}


WHOLE = """\
version: 1
rule_files: [small.yaml]
lateness: 5s
tests:
- name: t
  streams:
  - {id: r1, instance: a, arrivals: '300ms, 2x50ms, wait 3s, 5x50ms reasoning, end error', copies: 2, every: 10ms}
  - {id: r2, arrivals: '', telemetry: [{from: 1s, to: 2s, delay: 3s}]}
  expect:
  - {at: 2s, rule: Gap, firing: [{stream: r1.1, since: 1s}, r2], pending: [], actions: {migrate: {decided: 1}}}
  - {at: 2s, stream: r2, facts: {tokens: 3, runway_seconds: -1.1, model: m, fluidity_index: null}}
  - {at: 2s, alert: LlmGap, firing: [{instance: a, count: 1}]}
"""


@settings(max_examples=examples(300))
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(WHOLE)), st.integers(0, 4), st.text(" \n-:{}[],'0123456789amsx.#", max_size=3)),
        min_size=1,
        max_size=3,
    )
)
def test_any_file_runs_or_is_refused(
    edits: list[tuple[int, int, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = WHOLE
    for index, gone, put in edits:
        text = text[:index] + put + text[index + gone :]
    folder = tmp_path_factory.getbasetemp() / "edited"
    folder.mkdir(exist_ok=True)
    (folder / "small.yaml").write_text((FOLDER.parent / "rules/small.yaml").read_text())
    path = folder / "t.yaml"
    path.write_text(text)
    try:
        file = read_test_file(path)
    except ConfigError:
        return
    for one in file.tests:
        run_test(file, one)


if __name__ == "__main__":
    for file in FILES:
        file.with_suffix(".txt").write_text(report(file)[1], encoding="utf-8")
