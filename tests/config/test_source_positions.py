"""Columns are right inside every kind of YAML scalar."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_llm.config.source_positions import source_line, source_offsets
from otel_llm.config.yaml_file import YamlFile, parse_yaml

WORDS = st.lists(
    st.sampled_from(["tokens", ">", "1", "&&", "'a'", '"b"', "it''s", "\\", "é", "\U0001f600", "(", ")", "<", "x:y"]),
    min_size=1,
    max_size=8,
)


def read(text: str) -> YamlFile:
    return parse_yaml(("version: 1\n" + text).encode(), "f.yaml")


def shown(file: YamlFile) -> str:
    """Return what stands in the source where each visible character of the value should stand."""
    value = file.data["when"]
    places = source_offsets(file.text, file.value_mark(("when",)), value)
    assert places is not None
    assert places == sorted(places)
    assert len(places) == len(value) + 1
    return "".join(file.text[place] for place, char in zip(places, value, strict=False) if not char.isspace())


def visible(file: YamlFile) -> str:
    return "".join(char for char in file.data["when"] if not char.isspace())


@given(WORDS, st.integers(0, 3))
def test_single_quoted(words: list[str], indent: int) -> None:
    lines = ("\n" + " " * (indent + 1)).join(word.replace("'", "''") for word in words)
    file = read(f"when: '{lines}'\n")
    assert shown(file) == visible(file)


@given(WORDS, st.lists(st.sampled_from([" ", "\n  ", " \\\n  ", "\\t", "  "]), min_size=8, max_size=8))
def test_double_quoted(words: list[str], gaps: list[str]) -> None:
    escaped = [word.replace("\\", "\\\\").replace('"', '\\"').replace("é", "\\u00e9") for word in words]
    text = "".join(gap + word for word, gap in zip(escaped, gaps, strict=False))
    file = read(f'when: "tokens{text}"\n')
    # An escape is pointed at by its backslash.
    expected = "".join("\\" if char in '\\"é' else char for char in visible(file))
    assert shown(file) == expected


@given(
    WORDS, st.sampled_from(["|", ">", "|-", ">+", "|2", "> # why"]), st.lists(st.sampled_from([" ", "\n  ", "\n\n  "]))
)
def test_blocks(words: list[str], header: str, gaps: list[str]) -> None:
    text = "".join(word + (gaps[at] if at < len(gaps) else " ") for at, word in enumerate(words)).rstrip()
    file = read(f"when: {header}\n  {text}\nother: 1\n")
    assert shown(file) == visible(file)


@given(WORDS, st.sampled_from([" ", "\n  ", "\n\n     "]))
def test_plain(words: list[str], gap: str) -> None:
    file = read("when: tokens" + gap + gap.join(word for word in words if word.isalnum()) + "\n")
    assert shown(file) == visible(file)


def test_line_breaks_of_every_kind() -> None:
    file = read("a: 1\r\nb: 2\rwhen: 'tokens'\n")
    assert shown(file) == "tokens"
    assert source_line(file.text, 4) == "when: 'tokens'"
    assert source_line(file.text, 99) == ""
    assert source_line("", 1) == ""


def test_a_byte_order_mark_moves_nothing() -> None:
    file = parse_yaml("\ufeffversion: 1\nwhen: tokens\n".encode(), "f.yaml")
    assert shown(file) == "tokens"


def test_what_does_not_meet_is_reported_to_be_unknown() -> None:
    file = read("when: tokens\n")
    assert source_offsets(file.text, file.value_mark(("when",)), "other") is None
