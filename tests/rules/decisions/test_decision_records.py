"""Decision records: exactly the fields of the rules page, one JSON line each, readable after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from rules.scripted import COMMIT, MS, S, flushed, key, one_rule, run

from otel_llm.rules.decisions.decision_records import Decided, Decision, Outcome, read_decided
from otel_llm.rules.decisions.files import DecisionFiles

FIELDS = [
    "time_unix_nano", "flip_unix_nano", "now_offset_nano", "group", "rule", "rule_hash", "scope", "trace_id", "span_id",
    "choice", "tenant", "state", "action", "mode", "outcome", "facts", "fact_age_seconds", "budget",
    "action_index", "attempt",
]  # fmt: skip
OUTCOMES = ["shadow", "sent", "queued", "dropped: table full", "done", "unconfirmed", "failed", "budget", "only_if"]
OUTCOMES += ["expired", "resolved", "ended", "refuted"]


@pytest.fixture(scope="module")
def decisions() -> list[Decision]:
    rules = one_rule(
        "slo_class == 'chat' && gap_seconds > 0.4",
        actions="[{migrate: {only_if: 'exact_resume'}, budget: {per_request: 1}}, {alert: {name: 'Häng'}}]",
    )
    segments = flushed([100], [250], end_ms=900, stream=key(7, 2))
    return run(rules, segments, 2 * S, identity={key(7, 2): {"exact_resume": True, "model": "m\udcff"}})


def test_the_fields_and_their_order(decisions: list[Decision]) -> None:
    assert [list(one.record()) for one in decisions] == [FIELDS] * 3


def test_a_firing(decisions: list[Decision]) -> None:
    record = decisions[0].record(123)
    assert record == {
        "time_unix_nano": 123,
        "flip_unix_nano": COMMIT + 500 * MS + 1,
        "now_offset_nano": COMMIT - 20 * MS,
        "group": "g",
        "rule": "R",
        "rule_hash": record["rule_hash"],
        "scope": "stream",
        "trace_id": "00000000000000000000000000000007",
        "span_id": "0000000000000007",
        "choice": 2,
        "tenant": "default",
        "state": "firing",
        "action": "migrate",
        "mode": "shadow",
        "outcome": "shadow",
        "facts": {"slo_class": "chat", "gap_seconds": 0.400000001, "exact_resume": True},
        "fact_age_seconds": 0.250000001,
        "budget": {"per_request": True},
        "action_index": 0,
        "attempt": 1,
    }


def test_an_end(decisions: list[Decision]) -> None:
    record = decisions[-1].record()
    assert (record["state"], record["action"], record["mode"], record["outcome"]) == ("resolved", None, None, "ended")
    assert record["flip_unix_nano"] == COMMIT + 900 * MS
    assert record["facts"] == {"slo_class": "chat", "gap_seconds": 0.8}
    assert record["budget"] == {}


def test_the_words_for_outcomes() -> None:
    assert list(get_args(Outcome)) == OUTCOMES


def test_in_words(decisions: list[Decision]) -> None:
    trace = "chat m\udcff trace 00000000000000000000000000000007 choice 2"
    assert str(decisions[1]) == f"R: alert Häng: done (slo_class chat, gap_seconds 0.400) {trace}"
    assert str(decisions[2]) == f"R: resolved: ended (slo_class chat, gap_seconds 0.800) {trace}"


def test_what_was_written_is_known_again(decisions: list[Decision], tmp_path: Path) -> None:
    files = DecisionFiles(tmp_path / "d.jsonl")
    for decision in decisions:
        files.write(decision.record(1))
    files.close()
    lines = (tmp_path / "d.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    decided, broken = read_decided(lines)
    assert decided == {one.key for one in decisions}
    assert broken == 0
    # Cut anywhere, a last line is torn, counted, and nothing else is lost.
    for cut in range(1, len(lines[-1]) - 1):
        decided, broken = read_decided([*lines[:-1], lines[-1][:cut]])
        assert decided == {one.key for one in decisions[:-1]}
        assert broken == 1


@pytest.mark.parametrize(
    "line",
    ["", "[]", "1", "null", "{}", '{"rule_hash": "x"}', "\x00", '{"trace_id": 1}', '{"trace_id": "zz", "span_id": ""}'],
)
def test_other_lines_are_counted(line: str) -> None:
    assert read_decided([line]) == (set[Decided](), 1)
