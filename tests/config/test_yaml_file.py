"""Strict YAML: what is refused, where, and that nothing else ever escapes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from otel_llm.config.durations import exact, parse_duration_ns
from otel_llm.config.yaml_file import (
    MAX_BYTES,
    MAX_DEPTH,
    ConfigError,
    UnreadableConfigError,
    did_you_mean,
    dotted,
    load_yaml,
    parse_yaml,
)
from otel_llm.rules.files.expression_errors import RuleError


def refused(text: str | bytes) -> ConfigError:
    raw = text.encode() if isinstance(text, str) else text
    with pytest.raises(ConfigError) as caught:
        parse_yaml(raw, "f.yaml")
    return caught.value


def test_plain_data_and_where_it_stands() -> None:
    found = parse_yaml(b"version: 1\nrules:\n- for: 100ms\n  when: 'a > 1'\n  on: {x: [1, 2]}\n", "f.yaml")
    assert found.data == {"version": 1, "rules": [{"for": "100ms", "when": "a > 1", "on": {"x": [1, 2]}}]}
    key, value = found.key_mark(("rules", 0, "when")), found.value_mark(("rules", 0, "when"))
    assert (key.line, key.column, value.line, value.column, value.style) == (4, 3, 4, 9, "'")
    assert found.value_mark(("rules", 0, "on", "x", 1)).column == 15
    assert found.key_mark(("rules", 0)).line == 3
    nearest = found.value_mark(("rules", 0, "missing", 7))
    assert (nearest.line, nearest.column) == (3, 3)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-12", -12),
        ("010", 10),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("2026-01-01", "2026-01-01"),
        ("'1'", "1"),
        ('"null"', "null"),
        ("100ms", "100ms"),
    ],
)
def test_scalars_are_what_they_look_like(text: str, value: object) -> None:
    found = parse_yaml(f"version: 1\nx: {text}\n".encode(), "f.yaml").data["x"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "f.yaml:1:1", "not a mapping"),
        ("- 1\n", "f.yaml:1:1", "not a mapping"),
        ("x: 1\n", "f.yaml:1:1: version", "missing"),
        ("version: 2\n", "f.yaml:1:10: version", "2 is not supported"),
        ("version: 1.0\n", "f.yaml:1:10: version", "1.0 is not supported"),
        ("version: true\n", "f.yaml:1:10: version", "True is not supported"),
        ("version: '1'\n", "f.yaml:1:10: version", "'1' is not supported"),
        ("version: 1\na: 1\na: 2\n", "f.yaml:3:1: a", "duplicate key (first in line 2)"),
        ("version: 1\na: {b: 1, b: 1}\n", "f.yaml:2:11: a.b", "duplicate key"),
        ("version: 1\na: &x 1\n", "f.yaml:2:4: a", "anchor &x"),
        ("version: 1\na: *x\n", "f.yaml:2:4: a", "alias *x"),
        ("version: 1\n&x a: 1\n", "f.yaml:2:1", "anchor &x"),
        ("version: 1\na: !!int 1\n", "f.yaml:2:4: a", "tag !!int"),
        ("version: 1\na: !python/object:os.system {}\n", "f.yaml:2:4: a", "tag !python"),
        ("version: 1\n<<: {a: 1}\n", "f.yaml:2:1: <<", "merge key"),
        ("version: 1\n1: a\n", "f.yaml:2:1", "'1' is no key"),
        ("version: 1\ntrue: a\n", "f.yaml:2:1", "'true' is no key"),
        ("version: 1\n[a]: b\n", "f.yaml:2:1", "is no key"),
        ("version: 1\na: .nan\n", "f.yaml:2:4: a", "not a finite number"),
        ("version: 1\na: -.inf\n", "f.yaml:2:4: a", "not a finite number"),
        ("version: 1\na: 1e999\n", "f.yaml:2:4: a", "not a finite number"),
        ("version: 1\n---\nversion: 1\n", "f.yaml:2:1", "second document"),
        ("version: 1\na: [1\n", "f.yaml:3:1", "not YAML"),
        ("version: 1\n a: 1\n", "f.yaml:2:3", "not YAML"),
        ("version: 1\na: \x07\n", "f.yaml", "not YAML"),
    ],
)
def test_what_is_refused_names_its_place(text: str, place: str, message: str) -> None:
    error = refused(text)
    assert str(error).startswith(place)
    assert message in str(error)


def test_bytes_that_are_no_utf_8_are_refused_with_their_line() -> None:
    assert refused(b"version: 1\na: \xff\n").line == 2


def test_a_byte_order_mark_is_nothing() -> None:
    assert parse_yaml(b"\xef\xbb\xbfversion: 1\n", "f").data == {"version": 1}


def test_a_file_has_a_greatest_size() -> None:
    base = b"version: 1\n#"
    assert parse_yaml(base + b"x" * (MAX_BYTES - len(base)), "f").data == {"version": 1}
    assert "64 KiB" in refused(base + b"x" * (MAX_BYTES - len(base) + 1)).message


def test_nesting_has_a_greatest_depth() -> None:
    deep = "version: 1\nx: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert parse_yaml(deep.encode(), "f").data["version"] == 1
    for brackets in (MAX_DEPTH + 1, 30_000):
        assert "nested" in refused("version: 1\nx: " + "[" * brackets + "]" * brackets).message
    assert "nested" in refused("version: 1\nx: " + "{a: " * 100 + "}" * 100).message


def test_numbers_are_keys_only_where_they_are_asked_for() -> None:
    raw = b"version: 1\npercentiles: {25: 1, 99.5: 2, -3: 3}\n"
    assert parse_yaml(raw, "f", number_keys=True).data["percentiles"] == {"25": 1, "99.5": 2, "-3": 3}
    for raw_key in (b"version: 1\ntrue: 1\n", b"version: 1\n~: 1\n", b"version: 1\n1: 1\n'1': 2\n"):
        with pytest.raises(ConfigError):
            parse_yaml(raw_key, "f", number_keys=True)
    with pytest.raises(ConfigError, match="keys are words"):
        parse_yaml(raw, "f")


def test_an_error_is_whole_in_another_process() -> None:
    error = ConfigError("f", 2, 3, "a.b", "wrong", "right")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.advice) == (str(error), "right")
    rule = RuleError("f", 2, 3, "a.b", "wrong")
    rule.length = 7
    assert pickle.loads(pickle.dumps(rule)).length == 7


def test_a_file_that_is_not_there_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableConfigError, match="No such file"):
        load_yaml(tmp_path / "none.yaml")
    with pytest.raises(UnreadableConfigError, match="Is a directory"):
        load_yaml(tmp_path)


def test_a_huge_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    with path.open("wb") as stream:
        stream.truncate(10**9)
    with pytest.raises(ConfigError, match="64 KiB"):
        load_yaml(path)


fragments = st.sampled_from(
    ["version: 1", "a:", " ", "\n", "- ", "[", "]", "{", "}", ":", ",", "&x", "*x", "!!", "'", '"', "|", ">", "#", "?",
     "---", "...", "%", "<<", "1", "true", "~", "\t", "\x85", "\u2028", "é", "\ufeff", "\x00", "@", "`"]
)  # fmt: skip


@settings(max_examples=examples(300))
@given(st.binary(max_size=60) | st.lists(fragments, max_size=30).map(lambda parts: "".join(parts).encode()))
def test_any_bytes_give_data_or_a_config_error(raw: bytes) -> None:
    for text in (raw, b"version: 1\n" + raw):
        try:
            assert parse_yaml(text, "f").data["version"] == 1
        except ConfigError as error:
            reported = str(error)
        else:
            continue
        assert reported.startswith("f:")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("500us", 500_000),
        ("300ms", 300_000_000),
        ("1s", 10**9),
        ("1.5s", 1_500_000_000),
        ("2m", 120 * 10**9),
        ("1h", 3600 * 10**9),
        ("0s", 0),
        (0, 0),
        (2, 2 * 10**9),
        (0.05, 50_000_000),
        (1e-9, 1),
        (4e-10, 0),
        (0.1 + 0.2, 300_000_000),
    ],
)
def test_durations(value: object, expected: int) -> None:
    assert parse_duration_ns(value) == expected


@pytest.mark.parametrize(
    "value",
    ["", "s", "1", "1 s", "1S", "1m30s", "1d", "1ns", "-1s", "1e3s", ".5s", "١s", "1s\n", -1, -0.1, True, None, [1],
     "400000h", 1e30, float("nan"), float("inf")],
)  # fmt: skip
def test_what_is_no_duration(value: object) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_duration_ns(value)
    assert not isinstance(caught.value, UnicodeError)


def test_shares_are_the_fraction_that_was_written() -> None:
    assert exact(0.99).as_integer_ratio() == (99, 100)
    assert exact(1).as_integer_ratio() == (1, 1)


def test_words_for_people() -> None:
    assert dotted(("groups", 0, "rules", 2, "for")) == "groups[0].rules[2].for"
    assert did_you_mean("policcy", ["policy", "tbt"]) == "did you mean policy?"
    assert did_you_mean("zzz", ["policy", "tbt"]) == "known: policy, tbt"
