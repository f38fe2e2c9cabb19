"""`otel-llm rules backtest` as a command: what it takes, prints, writes and exits with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.core.core_cases import at, commit, ends, segment
from support.otlp import export

from otel_llm.cli.rules_commands.rules_command import rules
from otel_llm.evaluate.evaluator import Evaluator
from otel_llm.journal.journal import Journal

RULES = """version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: Silent
    when: 'gap_seconds > {gap}'
    actions:
    - migrate: {{to: safest}}
      mode: {mode}
    - alert: {{name: Silent}}
"""

NOTHING_LEFT_OUT = {"left_out": 0, "left_out_found_again": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the journal of one stream: committed, silent for three seconds, then a token; and rules."""
    told = [
        (10_000, [commit(10_000)]),
        *((10_000 + 250 * seq, [segment(seq, 0, [], 10_000 + 250 * seq)]) for seq in range(1, 12)),
        (13_000, [segment(12, 0, [12_900], 13_000)]),
        (13_200, [segment(13, 1, [], 13_200, stated=ends(1, 14))]),
        (20_000, [commit(20_000, request=2)]),
    ]
    with Journal(tmp_path / "journal", fsync="never", compress=False) as journal:
        for ms, spans in told:
            journal.append(export(*spans).SerializeToString(), at(ms))
    (tmp_path / "old.yaml").write_text(RULES.format(gap="1.0", mode="shadow"))
    (tmp_path / "new.yaml").write_text(RULES.format(gap="1.5", mode="shadow"))
    (tmp_path / "does.yaml").write_text(RULES.format(gap="1.5", mode="enforce"))
    return tmp_path


def run(folder: Path, *options: str | Path) -> Result:
    arguments = [str(one) for one in ("backtest", *options, folder / "journal")]
    return CliRunner().invoke(rules, arguments, catch_exceptions=False)


def reported(folder: Path, *options: str | Path) -> dict[str, Any]:
    done = run(folder, "--format", "json", *options)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_would_have_fired(folder: Path) -> None:
    found = reported(folder, "--rules", folder / "old.yaml")
    (rule,) = found["rules"]
    assert rule["new"] | {"rule_hash": ""} == {
        "rule_hash": "",
        "firings": 1,
        "ends": {"resolved": 1},
        "actions": {"alert": {"acted": 1}, "migrate": {"shadow": 1}},
        "rests_on": {"as_recorded": 1},
    }
    assert "then" not in rule
    assert found["decisions"] == {"new": 3}
    assert found["actions"]["hypothetical"] == 1
    journal = found["journal"]
    assert (journal["records"], journal["first_unix_nano"], journal["until_unix_nano"]) == (15, at(10_000), at(20_000))
    assert journal["streams"] == {"judged": 1, "in_flight": 1, "without_beginning": 0}


def test_against_the_rules_of_then(folder: Path) -> None:
    found = reported(folder, "--rules", folder / "new.yaml", "--against", folder / "old.yaml")
    (rule,) = found["rules"]
    assert rule["moved"] == {"earlier": 0, "later": 1, "median_shift_seconds": 0.5}
    assert (rule["same"], rule["only_then"], rule["only_new"]) == (0, 0, 0)
    assert found["decisions"]["identical"] is False
    table = run(folder, "--rules", folder / "new.yaml", "--against", folder / "old.yaml").stdout
    assert "500 ms" in table
    assert "moved: Silent" in table
    assert "1 action decided that was not done in the recording" in table


def test_what_is_written_can_be_compared_with(folder: Path) -> None:
    out = folder / "out.jsonl"
    assert run(folder, "--rules", folder / "old.yaml", "--write", out).exit_code == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(one["state"], one["action"]) for one in records] == [
        ("firing", "migrate"),
        ("firing", "alert"),
        ("resolved", None),
    ]
    same = run(folder, "--rules", folder / "old.yaml", "--decisions", out, "--fail-on-difference")
    assert same.exit_code == 0, same.output
    assert "exactly the same, in the same order" in same.stdout
    other = run(folder, "--rules", folder / "new.yaml", "--decisions", out, "--fail-on-difference")
    assert other.exit_code == 1
    assert run(folder, "--rules", folder / "new.yaml", "--decisions", out).exit_code == 0


def test_closed_decision_files_are_read_too_and_torn_lines_left_out(folder: Path) -> None:
    out = folder / "out.jsonl"
    run(folder, "--rules", folder / "old.yaml", "--write", out)
    first, second, third = out.read_text().splitlines(keepends=True)
    (folder / "out.jsonl.000001").write_text(first + "nonsense\n")
    (folder / "out.jsonl.000002").write_text(second)
    out.write_text(third + third[:20])
    found = reported(folder, "--rules", folder / "old.yaml", "--decisions", out)
    assert found["decisions"]["identical"] is True
    assert found["decision_files"] == {"lines": 4, "unreadable": 1, "of_other_times": 0, **NOTHING_LEFT_OUT}
    assert out.read_text() == third + third[:20]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (3, "windows.jsonl: none of its 3 lines is a decision record; name the file that `collect --decisions` writes"),
        (1, "windows.jsonl: its only line is no decision record"),
    ],
)
def test_a_file_without_one_decision_is_refused_as_explain_does(folder: Path, lines: int, says: str) -> None:
    out, wrong = folder / "out.jsonl", folder / "windows.jsonl"
    run(folder, "--rules", folder / "old.yaml", "--write", out)
    wrong.write_text('{"window_start_unix_nano": 1}\n' * lines)
    for named in ((wrong,), (out, wrong)):
        options = [option for file in named for option in ("--decisions", file)]
        done = run(folder, "--rules", folder / "old.yaml", *options)
        assert (done.exit_code, done.stdout) == (2, "")
        assert says in " ".join(done.stderr.split())
    explained = CliRunner().invoke(rules, ["explain", "--decisions", str(wrong), "--list"])
    assert (explained.exit_code, says in " ".join(explained.stderr.split())) == (2, True)


