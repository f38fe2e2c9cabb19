"""Bodies of JSON values: any cut of the bytes gives the values of the whole, and nothing makes a parser hold more."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.instrumentation.memory import NOISE_BYTES, held

from otel_llm.instrumentation.parse.json_bodies import JsonArray, JsonLines

Parser = JsonArray | JsonLines
KINDS: list[type[Parser]] = [JsonArray, JsonLines]
SMALL = 24

TEXTS = st.text(alphabet='a"\\{}[]\n,é', max_size=6)
VALUES = st.recursive(
    st.none() | st.integers(0, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.lists(st.dictionaries(TEXTS, VALUES, max_size=3), max_size=5)
CUTS = st.lists(st.integers(0, 1000), max_size=12)
NOISE = st.lists(
    st.sampled_from([b"{", b"}", b'"', b"\\", b"[", b"]", b",", b"\n", b"\r\n", b" ", b"ab", b"long" * 8])
    | st.binary(max_size=3),
    max_size=30,
).map(b"".join)


def cut(body: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(index % (len(body) + 1) for index in at), len(body)]
    return [body[start:end] for start, end in itertools.pairwise(edges)]


def fed(parser: Parser, pieces: list[bytes]) -> list[bytes]:
    values = [value for piece in pieces for value in parser.feed(piece)]
    return values + parser.end()


@given(OBJECTS, CUTS, st.sampled_from([None, 1]), st.booleans())
@example([{'"': "\\"}, {"\\": '{"'}], [3, 4, 5, 6], None, False)
def test_any_cut_of_an_array_gives_its_objects(
    objects: list[Any], at: list[int], indent: int | None, ascii_only: bool
) -> None:
    body = json.dumps(objects, indent=indent, ensure_ascii=ascii_only).encode()
    for pieces in ([body], cut(body, at), [bytes([byte]) for byte in body]):
        parser = JsonArray()
        assert [json.loads(value) for value in fed(parser, pieces)] == objects
        assert parser.between
        assert parser.lost == 0


@given(st.lists(VALUES, max_size=5), CUTS, st.sampled_from([b"\n", b"\r\n", b"\n\n"]), st.booleans())
def test_any_cut_of_lines_gives_their_values(values: list[Any], at: list[int], end: bytes, ended: bool) -> None:
    body = end.join(json.dumps(value).encode() for value in values) + (end if ended else b"")
    for pieces in ([body], cut(body, at), [bytes([byte]) for byte in body]):
        parser = JsonLines()
        assert [json.loads(value) for value in fed(parser, pieces)] == values
        assert parser.between
        assert parser.lost == 0


@pytest.mark.parametrize("kind", KINDS)
@given(body=NOISE, at=CUTS)
def test_any_cut_of_any_bytes_gives_what_the_whole_gives(kind: type[Parser], body: bytes, at: list[int]) -> None:
    whole = kind(most=SMALL)
    expected = fed(whole, [body])
    for pieces in (cut(body, at), [bytes([byte]) for byte in body]):
        parser = kind(most=SMALL)
        assert fed(parser, pieces) == expected
        assert parser.lost == whole.lost
    assert all(0 < len(value) <= SMALL for value in expected)


def test_an_object_is_there_with_its_last_brace() -> None:
    parser = JsonArray()
    assert parser.feed(b'[{"a": {}') == []
    assert parser.feed(b"}") == [b'{"a": {}}']
    assert parser.feed(b"\n,\r\n{") == []
    assert not parser.between
    assert parser.end() == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("piece", [b'{"a": "' + b"x" * 4089, b"{" * 4096, b'{"' + b"\\" * 4094])
def test_a_value_without_an_end_is_not_held(kind: type[Parser], piece: bytes) -> None:
    most = 2**14
    parser = kind(most=most)
    with held() as memory:
        for _ in range(2 * most // 4096):
            assert parser.feed(piece) == []
    assert memory.most <= 2 * most
    assert memory.now < NOISE_BYTES


def test_what_is_too_long_is_counted_and_what_follows_is_there() -> None:
    lines, array = JsonLines(most=SMALL), JsonArray(most=SMALL)
    long = b'{"a": "' + b"x" * SMALL + b'"}'
    for parser in (lines, array):
        assert fed(parser, [long[:9], long[9:], b"\n", long, b'\n{"b": 1}\n']) == [b'{"b": 1}']
        assert parser.lost == 2


@pytest.mark.parametrize("kind", KINDS)
def test_noise_raises_nothing(kind: type[Parser]) -> None:
    parser = kind()
    parser.feed(random.Random(1).randbytes(50_000))
    parser.end()
