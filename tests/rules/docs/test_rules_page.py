"""The rules page is true: its examples load, its message is the one that is given, its tables are the code's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from otel_llm.rules.decisions.decision_records import Outcome
from otel_llm.rules.docs.reference import rewritten
from otel_llm.rules.files.ruleset import Verb
from otel_llm.rules.files.schema import ActionShape, RuleShape
from otel_llm.rules.language.facts import WINDOWS
from otel_llm.rules.lint.check import check_rules

PAGE = (Path(__file__).parents[3] / "docs" / "rules.md").read_text(encoding="utf-8")
MISTAKES = Path(__file__).parents[1] / "lint" / "mistakes"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_shows_the_tables_of_the_code() -> None:
    assert rewritten(PAGE) == PAGE, (
        "run `python -m otel_llm.rules.docs.reference docs/rules.md` and read the difference"
    )


@pytest.mark.parametrize("example", blocks("yaml"))
def test_the_examples_are_right(example: str, tmp_path: Path) -> None:
    (tmp_path / "page.yaml").write_text(example, encoding="utf-8")
    report = check_rules([tmp_path / "page.yaml"])
    assert report.exit_code(strict=True) == 0, str(report)


def test_the_message_is_one_that_is_given() -> None:
    given = (MISTAKES / "quotes_doubled.txt").read_text(encoding="utf-8").replace("quotes_doubled.yaml", "chat.yaml")
    assert blocks("text")[0] == given[: given.index("0 rules in")]


def test_every_key_verb_and_outcome_is_explained() -> None:
    keys = [info.validation_alias or name for name, info in RuleShape.model_fields.items()]
    settings = list(ActionShape.model_fields)
    for word in (*keys, *settings, *get_args(Verb), *get_args(Outcome)):
        assert f"`{word}`" in PAGE or f"`{word}:" in PAGE, word
    assert all(window in PAGE for window in WINDOWS)