def test_an_empty_decision_file_says_that_nothing_was_decided(folder: Path) -> None:
    empty = folder / "empty.jsonl"
    empty.touch()
    found = reported(folder, "--rules", folder / "old.yaml", "--decisions", empty)
    assert found["decision_files"] == {"lines": 0, "unreadable": 0, "of_other_times": 0, **NOTHING_LEFT_OUT}


def test_enforced_actions_are_decided_and_not_done(folder: Path) -> None:
    found = reported(folder, "--rules", folder / "does.yaml")
    assert found["rules"][0]["new"]["actions"]["migrate"] == {"acted": 1}


def test_nothing_in_the_journals_folder_is_written(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in (folder / "journal").iterdir()}
    run(folder, "--rules", folder / "old.yaml")
    assert {path.name: path.read_bytes() for path in (folder / "journal").iterdir()} == before


def test_the_shipped_rules_run_where_none_are_named(folder: Path) -> None:
    assert all(rule["new"]["actions"].keys() <= {"alert", "migrate"} for rule in reported(folder)["rules"])


def test_a_refused_rule_is_reported_with_its_place(folder: Path) -> None:
    (folder / "bad.yaml").write_text(RULES.format(gap="1", mode="shadow"))
    done = run(folder, "--rules", folder / "bad.yaml")
    assert done.exit_code == 1
    assert f"{folder / 'bad.yaml'}:7:" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rules", "none.yaml"), "none.yaml"),
        (("--against", "old.yaml", "--decisions", "out.jsonl"), "not both"),
        (("--fail-on-difference",), "--against or --decisions"),
        (("--decisions", "none.jsonl"), "no such file"),
        (("--lateness", "soon"), "soon"),
        (("--slo", "none.yaml"), "none.yaml"),
        (("--write", "none/out.jsonl"), "the folder none does not exist; make it first"),
        (("nowhere",), "nowhere: no such file"),
        (("old.yaml",), "no journal of otel-llm collect"),
    ],
)
def test_bad_usage_exits_2_and_says_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(folder)
    done = run(folder, *options)
    assert done.exit_code == 2
    assert words in done.stderr


@pytest.mark.parametrize("which", ["journal", "old.yaml", "new.yaml", "slo.yaml", "collect.yaml", "out.jsonl"])
def test_what_is_read_is_not_written_over(folder: Path, which: str) -> None:
    out = folder / "out.jsonl"
    run(folder, "--rules", folder / "old.yaml", "--write", out)
    (folder / "slo.yaml").write_text("version: 1\ndefault: a\nclasses: {a: {}}\n")
    (folder / "collect.yaml").write_text("version: 1\n")
    target = next((folder / "journal").glob("*.otlp")) if which == "journal" else folder / which
    before = target.read_bytes()
    beside = ("--decisions", out) if which == "out.jsonl" else ("--against", folder / "new.yaml")
    files = ("--slo", folder / "slo.yaml", "--config", folder / "collect.yaml")
    done = run(folder, "--rules", folder / "old.yaml", *beside, *files, "--write", target)
    assert done.exit_code == 2, done.output
    assert f"{target} is one of the inputs" in done.stderr
    assert target.read_bytes() == before


def test_what_was_written_before_stands_until_the_new_one_is_whole(folder: Path) -> None:
    out = folder / "out.jsonl"
    out.write_text("old")
    (folder / "bad.otlp").write_text("{}")
    assert run(folder, "--rules", folder / "old.yaml", "--write", out, folder / "bad.otlp").exit_code == 2
    assert out.read_text() == "old"
    assert run(folder, "--rules", folder / "old.yaml", "--write", out).exit_code == 0
    assert len(out.read_text().splitlines()) == 3


def test_an_empty_journal_is_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "20260921T141320.000000000Z-000000.otlp").write_bytes(b"")
    done = run(tmp_path)
    assert done.exit_code == 2
    assert "no record in this journal" in done.stderr


def test_what_the_page_shows_runs(folder: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "backtest.md").read_text(encoding="utf-8")
    match = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert match
    shown: dict[str, Any] = {}
    exec(match[1], shown)
    assert shown["fires"](folder / "journal", folder / "old.yaml") == {"Silent": 1}


@pytest.mark.parametrize("word", ["rules", "against", "decisions", "config", "format", "write", "fail-on-difference"])
def test_the_page_has_every_flag(word: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "backtest.md").read_text(encoding="utf-8")
    assert f"`--{word}" in page


def test_the_limits_of_the_collector_hold(folder: Path) -> None:
    (folder / "collect.yaml").write_text("version: 1\nlimits: {segments_per_request: 5}\n")
    found = reported(folder, "--rules", folder / "old.yaml", "--config", folder / "collect.yaml")
    assert found["journal"]["streams"]["in_flight"] == 2  # the last segment is refused


def test_what_cannot_be_evaluated_is_counted_and_the_rest_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Evaluator, batch: object, now_ns: int) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(Evaluator, "apply", broken)
    found = reported(folder, "--rules", folder / "old.yaml")
    assert found["journal"]["skipped"] == {"internal_errors": 15}
    assert "a bug of ours" in caplog.text
    assert "left out: 15 records (internal_errors)" in run(folder, "--rules", folder / "old.yaml").stdout
