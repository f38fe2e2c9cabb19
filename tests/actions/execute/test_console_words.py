"""The lines of `collect`: a rule's line names class and model, and each word of ours is explained once."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from support.actions.alerting import decision

from otel_llm.actions.sinks.console import EXPLAINED, UNSAID, Console
from otel_llm.rules.decisions.decision_records import Outcome

GLOSSARY = Path(__file__).parents[3] / "docs" / "glossary.md"


def row(**more: Any) -> Any:
    return {
        "trace_id": "ab" * 16, "tenant": "default", "choice": None, "slo_class": "chat", "model": "m",
        "outcome": "lost", "met": None, "finish_reason": None, "tokens": 3, "ttfo_s": 0.3, "ttft_s": 0.1,
        "idle_s": None, "fluidity_index": None, "coverage": None,
    } | more  # fmt: skip


def test_words_of_a_verdict_are_explained_after_the_first_line_that_has_them() -> None:
    reported: list[str] = []
    console = Console(reported.append)
    console.row(row())
    console.row(row())
    first, unsaid, lost, second = reported
    assert first == second
    assert first.startswith(f"{UNSAID} ")
    assert (unsaid.strip().partition(":")[0], lost.strip().partition(":")[0]) == (UNSAID, "lost")
    assert "docs/glossary.md" in lost


def test_a_met_stream_needs_no_explanation() -> None:
    reported: list[str] = []
    Console(reported.append, verdicts="all").row(row(met=True, outcome="completed"))
    assert len(reported) == 1


def test_every_outcome_of_a_decision_and_every_explained_word_is_in_the_glossary() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    for word in [*get_args(Outcome), *EXPLAINED, "completed", "cancelled", "error"]:
        assert f"\n| {word} |" in text, word


@pytest.mark.parametrize(("model", "shown"), [("m", "chat m trace"), ("", "chat - trace")])
def test_a_rules_line_names_class_and_model(model: str, shown: str) -> None:
    reported: list[str] = []
    Console(reported.append).decision(decision(1, 0.0, outcome="shadow", model=model))
    assert shown in reported[0]
    assert reported[1].strip().startswith("shadow:")
