"""Hostile rule files are refused with a place and few words, and no bytes at all give anything but rules or that."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from otel_llm.config.yaml_file import MAX_BYTES, ConfigError, parse_yaml
from otel_llm.rules.files.load import RulesError, load_rules
from otel_llm.rules.files.shipped import shipped_rules_dir
from otel_llm.rules.language.facts import in_scope
from otel_llm.rules.language.parser import MAX_CHARACTERS, Node, parse
from otel_llm.rules.language.tokens import ExpressionError
from otel_llm.rules.lint.check import check_rules

HERE = Path(__file__).parents[1]
FILES = sorted((HERE / "files" / "hostile").glob("*.yaml"))
FOLDERS = (shipped_rules_dir(), HERE / "lint" / "lints", HERE / "lint" / "mistakes", HERE / "files" / "hostile")
SEEDS = [
    [path.read_bytes() for path in sorted(folder.glob("*.yaml")) if path.stat().st_size < 3_000] for folder in FOLDERS
]
BITS = [
    *(
        bit.encode()
        for bit in ("'", '"', "\\", "\n", "\t", ":", "-", "[", "]", "{", "}", "&a", "*a", "!", "!!str", "|")
    ),
    *(
        bit.encode()
        for bit in (">", "#", "%", "@", "`", "?", "&&", "||", "(", ")", "<<:", "---", "\u2028", "\U0001f600")
    ),
    *(b" ", b"\x00", b"\xff", b"\xef\xbb\xbf", b"in [", b"1e400", b".nan", b"9223372036854775808", b"true", b"null"),
    *(b"resolve_when: 'tokens < 0'\n", b"on_missing: fire", b"mode: enforce", b"scope: class", b"ttl: 0s", b"when: "),
]
SWAPS = [
    [name.encode() for name in (*in_scope("stream"), "requests_5m", "attainment_5m", "burn_rate_1h", "streams")],
    [b"0", b"1", b"0.0", b"1.0", b"0.2", b"-1.5", b"500.0", b"9223372036854775807", b"1e308", b"0.1", b"3"],
    [b"<", b"<=", b">", b">=", b"==", b"!=", b"+", b"-", b"*", b"/", b"&&", b"||"],
    [b"hold", b"fire", b"false", b"0s", b"100ms", b"1s", b"10m", b"31h"],
]
"""Words that may stand for each other, so that some of the results are right."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_refused_where_it_is_wrong_and_in_few_words(path: Path) -> None:
    with pytest.raises(RulesError) as refused:
        load_rules([path])
    assert refused.value.file == str(path)
    found = check_rules([path])
    assert found.exit_code() == 1
    for finding in found.findings:
        assert finding.kind == "error"
        assert len(finding.text) < 700, finding.text
        assert all(char.isprintable() for char in finding.text), finding.text


def test_the_corpus_is_there() -> None:
    assert len(FILES) > 70
    assert not Path("/tmp/otel-llm-was-here").exists()


@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_give_rules_or_a_refusal(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    path = tmp_path / "rules.yaml"
    right = 0
    for _ in range(250):
        path.write_bytes(mutated(chance))
        found = check_rules([path], ("abort",))
        assert str(found)
        try:
            rules = load_rules([path], ("abort",))
        except ConfigError:
            assert found.errors
            continue
        assert not found.errors
        right += len(rules.rules)
    # Some must come through, or the lints behind were never reached.
    assert right > 10


def mutated(chance: random.Random) -> bytes:
    data = chance.choice(chance.choice(SEEDS[:2] if chance.random() < 0.5 else SEEDS))
    if chance.random() < 0.6:
        for _ in range(chance.choice([1, 2, 4])):
            data = swapped(chance, data)
        return data
    for _ in range(chance.choice([1, 1, 1, 2, 3, 8])):
        data = torn(chance, data)
    return data


def swapped(chance: random.Random, data: bytes) -> bytes:
    words = chance.choice(SWAPS)
    positions = [found.span() for found in re.finditer(rb"[-+*/<>=!&|]+|[\w.]+", data) if found.group() in words]
    if not positions:
        return data
    begin, end = chance.choice(positions)
    return data[:begin] + chance.choice(words) + data[end:]


def torn(chance: random.Random, data: bytes) -> bytes:
    at, end = sorted(chance.randrange(len(data) + 1) for _ in "be")
    kind = chance.randrange(5)
    if kind == 0:
        return data[:at] + chance.choice(BITS) + data[at:]
    if kind == 1:
        return data[:at] + data[min(end, at + chance.randrange(1, 12)) :]
    if kind == 2:
        other = chance.choice(chance.choice(SEEDS))
        start = chance.randrange(len(other) + 1)
        return data[:at] + other[start : start + chance.randrange(60)] + data[at:]
    if kind == 3:
        return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
    return data[:at] + data[at : min(end, at + 80)] + data[at:]


@pytest.mark.parametrize("seed", range(2))
def test_any_text_is_an_expression_or_is_refused_within_itself(seed: int) -> None:
    chance = random.Random(seed)
    words = ["&&", "||", "!", "-", "(", ")", "[", "]", ",", "in", "1", "2.5", ".", "'", '"', "\\", "==", "<", ">=", "="]
    words += ["*", "/", "true", "é", "x", "_", "1e", "//", "?", "tokens", "gap_seconds", "\n", "\0"]
    for _ in range(4_000):
        text = "".join(chance.choice(words) + chance.choice(["", " "]) for _ in range(chance.randrange(25)))
        refused = refusal(text)
        if refused is not None:
            assert 0 <= refused.start <= len(text), text
            assert refused.start < refused.end <= len(text) + 1, text


def refusal(text: str) -> ExpressionError | None:
    try:
        parse(text)
    except ExpressionError as error:
        return error
    return None


@pytest.mark.parametrize("unit", ["1<1||", "1,", "1+", "!", "(", "-", "b&&", "b||"])
def test_no_expression_has_more_nodes_than_characters(unit: str) -> None:
    head = "1 in [" if unit == "1," else ""
    text = (head + unit * MAX_CHARACTERS)[: MAX_CHARACTERS - 2] + "1" + "]" * bool(head)
    try:
        node = parse(text)
    except ExpressionError:
        return
    assert nodes(node) <= len(text)


def nodes(node: Node) -> int:
    return 1 + sum(map(nodes, node.args))


def test_the_bounds_are_those_of_the_contract(tmp_path: Path) -> None:
    assert (MAX_BYTES, MAX_CHARACTERS) == (64 * 1024, 4_096)
    fits = b"version: 1\n" + b"#" * (MAX_BYTES - 11)
    assert parse_yaml(fits, "f").data == {"version": 1}
    with pytest.raises(ConfigError, match="64 KiB"):
        parse_yaml(fits + b"#", "f")
    parse(f"{'true':<{MAX_CHARACTERS}}")
    with pytest.raises(ExpressionError):
        parse(f"{'true':<{MAX_CHARACTERS + 1}}")
