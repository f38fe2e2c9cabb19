"""A JSON file larger than memory, value by value: the same however it is cut into chunks, broken or whole."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.formats.io.json_values import END, ValueLimits, items, key_paths, load
from otel_llm.formats.io.skipped import Skipped
from otel_llm.formats.records import DecodeError

FILE = Path("f.json")
Found = list[tuple[str, Any, int]]


def walk(data: bytes, *streamed: str, size: int = 7, limits: ValueLimits | None = None) -> tuple[Found, Skipped]:
    skipped = Skipped()
    chunks = (data[first : first + size] for first in range(0, len(data), size))
    found = [
        (one.path, "END" if one.value is END else one.value, one.offset)
        for one in items(FILE, chunks, skipped, streamed, limits)
    ]
    return found, skipped


def test_what_is_not_entered_is_one_value() -> None:
    assert walk(b'{"a": [1, {"b": 2}]}\n[3]\n 4') == (
        [("", {"a": [1, {"b": 2}]}, 0), ("", [3], 21), ("", 4, 26)],
        Skipped(),
    )


def test_entered_objects_and_arrays_come_value_by_value_with_their_offsets() -> None:
    data = '{"é": 1, "data": [{"x": [0]}, "é", -1.5e3], "none": [], "o": {"k": null}}'.encode()
    found, skipped = walk(data, "", "data", "none", "o")
    assert [(path, value) for path, value, _ in found] == [
        ("é", 1),
        ("data[]", {"x": [0]}),
        ("data[]", "é"),
        ("data[]", -1500.0),
        ("o.k", None),
        ("o", "END"),
        ("", "END"),
    ]
    assert skipped.counts == Counter()
    for path, value, offset in found:
        if value != "END":
            written = json.dumps(value, ensure_ascii=False).encode()
            assert data[offset : offset + 1] == written[:1], path


@pytest.mark.parametrize("size", range(1, 12))
def test_a_number_is_not_cut_by_a_chunk(size: int) -> None:
    found, skipped = walk(b'{"a": [12, -3.25, 1e+16, 10.5E-3], "b": 77}', "", "a", size=size)
    assert [value for _, value, _ in found] == [12, -3.25, 1e16, 0.0105, 77, "END"]
    assert skipped.counts == Counter()
    assert walk(b"123", size=size)[0] == [("", 123, 0)]


@pytest.mark.parametrize("size", range(1, 12))
def test_numbers_that_are_not_finite_are_read(size: int) -> None:
    data = b'{"a": Infinity, "b": [-Infinity, NaN], "c": {"d": NaN}, "e": 1}'
    found, skipped = walk(data, "", "b", size=size)
    assert [str(value) for _, value, _ in found] == ["inf", "-inf", "nan", "{'d': nan}", "1", "END"]
    assert skipped.counts == Counter()
    assert str(load(data)["b"]) == "[-inf, nan]"


@pytest.mark.parametrize("cut", [b"-", b"-Inf", b"Infinit", b"Na", b"N"])
def test_a_number_that_the_files_end_cuts_is_torn(cut: bytes) -> None:
    assert walk(b'{"a": ' + cut, "")[1].counts == Counter(torn_tail=1)


def test_a_broken_value_costs_itself_and_is_named_by_its_byte() -> None:
    data = b'{"data": [{"a": 1}, {"b": x}, {"c": 3}, nul, 5], "k": Nan, "r": 1}'
    found, skipped = walk(data, "", "data")
    assert [(path, value) for path, value, _ in found] == [
        ("data[]", {"a": 1}),
        ("data[]", {"c": 3}),
        ("data[]", 5),
        ("r", 1),
        ("", "END"),
    ]
    assert skipped.counts == Counter(bad_record=3)
    places = [int(note.split("byte ")[1].split(":")[0]) for note in skipped.notes]
    assert places == [data.index(b"x}"), data.index(b"nul"), data.index(b"Nan")]


def test_a_cut_is_torn_where_the_value_began() -> None:
    data = b'{"data": [{"a": 1}, {"b": "x'
    found, skipped = walk(data, "", "data")
    assert [value for _, value, _ in found] == [{"a": 1}]
    assert skipped.notes == [f"f.json: byte {data.rindex(b'{')}: cut"]
    assert skipped.counts == Counter(torn_tail=1)


def test_a_missing_quote_in_a_whole_file_is_damage_and_no_cut() -> None:
    assert walk(b'{"data": [{"a": "x}, {"b": 2}]}', "", "data")[1].counts["bad_record"] >= 1


def test_a_line_that_is_no_json_costs_itself() -> None:
    found, skipped = walk(b'{"a": 1}\n{"b": }\n}{\n{"c": 2}\n')
    assert [value for _, value, _ in found] == [{"a": 1}, {"c": 2}]
    assert skipped.counts == Counter(bad_record=2)


def test_a_value_too_long_or_of_too_many_parts_is_passed_over() -> None:
    limits = ValueLimits(chars=50_000, parts=2000, window=1000)
    for inner in (b'{"a": "' + b"x" * 200_000 + b'"}', b"[" + b"1," * 4000 + b"1]", b"[" * 3000 + b"]" * 3000):
        found, skipped = walk(b'{"data": [1, ' + inner + b", 2]}", "", "data", size=1000, limits=limits)
        assert [value for path, value, _ in found if path == "data[]"] == [1, 2]
        assert skipped.counts == Counter(bad_record=1)
    with pytest.raises(DecodeError, match="more parts in one JSON value"):
        load(b"[" + b"1," * 4000 + b"1]", limits.parts)


def test_a_string_without_end_is_not_held() -> None:
    def endless() -> Iterator[bytes]:
        yield b'{"data": ["'
        for _ in range(40):
            yield b"x" * 2**20

    tracemalloc.start()
    skipped = Skipped()
    assert list(items(FILE, endless(), skipped, ("", "data"), ValueLimits(chars=2**20))) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert skipped.counts == Counter(bad_record=1)
    assert peak < 16 * 2**20


def test_deep_nesting_and_endless_numbers_are_typed_errors() -> None:
    for text in (b"[" * 100_000, b"1" * 10_000, b"\xff\xfe", b""):
        with pytest.raises(DecodeError, match="not JSON"):
            load(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


# The path of the key `a[]` is that of the items of `a`.
KEYS = st.text(max_size=3).filter(lambda key: not key.endswith("[]"))


@given(st.dictionaries(KEYS, st.lists(VALUES, max_size=4), max_size=3), st.integers(1, 40))
def test_all_values_together_are_the_document(document: dict[str, list[Any]], size: int) -> None:
    paths = [f"{key}" for key in document if key]
    found, skipped = walk(json.dumps(document).encode(), "", *paths, size=size)
    again: dict[str, list[Any]] = {key: [] for key in document}
    for path, value, _ in found[:-1]:
        if path.endswith("[]") and path[:-2] in again:
            again[path[:-2]].append(value)
        else:
            again[path] = value
    assert again == document
    assert skipped.counts == Counter()


@given(
    st.lists(st.tuples(st.integers(0, 200), st.sampled_from(b'{}[]",:x\\ 0\xff')), max_size=3),
    st.integers(0, 200),
    st.integers(1, 30),
)
def test_what_is_found_does_not_depend_on_the_chunks(changes: list[tuple[int, int]], kept: int, size: int) -> None:
    data = bytearray('{"data":[{"a":1},{"b":[1,"xé"]},12,-3.5e2,[]],"q":{},"e":[]}\n {"data":[]}  7'.encode())
    for position, value in changes:
        data[position % len(data)] = value
    text = bytes(data[:kept])
    whole, skipped = walk(text, "", "data", size=1000)
    parts, counted = walk(text, "", "data", size=size)
    assert (parts, counted.counts, counted.notes) == (whole, skipped.counts, skipped.notes)


def test_keys_are_seen_as_far_as_the_look_goes() -> None:
    head = b'{"data": [{"traceID": "a{", "n": [1, [2]], "spans": [{"x": {"deep": 1}}], "cut'
    assert key_paths(head) == {
        "data",
        "data[].traceID",
        "data[].n",
        "data[].spans",
        "data[].spans[].x",
        "data[].spans[].x.deep",
    }
    assert key_paths(b'[{"a": 1, "b": {"c": "d"}}, {"z": 1}]') == {"[].a", "[].b", "[].b.c", "[].z"}
    assert key_paths(b'{"a": 1}\n{"b": 2}') == {"a"}
    assert key_paths(b"{" * 1000 + b'"a":1') == frozenset()
    tracemalloc.start()
    key_paths(b"[" * 100_000)
    key_paths(b'{"abcdefgh":' * 10_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 * 2**20
