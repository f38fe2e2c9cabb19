"""SLO files: the shipped one, the defaults of absent keys, and a refusal with place and advice for every mistake."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from otel_llm.config.yaml_file import ConfigError, parse_yaml
from otel_llm.rules.files import shipped
from otel_llm.rules.files.shipped import shipped_rules_dir, shipped_slo_file
from otel_llm.rules.files.slo_file import load_slo, slo_of
from otel_llm.slo.classes import (
    CONTENT,
    REASONING,
    TOOL,
    Benefit,
    Curve,
    Deadline,
    Fluidity,
    Objective,
    SloClass,
    SloClasses,
)

HEAD = "version: 1\ndefault: chat\nclasses:\n  chat:\n"


def loaded(text: str) -> SloClasses:
    return slo_of(parse_yaml(text.encode(), "slo.yaml"))


def chat(*lines: str) -> SloClass:
    return loaded(HEAD + "".join(f"    {line}\n" for line in lines)).get("chat")


def test_an_objective_on_fluidity_is_asked_of_99_requests_in_a_hundred_unless_set() -> None:
    stated = chat("objective: {fluidity_index: 0.9}").objective
    assert stated == Objective(Fraction(9, 10), Fraction(99, 100), None)
    assert chat("objective: {attainment: 0.9}").objective == Objective(None, None, Fraction(9, 10))


def test_the_shipped_classes() -> None:
    classes = load_slo()
    assert classes.names == ("chat", "code", "agent", "voice", "batch")
    assert classes.default == "chat"
    assert classes.get("chat") == SloClass(
        name="chat",
        match=(("gen_ai.operation.name", "chat"),),
        objective=Objective(Fraction(9, 10), Fraction(99, 100), Fraction(99, 100)),
    )
    assert classes.get("agent").reads == (CONTENT, REASONING, TOOL)
    assert classes.get("voice").pace_ns == round(10**9 / (Fraction("2.5") * Fraction("1.3")))


def test_an_empty_class_has_the_defaults() -> None:
    found = loaded("version: 1\ndefault: chat\nclasses: {chat: {}}\n").get("chat")
    assert found == SloClass()
    assert found == SloClass(
        name="chat",
        match=(),
        pace_ns=200_000_000,
        priority=0,
        reads=(CONTENT,),
        start_ns=0,
        deadline=Deadline("reading", 10**9),
        fluidity=Fluidity(10**9, 50_000_000, 0, "carry", "deadlines"),
        benefit=Benefit(2.5, "linear", 0.0),
        objective=Objective(None, None, None),
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("deadline: {policy: reading}", Deadline("reading", 0)),
        ("deadline: {}", Deadline("reading", 0)),
        ("deadline: {max_idle: 300ms}", Deadline("reading", 300_000_000)),
        ("deadline: {policy: dslo, ttft: 300ms, tpot: 0.03}", Deadline("dslo", 300_000_000, 30_000_000)),
        ("deadline: {policy: ttft_tbt, ttft: 1s, tbt: 100ms}", Deadline("ttft_tbt", 10**9, 100_000_000)),
        ("deadline: {policy: ttft_tpot, ttft: 1, tpot: 500us}", Deadline("ttft_tpot", 10**9, 500_000)),
        ("deadline: {policy: e2e, e2e: 2m}", Deadline("e2e", 120 * 10**9)),
    ],
)
def test_deadlines(line: str, expected: Deadline) -> None:
    assert chat(line).deadline == expected


def test_every_key() -> None:
    found = chat(
        "match: {gen_ai.operation.name: chat, tier: 2, gold: true, score: 0.5}",
        "reading_speed: 3.5 words/s",
        "priority: -3",
        "reads: [tool, content]",
        "start: 250ms",
        "fluidity: {ttft: {curve: [[256, 80ms], [1024, 0.2]]}, tbt: 25ms, slack: 5ms, "
        "ttft_credit: drop, count: tokens}",
        "benefit: {alpha: 10, penalty: quadratic, abort_penalty: 20}",
        "objective: {fluidity_index: 0.95, share: 1, attainment: 0.999}",
    )
    assert found == SloClass(
        match=(("gen_ai.operation.name", "chat"), ("tier", 2), ("gold", True), ("score", 0.5)),
        pace_ns=219_780_220,
        priority=-3,
        reads=(TOOL, CONTENT),
        start_ns=250_000_000,
        fluidity=Fluidity(Curve(((256, 80_000_000), (1024, 200_000_000))), 25_000_000, 5_000_000, "drop", "tokens"),
        benefit=Benefit(10.0, "quadratic", 20.0),
        objective=Objective(Fraction(95, 100), Fraction(1), Fraction(999, 1000)),
    )


def test_reading_speeds_are_rounded_to_a_ns_once() -> None:
    assert chat("reading_speed: 3").pace_ns == 333_333_333
    assert chat("reading_speed: 6").pace_ns == 166_666_667
    assert chat("reading_speed: 0.1").pace_ns == 10**10
    words = loaded("version: 1\ndefault: a\ntokens_per_word: 2\nclasses: {a: {reading_speed: 4 words/s}}\n")
    assert words.get("a").pace_ns == 125_000_000


@pytest.mark.parametrize(
    ("line", "column", "key", "message", "advice"),
    [
        ("readng_speed: 5", 5, "readng_speed", "unknown key", "did you mean reading_speed?"),
        ("deadline: {policy: dslow}", 24, "deadline.policy", "'dslow' is not allowed", "'dslo'"),
        ("deadline: {ttft: 1s}", 22, "deadline.ttft", "policy reading has no such parameter", "takes max_idle"),
        ("deadline: {policy: e2e, e2e: 1s, tbt: 1s}", 43, "deadline.tbt", "no such parameter", "e2e takes e2e"),
        ("deadline: {policy: dslo, ttft: 1s}", 15, "deadline.tpot", "missing", "dslo takes ttft and tpot"),
        ("deadline: {policy: reading, max_idle: -1s}", 43, "deadline.max_idle", "not negative", "300ms"),
        ("deadline: {max_idel: 1s}", 16, "deadline.max_idel", "unknown key", "did you mean max_idle?"),
        ("deadline: reading", 15, "deadline", "not a mapping", "key: value"),
        ("deadline:", 14, "deadline", "not a mapping", ""),
        ("start: 1 s", 12, "start", "'1 s' is no duration", "500us, 300ms, 1s, 2m, 1h"),
        ("start: .inf", 12, "start", "not a finite number", ""),
        ("start: true", 12, "start", "True is no duration", ""),
        ("start: null", 12, "start", "None is no duration", ""),
        ("reading_speed: 0", 20, "reading_speed", "0 is not", "3.5 words/s"),
        ("reading_speed: -5", 20, "reading_speed", "-5 is not", ""),
        ("reading_speed: fast", 20, "reading_speed", "'fast' is no reading speed", ""),
        ("reading_speed: 0 words/s", 20, "reading_speed", "'0 words/s' is not", ""),
        ("reading_speed: .nan", 20, "reading_speed", "not a finite number", ""),
        ("reading_speed: 1e7", 20, "reading_speed", "10000000.0 is not", ""),
        ("priority: 1.5", 15, "priority", "not a whole number", ""),
        ("priority: true", 15, "priority", "not a whole number", ""),
        ("reads: content", 12, "reads", "not a list of kinds", "[content, reasoning, tool]"),
        ("reads: []", 12, "reads", "not a list of kinds", ""),
        ("reads: [content, thinking]", 22, "reads[1]", "'thinking' is no kind", "known: content, reasoning, tool"),
        ("reads: [tool, tool]", 19, "reads[1]", "twice", ""),
        ("match: {}", 12, "match", "not a mapping of attributes", "leave it out"),
        ("match: {a: [b]}", 16, "match.a", "matches only", ""),
        ("match: {a: null}", 16, "match.a", "matches only", ""),
        ("fluidity: {tbt: 0s}", 21, "fluidity.tbt", "longer than zero", ""),
        ("fluidity: {count: misses}", 23, "fluidity.count", "not allowed", "'deadlines' or 'tokens'"),
        ("fluidity: {ttft: {curve: []}}", 30, "fluidity.ttft.curve", "no points", "[[256, 80ms]"),
        ("fluidity: {ttft: {}}", 22, "fluidity.ttft.curve", "no points", ""),
        ("fluidity: {ttft: {points: []}}", 23, "fluidity.ttft.points", "unknown key", "{curve:"),
        ("fluidity: {ttft: {curve: [[1, 2s, 3]]}}", 31, "fluidity.ttft.curve[0]", "a point is", ""),
        ("fluidity: {ttft: {curve: [[1.5, 2s]]}}", 32, "fluidity.ttft.curve[0][0]", "no number of input tokens", ""),
        ("fluidity: {ttft: {curve: [[1, x]]}}", 35, "fluidity.ttft.curve[0][1]", "no duration", ""),
        ("fluidity: {ttft: {curve: [[9, 1s], [9, 2s]]}}", 41, "fluidity.ttft.curve[1][0]", "do not increase", ""),
        ("fluidity: {ttft: {curve: [[8, 2s], [9, 1s]]}}", 44, "fluidity.ttft.curve[1][1]", "the curve falls", ""),
        ("benefit: {alpha: -1}", 22, "benefit.alpha", "-1 is no amount", ""),
        ("benefit: {alpha: yes}", 22, "benefit.alpha", "'yes' is no amount", ""),
        ("benefit: {alpha: 1e13}", 22, "benefit.alpha", "no amount", "0 to 1e12"),
        ("benefit: {penalty: cubic}", 24, "benefit.penalty", "not allowed", "'quadratic'"),
        ("objective: {share: 99}", 24, "objective.share", "99 is no share", "0.99"),
        ("objective: {attainment: null}", 29, "objective.attainment", "None is no share", ""),
        ("objective: {atainment: 0.9}", 17, "objective.atainment", "unknown key", "did you mean attainment?"),
    ],
)
def test_a_mistake_in_a_class_is_named_with_its_position(
    line: str, column: int, key: str, message: str, advice: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        chat(line)
    error = caught.value
    assert (error.file, error.line, error.column) == ("slo.yaml", 5, column)
    assert error.key in (key, f"classes.chat.{key}")
    assert message in error.message
    assert advice in error.advice


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("version: 1\nclasses: {a: {}}\n", "slo.yaml:1:1: default", "missing"),
        ("version: 1\ndefault: a\n", "slo.yaml:1:1: classes", "missing"),
        (
            "version: 1\ndefault: b\nclasses: {a: {}}\n",
            "slo.yaml:2:10: default",
            "no class 'b' in this file (known: a)",
        ),
        ("version: 1\ndefault: a\nclasses: {}\n", "slo.yaml:3:10: classes", "empty"),
        ("version: 1\ndefault: a\nclasses: {a: 1}\n", "slo.yaml:3:14: classes.a", "not a mapping"),
        ("version: 1\ndefault: a\nclasses: {a: {}}\nspeed: 1\n", "slo.yaml:4:1: speed", "unknown key"),
        ("version: 1\ndefault: 1\nclasses: {a: {}}\n", "slo.yaml:2:10: default", "not a string"),
        ("version: 1\ndefault: ''\nclasses: {'': {}}\n", "slo.yaml:3:", "an empty name"),
        ("version: 1\ndefault: a\ntokens_per_word: 0\nclasses: {a: {}}\n", "slo.yaml:3:18: tokens_per_word", "0 is no"),
        ("default: a\nclasses: {a: {}}\n", "slo.yaml:1:1: version", "missing"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_position(text: str, position: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(text)
    assert str(caught.value).startswith(position)
    assert message in str(caught.value)


def test_of_several_mistakes_the_first_in_the_file_is_reported() -> None:
    with pytest.raises(ConfigError) as caught:
        chat("start: x", "priority: x", "benefit: {alpha: x}")
    assert caught.value.line == 5


words = st.sampled_from(
    ["policy", "reading", "dslo", "ttft", "tbt", "tpot", "e2e", "max_idle", "curve", "1s", "-1s", "content", "linear",
     "alpha", "count", "tokens", "share", "a"]
)  # fmt: skip
scalars = st.none() | st.booleans() | st.integers() | st.floats() | words | st.text(max_size=3)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=6
)
keys = st.sampled_from(
    ["match", "reading_speed", "priority", "reads", "start", "deadline", "fluidity", "benefit", "objective"]
)


@settings(max_examples=examples(300))
@given(st.dictionaries(keys, values, max_size=3))
def test_any_class_is_loaded_or_refused(body: dict[str, object]) -> None:
    text = yaml.safe_dump({"version": 1, "default": "a", "classes": {"a": body}})
    try:
        slo = loaded(text).get("a")
    except ConfigError as error:
        reported = str(error)
        assert reported.startswith("slo.yaml:")
        return
    assert slo.pace_ns > 0
    assert slo.fluidity.tbt_ns > 0


def test_a_file_is_loaded_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("version: 1\ndefault: mine\nclasses: {mine: {}}\n", encoding="utf-8")
    assert load_slo(path).names == ("mine",)
    path.write_text("version: 1\ndefault: mine\nclasses: {mine: {start: x}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"{path}:3:25: classes\.mine\.start: 'x' is no duration"):
        load_slo(path)


def test_the_shipped_files_are_found_and_a_broken_installation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shipped_slo_file() == shipped_rules_dir() / "slo.yaml"
    monkeypatch.setattr(shipped, "__file__", "/nowhere/otel_llm/rules/files/shipped.py")
    with pytest.raises(FileNotFoundError, match="reinstall otel-llm"):
        shipped_rules_dir()


def test_packaged_files_come_before_those_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "otel_llm" / "rules"
    for folder in (package / "shipped", tmp_path / "rules"):
        folder.mkdir(parents=True)
        (folder / "slo.yaml").touch()
    monkeypatch.setattr(shipped, "__file__", str(package / "files" / "shipped.py"))
    assert shipped_rules_dir() == package / "shipped"
