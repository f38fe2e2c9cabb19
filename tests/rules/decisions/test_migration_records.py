"""The records of migrations: what became of each, where from and where to, and in words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rules.scripted import S, flushed, key, ruleset, run

from otel_llm.actions.execute.events import action_id
from otel_llm.actions.execute.open_actions import Completion, completed_decision
from otel_llm.rules.decisions.decision_records import ComparedInstance, Decision, Migration, read_decided
from otel_llm.rules.decisions.explain import explain
from otel_llm.rules.decisions.files import DecisionFiles, read_back
from otel_llm.rules.decisions.transitions import find, id_of, newest, read_record

COMPARED = (
    ComparedInstance("b", {"tokens": 40.0, "streams": 2.0}, "fewest tokens in flight"),
    ComparedInstance("c", {"tokens": float("inf")}),
)
REFUTED = Completion("refuted", "the source went on first", migration=Migration("a", "b", 12, 0.5004, COMPARED))
DONE = Completion("done", migration=Migration("a", "c", 13, 0.62, COMPARED))
FIELDS = ["candidates", "from", "to", "tokens_carried", "gap_seconds", "detail"]

RULES = """
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: R
    when: {when!r}
    {more}
    actions:
    - migrate: {{to: least_load, only_if: 'exact_resume'}}
      mode: enforce
      budget: {{{budget}}}
    - alert: {{name: A}}
"""


def decided(more: str = "keep_firing_for: 60s") -> list[Decision]:
    """Return the firings of a stream; the migration of the first is refuted, and done at its second attempt."""
    when = "tokens_read > 0 && gap_seconds > 0.3"
    rules = ruleset(RULES.format(when=when, more=more, budget="per_request: 1"), ["migrate"])
    segments = flushed([100, 600, 1400], [250 * at for at in range(1, 20)], end_ms=5000)
    migrate, *rest = run(rules, segments, 6 * S, identity={key(): {"exact_resume": True}})
    return [completed_decision(migrate, REFUTED), completed_decision(replace(migrate, attempt=2), DONE), *rest]


def lines(decisions: list[Decision]) -> list[str]:
    return [json.dumps(one.record(), allow_nan=False) + "\n" for one in decisions]


def test_the_fields_stand_at_the_top() -> None:
    record = decided()[0].record()
    assert list(record)[-6:] == FIELDS
    assert {name: record[name] for name in FIELDS} == {
        "candidates": [
            {"instance": "b", "score": {"tokens": 40.0, "streams": 2.0}, "reason": "fewest tokens in flight"},
            {"instance": "c", "score": {"tokens": None}},
        ],
        "from": "a",
        "to": "b",
        "tokens_carried": 12,
        "gap_seconds": 0.5004,
        "detail": "the source went on first",
    }
    assert record["outcome"] == "refuted"


def test_a_migration_that_found_nowhere_to_go() -> None:
    how = Completion("failed", "no other backend is healthy", migration=Migration("a", None))
    record = completed_decision(decided()[0], how).record()
    assert [record[name] for name in ("from", "to", "tokens_carried", "gap_seconds")] == ["a", None, None, None]
    assert "candidates" not in record
    assert read_record(json.dumps(record)) == record


def test_an_action_without_findings_has_the_fields_it_had() -> None:
    plain = decided()[0]
    assert completed_decision(plain, Completion("sent")).findings == {}
    assert list(completed_decision(plain, Completion("sent")).record())[-1] == "attempt"


def test_each_attempt_is_a_decision_of_its_own() -> None:
    first, second, alert, end = decided()
    assert (first.outcome, second.outcome, second.state) == ("refuted", "done", "firing")
    assert first.flip_ns == alert.flip_ns == second.flip_ns < end.flip_ns
    assert len({one.key for one in (first, second, alert, end)}) == 4
    assert action_id(first) != action_id(second)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    files = DecisionFiles(tmp_path / "d.jsonl")
    for one in decided():
        files.write(one.record())
    files.close()
    read = list(read_back(tmp_path / "d.jsonl"))
    assert read_decided(read) == ({one.key for one in decided()}, 0)
    assert [read_record(line) for line in read] == [one.record() for one in decided()]
    assert [len(one.records) for one in newest(read, 10).transitions] == [3, 1]


def explained(decisions: list[Decision], which: int) -> str:
    found = find(id_of(decisions[which].record()), lambda: lines(decisions))
    (one,) = found.matches.values()
    return "\n".join(explain(one, found.before, found.after, None))


def test_the_attempts_in_words() -> None:
    reported = explained(decided(), 0)
    assert reported.startswith("R began to fire: ")
    assert (
        "  migrate (enforce): refuted: given up, and attempted again: the stream went on at its source first\n"
        "    from a to b, 12 tokens carried, 0.500 s without new text\n"
        "    the source went on first\n"
        "    per_request: within it\n"
        "    candidate b: tokens 40.000, streams 2.000, the first of those compared; fewest tokens in flight\n"
        "    candidate c: tokens missing\n"
        "  migrate (enforce, attempt 2): done: "
    ) in reported
    assert "    from a to c, 13 tokens carried, 0.620 s without new text" in reported
    assert f": {id_of(decided()[3].record())}" in reported.splitlines()[-1]
    assert "Also recorded" not in reported


def test_the_end_tells_when_the_firing_began() -> None:
    reported = explained(decided(), 3)
    assert reported.endswith(f"before: {id_of(decided()[0].record())}")


@pytest.mark.parametrize(
    "change",
    [
        {"from": 1},
        {"from": None},
        {"to": 1},
        {"tokens_carried": "1"},
        {"gap_seconds": "1"},
        {"candidates": [{"instance": "b"}]},
    ],
)
def test_what_is_no_record_of_a_migration(change: dict[str, object]) -> None:
    assert read_record(json.dumps(decided()[0].record() | change)) is None


@given(
    to=st.none() | st.text(max_size=5),
    carried=st.none() | st.integers(0, 10**6),
    gap_s=st.none() | st.floats(0, 1e6),
    score=st.dictionaries(st.text(max_size=5), st.floats(), max_size=3),
    reason=st.text(max_size=5),
)
def test_any_migration_is_read_back(
    to: str | None, carried: int | None, gap_s: float | None, score: dict[str, float], reason: str
) -> None:
    how = Migration("a", to, carried, gap_s, [ComparedInstance("b", score, reason)])
    record = completed_decision(FIRST, Completion("done", migration=how)).record()
    assert read_record(json.dumps(record, allow_nan=False)) == record


FIRST = decided()[0]
