"""`otel-llm rules explain`: ids that name one flip and no other, and every record in words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rules.scripted import COMMIT, MS, S, flushed, key, ruleset, run

from otel_llm.cli.main import main
from otel_llm.rules.decisions.decision_records import LeftOut, Outcome
from otel_llm.rules.decisions.explain import OUTCOMES, explain, headline
from otel_llm.rules.decisions.files import DecisionFiles
from otel_llm.rules.decisions.transitions import about_of, find, id_of, newest, read_record
from otel_llm.rules.files.load import load_rules

RULES = """
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: Gap
    when: 'slo_class == "chat" && gap_seconds > 0.4'
    resolve_when: 'gap_seconds < 0.2'
    for: 100ms
    actions:
    - migrate: {only_if: 'exact_resume'}
      budget: {per_request: 1, in_flight: 4}
    - alert: {name: LlmGap}
"""
TRACE = "00000000000000000000000000000001"


def record(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "time_unix_nano": 1_767_225_600_500_000_000,
        "flip_unix_nano": 1_767_225_600_250_000_001,
        "now_offset_nano": -250_000_000,
        "group": "g",
        "rule": "R",
        "rule_hash": "0123456789abcdef",
        "scope": "stream",
        "trace_id": TRACE,
        "span_id": "0000000000000001",
        "choice": 0,
        "state": "firing",
        "action": "migrate",
        "mode": "shadow",
        "outcome": "shadow",
        "facts": {"gap_seconds": 0.5},
        "fact_age_seconds": 0.125,
        "budget": {},
    }
    return made | changes


def of_a_class(**labels: str) -> dict[str, Any]:
    made = {name: value for name, value in record().items() if name not in ("trace_id", "span_id", "choice")}
    return made | {"scope": "class", "labels": labels, "facts": {"burn_rate_5m": 14.5}, "now_offset_nano": 0}


def lines(records: Iterable[dict[str, Any]]) -> Callable[[], Iterator[str]]:
    return lambda: iter([json.dumps(one) + "\n" for one in records])


def decided(tmp_path: Path, records: Iterable[dict[str, Any]], max_bytes: int = 10**6) -> Path:
    path = tmp_path / "d.jsonl"
    files = DecisionFiles(path, max_bytes)
    for one in records:
        files.write(one)
    files.close()
    return path


def cli(path: Path, *arguments: str) -> tuple[int, str]:
    ran = CliRunner().invoke(main, ["rules", "explain", "--decisions", str(path), *arguments])
    return ran.exit_code, ran.output


def engine_records() -> list[dict[str, Any]]:
    """A gap of 700 ms, and the tokens after it, as the engine decides them."""
    segments = flushed([100, *range(800, 1200, 50)], [250, 500, 750, 800, 1000, 1250], end_ms=1300, delay_ms=0)
    made = run(ruleset(RULES), segments, 3 * S, identity={key(): {"exact_resume": True}})
    return [one.record(one.now_ns + 2 * MS) for one in made]


def test_an_id_is_a_hash_of_what_makes_the_decision() -> None:
    text = f'["0123456789abcdef",["{TRACE}","0000000000000001","default",0],"firing",1767225600250000001]'
    assert id_of(record()) == hashlib.sha256(text.encode()).hexdigest()[:16]
    text = '["0123456789abcdef",[["model","m"],["slo_class","chat"]],"firing",1767225600250000001]'
    assert id_of(of_a_class(slo_class="chat", model="m")) == hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    "change",
    [
        {"rule_hash": "f"},
        {"trace_id": "2"},
        {"span_id": "2"},
        {"choice": 1},
        {"state": "resolved"},
        {"flip_unix_nano": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_decision_has_another_id(change: dict[str, Any]) -> None:
    assert id_of(record(**change)) != id_of(record())


@pytest.mark.parametrize(
    "change", [{"action": "alert", "mode": "enforce"}, {"outcome": "budget"}, {"time_unix_nano": 1}]
)
def test_all_actions_of_one_flip_have_one_id(change: dict[str, Any]) -> None:
    assert id_of(record(**change)) == id_of(record())


def test_ids_that_begin_alike_are_distinguished(tmp_path: Path) -> None:
    seen: dict[str, dict[str, Any]] = {}
    flip = 1
    while True:  # two of 65,536 first digits: some hundreds of tries
        one = record(flip_unix_nano=flip)
        if (prefix := id_of(one)[:4]) in seen:
            break
        seen[prefix], flip = one, flip + 1
    both = [seen[prefix], one]
    path = decided(tmp_path, both)
    code, text = cli(path, prefix)
    assert code == 1
    assert text == f"2 ids begin with {prefix}: {id_of(both[0])}, {id_of(both[1])}\n"
    for each in both:
        code, text = cli(path, id_of(each))
        assert code == 0
        assert id_of(each) in text
    shortest = next(n for n in range(4, 17) if id_of(both[0])[:n] != id_of(both[1])[:n])
    assert cli(path, id_of(one)[:shortest].upper())[0] == 0


def test_what_is_no_id(tmp_path: Path) -> None:
    path = decided(tmp_path, [record()])
    name = id_of(record())
    other = ("0000" if not name.startswith("0000") else "1111") + name[4:]
    assert cli(path, other) == (1, f"no decision's id begins with {other}\n")
    for wrong in (name[:3], name + "0", "xyzw", ""):
        code, text = cli(path, wrong)
        assert code == 2
        assert "is no id: it has 4 to 16 hex digits" in text
    assert cli(path)[0] == 2
    assert cli(path, name, "--list")[0] == 2
    assert cli(path, name, "--rule", "R")[0] == 2
    assert cli(tmp_path / "nowhere.jsonl", "--list")[0] == 2


def test_a_firing_in_words(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    records = engine_records()
    assert [(one["state"], one["action"]) for one in records] == [
        ("firing", "migrate"), ("firing", "alert"), ("resolved", None),
    ]  # fmt: skip
    path = decided(tmp_path, records)
    fired, over = id_of(records[0]), id_of(records[2])
    # The last token before came at 100 ms: the gap is too long from 500 ms on, and `for` is 100 ms: 600 ms.
    offset = records[0]["now_offset_nano"]
    assert records[0]["flip_unix_nano"] == COMMIT + 600 * MS + 1
    code, text = cli(path, fired, "--rules", str(rules))
    assert code == 0
    assert text == (
        "Gap began to fire: 1970-01-01 00:00:00.600000001 UTC\n"
        "\n"
        f"  id        {fired}\n"
        f"  of        trace {TRACE}, request span 0000000000000001\n"
        f"  rule      group g, scope stream, hash {records[0]['rule_hash']}\n"
        "  recorded  2.000 ms after that instant, by telemetry 0.100 s old\n"
        f"  clocks    the stream's own is {offset / 1e9:.3f} s ahead\n"
        "\n"
        "Because, at that instant,\n"
        '  slo_class == "chat" && gap_seconds > 0.4 had held for 100.000 ms:\n'
        "    slo_class     chat     the request's SLO class\n"
        "    gap_seconds   0.500 s  time since the last token of any kind\n"
        "    exact_resume  true     the stream's owner can resume it token for token\n"
        "\n"
        "Decided:\n"
        "  migrate (shadow): shadow: it would have been done, and was not: the action is in shadow\n"
        "    per_request: within it\n"
        "    in_flight: within it\n"
        "  alert (enforce): done: done (of an alert: recorded, no receiver is configured)\n"
        "\n"
        f"It ended as resolved, 200.000 ms later: {over}\n"
    )
    code, text = cli(path, over, "--rules", str(rules))
    assert text.splitlines()[0] == "Gap stopped firing: 1970-01-01 00:00:00.800000000 UTC"
    assert 'This had not held: slo_class == "chat" && gap_seconds > 0.4, and this held: gap_seconds < 0.2' in text
    assert text.splitlines()[-1] == f"It had begun 200.000 ms before: {fired}"


def test_the_words_on_the_rules_page_are_given(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/rules.md").read_text(encoding="utf-8")
    rules = tmp_path / "rules.yaml"
    rules.write_text(page.split("```yaml\n")[1].split("```")[0])
    tokens = [300, 350, 400, *range(3400, 5400, 50)]
    segments = flushed(tokens, range(250, 6000, 250), end_ms=6000)
    made = run(load_rules([rules]), segments, 8 * S, identity={key(): {"exact_resume": True}})
    records = [one.record(one.now_ns + 1_200_000) for one in made]
    text = cli(decided(tmp_path, records), id_of(records[0]), "--rules", str(rules))[1].splitlines()
    shown = page.split("```text\n")[2].split("```")[0].splitlines()
    assert shown[0].startswith("ReaderStarving began to fire")
    # Ids, hashes, traces and clocks are of another run.
    assert shown[shown.index("Because, at that instant,") : -1] == text[text.index("Because, at that instant,") : -1]
    assert [line[:12] for line in shown[2:6]] == [line[:12] for line in text[2:6]]
    assert shown[-1].startswith("It ended as resolved, 4.400 s later: ") is text[-1].startswith(
        "It ended as resolved, 4.4"
    )


def test_a_rule_that_is_not_loaded_is_not_guessed(tmp_path: Path) -> None:
    path = decided(tmp_path, engine_records())
    code, text = cli(path, id_of(engine_records()[0]))
    assert code == 0
    assert "gap_seconds > 0.4" not in text
    assert "no rule that is loaded has this hash" in text


def test_what_an_enforced_action_met_is_reported(tmp_path: Path) -> None:
    candidate = {"trace_id": "c" * 32, "span_id": "1" * 16, "choice": 0, "slo_class": "batch",
                 "score": {"priority": -10, "runway_seconds": 7.25}}  # fmt: skip
    made = record(
        action="preempt", mode="enforce", outcome="failed", detail="HTTP 503", budget={"in_flight": False},
        candidates=[candidate], relay="r1",
    )  # fmt: skip
    text = cli(decided(tmp_path, [made]), id_of(made))[1]
    assert "  preempt (enforce): failed: tried, and it failed\n    HTTP 503\n    in_flight: reached\n" in text
    assert (
        f"    candidate {'c' * 32} (batch): priority -10, runway_seconds 7.250, the first of those compared\n" in text
    )
    assert "Also recorded: relay = r1\n" in text
    assert text.endswith("It fires still, or its end is not in these files.\n")


def test_an_action_recorded_late_belongs_to_its_flip(tmp_path: Path) -> None:
    """What is enforced is written when its outcome is known, perhaps after the end of the firing."""
    end = record(state="resolved", action=None, mode=None, outcome="resolved", flip_unix_nano=1_767_225_601_000_000_000)
    made = [record(action="alert", outcome="done"), end, record(outcome="unconfirmed")]
    text = cli(decided(tmp_path, made), id_of(made[0]))[1]
    assert "alert (shadow): done" in text
    assert "migrate (shadow): unconfirmed" in text
    assert f"later: {id_of(end)}" in text


def test_a_refuted_end_follows_the_firing_of_the_same_instant(tmp_path: Path) -> None:
    made = [record(), record(state="resolved", action=None, mode=None, outcome="refuted")]
    path = decided(tmp_path, made)
    assert f"It ended as refuted, 0.000 ms later: {id_of(made[1])}" in cli(path, id_of(made[0]))[1]
    text = cli(path, id_of(made[1]))[1]
    assert "Because taken back: a token that was under way" in text
    assert f"It had begun 0.000 ms before: {id_of(made[0])}" in text


def test_a_class_is_identified_by_its_labels(tmp_path: Path) -> None:
    made = of_a_class(slo_class="chat", model="m")
    text = cli(decided(tmp_path, [made, of_a_class(slo_class="chat", model="n")]), id_of(made))[1]
    assert "  of        model m, slo_class chat\n" in text
    assert "burn_rate_5m  14.500" in text


def test_the_list_shows_the_last_ones_and_can_be_narrowed(tmp_path: Path) -> None:
    made = [record(flip_unix_nano=n * S, rule="A" if n % 2 else "B", trace_id=f"{n % 3:032x}") for n in range(1, 31)]
    path = decided(tmp_path, [each for one in made for each in (one, one | {"action": "alert"})], max_bytes=2000)
    text = cli(path, "--list")[1].splitlines()
    assert [line.split()[0] for line in text] == [id_of(one) for one in made[-20:]]
    assert "firing: migrate shadow, alert shadow" in text[0]
    text = cli(path, "--list", "--rule", "A", "--last", "3")[1].splitlines()
    assert [line.split()[0] for line in text] == [id_of(one) for one in made if one["rule"] == "A"][-3:]
    text = cli(path, "--list", "--trace", f"{2:032X}", "--last", "100")[1].splitlines()
    assert [line.split()[0] for line in text] == [id_of(one) for one in made if one["trace_id"].endswith("2")]
    for chunk in (f"{2:012x}", f"{2:032x}"[:7]):
        of = [one for one in made if one["trace_id"].endswith(chunk) or one["trace_id"].startswith(chunk)]
        text = cli(path, "--list", "--trace", chunk, "--last", "100")[1].splitlines()
        assert [line.split()[0] for line in text] == [id_of(one) for one in of]
    assert cli(path, "--list", "--rule", "C") == (0, "no decisions\nno record has the rule C; known: A, B\n")
    assert cli(path, "--list", "--trace", f"{9:032x}") == (0, f"no decisions\nno record has the trace {9:032x}\n")
    both = cli(path, "--list", "--rule", "A", "--trace", f"{9:032x}")
    assert both == (0, f"no decisions\nno record of the rule A has the trace {9:032x}\n")


@pytest.mark.parametrize("trace", ["zz", "", "0" * 5, "0" * 33, "0" * 31 + "\u0660"])
def test_a_trace_that_is_none_is_refused(tmp_path: Path, trace: str) -> None:
    code, text = cli(decided(tmp_path, [record()]), "--list", "--trace", trace)
    assert (code, "--trace" in text, "32 hex digits" in text) == (2, True, True)


def test_a_rule_with_a_typing_mistake_is_asked_about(tmp_path: Path) -> None:
    path = decided(tmp_path, [record(rule="ReaderStarving"), record(rule="Other")])
    text = cli(path, "--list", "--rule", "ReaderStarvin")[1]
    assert "no record has the rule ReaderStarvin; did you mean ReaderStarving?" in text


@pytest.mark.parametrize("arguments", [["--list"], ["--list", "--rule", "A"], ["0123"]])
def test_a_file_of_something_else_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_text('{"spans": []}\n' * 3)
    code, text = cli(path, *arguments)
    assert (code, "spans.jsonl: none of its 3 lines is a decision record" in " ".join(text.split())) == (2, True), text
    path.write_text("")
    assert cli(path, "--list") == (0, "no decisions\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--list", "0123"], "an ID or --list, not both: --list shows which ids there are"),
        ([], "name an ID, or ask for --list"),
    ],
)
def test_an_id_or_the_list_is_wanted(tmp_path: Path, arguments: list[str], says: str) -> None:
    code, text = cli(decided(tmp_path, [record()]), *arguments)
    assert (code, says in " ".join(text.split())) == (2, True), text


def test_names_from_telemetry_do_nothing_to_the_terminal(tmp_path: Path) -> None:
    made = record(facts={"model": "\x1b[2J\n\u202e", "gap_seconds": None})
    path = decided(tmp_path, [made, of_a_class(model="\x1b[2J\r")])
    text = cli(path, id_of(made))[1] + cli(path, "--list")[1]
    assert not {"\x1b", "\r", "\u202e"} & set(text)
    assert "gap_seconds  missing" in text


def test_every_outcome_has_words() -> None:
    assert set(OUTCOMES) == set(get_args(Outcome))


def test_other_lines_are_counted(tmp_path: Path) -> None:
    path = decided(tmp_path, [record()])
    path.write_bytes(b"not ours\n" + path.read_bytes() + b"{}\n" + b'{"torn')
    code, text = cli(path, id_of(record()))
    assert code == 0
    assert text.endswith("2 lines are no decision records\n")
    assert cli(path, "--list")[1].endswith("2 lines are no decision records\n")


def test_decisions_without_a_record_are_reported(tmp_path: Path) -> None:
    counts = [LeftOut("default", "R", "0" * 16, count, 1, 2).record(3) for count in (400, 7)]
    path = decided(tmp_path, [record(), *counts])
    words = "407 decisions in shadow left out when they were made: see `rules backtest`\n"
    for arguments in ([id_of(record())], ["--list"]):
        code, text = cli(path, *arguments)
        assert code == 0
        assert text.endswith(words)
        assert "no decision record" not in text


@pytest.mark.parametrize("wrong", [{"left_out": -1}, {"left_out": 2**63}, {"left_out": True}, {"tenant": 5}])
def test_a_count_that_cannot_be_true_is_no_count(tmp_path: Path, wrong: dict[str, Any]) -> None:
    path = decided(tmp_path, [record(), LeftOut("default", "R", "0" * 16, 5, 1, 2).record(3) | wrong])
    assert cli(path, "--list")[1].endswith("1 line is no decision record\n")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(record())), inner, max_size=5)
        ),
    )
)
def test_any_json_is_a_record_or_is_not(value: object) -> None:
    for each in (value, record() | value if isinstance(value, dict) else value):
        text = json.dumps(each)
        found = read_record(text)
        if found is not None:
            assert about_of(found)
            assert newest([text], 5)[0][0].id == id_of(found)
            one = find(id_of(found), lambda text=text: [text]).matches[id_of(found)]  # type: ignore[misc]
            assert headline(one).startswith(one.id)
            assert len(explain(one, None, None, None)) > 5


def test_one_line_is_one_line(tmp_path: Path) -> None:
    path = decided(tmp_path, [record()])
    path.write_bytes(b"not ours\n" + path.read_bytes())
    assert cli(path, "--list")[1].endswith("\n1 line is no decision record\n")
