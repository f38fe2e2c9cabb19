"""The children of a JSON object or array: their positions are those of what `json` reads, in any text."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.core.json_spans import MOST_DEPTH, children

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def spans(body: bytes, rows: int = 100) -> tuple[int, list[list[int]]]:
    found = np.zeros((rows + 1, 4), np.int64)
    count = children(np.frombuffer(body, np.uint8), 0, found)
    return count, found[: max(0, min(count, rows)) + 1].tolist()


@given(value=st.lists(JSON, max_size=8) | st.dictionaries(st.text(), JSON, max_size=8), ascii_=st.booleans())
def test_the_parts_are_those_of_the_parser(value: Any, ascii_: bool) -> None:
    for spaces in (None, 1):
        body = json.dumps(value, ensure_ascii=ascii_, indent=spaces).encode("utf-8", "surrogatepass")
        count, rows = spans(b" " + body + b" x")
        assert count == len(value)
        assert rows[0][:2] == [1, 1 + len(body)]
        text = b" " + body
        parts = [text[begin:end].decode("utf-8", "surrogatepass") for _, _, begin, end in rows[1:]]
        expected = value.values() if isinstance(value, dict) else value
        assert [json.loads(part) for part in parts] == list(expected)
        keys = [text[begin:end].decode("utf-8", "surrogatepass") for begin, end, _, _ in rows[1:]]
        assert [json.loads(key) for key in keys] == list(value) if isinstance(value, dict) else not any(keys)


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"x", b'"a"', b"1", b"{", b"[", b"[1", b"[1,", b"[,]", b"[1 2]", b"[]"[:1], b'{"a"}', b'{"a":}',
        b'{"a":1,}', b'{"a" 1}', b'["a', b'["a\\"]', b'[[1]', b'{"a":{"b":1}', b'{"a":1"b":2}', b"[1\\", b'[1{}]',
        b"[" * (MOST_DEPTH + 2) + b"]" * (MOST_DEPTH + 2),
    ],
)  # fmt: skip
def test_what_is_no_object_or_array(body: bytes) -> None:
    assert spans(body)[0] == -1


@given(st.binary(max_size=40))
def test_any_bytes_give_an_answer_within_the_text(body: bytes) -> None:
    count, rows = spans(b"[" + body)
    assert count >= -1
    for _, _, begin, end in rows[1:]:
        assert 0 < begin < end <= len(body) + 1


def test_children_beyond_the_rows_are_counted() -> None:
    assert spans(b"[" + b"[]," * 999 + b"0]", 10)[0] == 1000
    assert spans(b"[" * MOST_DEPTH + b"]" * MOST_DEPTH)[0] == 1
