"""An edit of a chunk's line removes the ids and leaves every other character as it came."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support.examples import examples

from otel_llm.relay.splice.chunk import parse
from otel_llm.relay.splice.edit import with_head, without_ids

_STRING = re.compile(r'"(?:\\.|[^"\\])*"')
IDS = ("prompt_token_ids", "token_ids")

Pairs = list[tuple[str, Any]]

WORDS = st.one_of(
    st.text(max_size=4).map(json.dumps),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4).map(
        lambda text: json.dumps(text, ensure_ascii=False)
    ),
)
MEMBERS = st.one_of(
    WORDS.map(lambda word: f'"text":{word}'),
    WORDS.map(lambda word: f"{word}: 1"),
    st.lists(st.integers(0, 200_000), max_size=4).map(lambda ids: f'"token_ids":{json.dumps(ids)}'),
    st.sampled_from(
        [
            '"token_ids":[5]', ' "token_ids" : [5,6] ', '"token_ids": [ 5 , 6 ]', '"token_ids":[\t5]', '"token_ids":[]',
            '"token_ids":null', '"prompt_token_ids":[1, 2]', '"prompt_token_ids":null', '"token_ids":"x"',
            '"token_ids":[-1]', '"token_ids":{"token_ids":[1]}', '"token\\u005fids":[7]', '"no_token_ids":[1]',
            '"inner":{"a":1,"token_ids":[8]}', '"inner":[{"token_ids":[8]}]', '"choices":[[{"a":1,"token_ids":[8]}]]',
            '"a":"token_ids"', '"a":["x", "token_ids"]', '"a":"x\\", \\"token_ids\\": [1]"', '"a":", "', '"a":"]}"',
            '"a":"\\\\"',
            '"a":"\\ud800"', '"a":"\\u00e9\\/"', '"index":0', '"x" :-0', '"x":1.50', '"x":1e5 ', '"x":-2.5E-07',
            '"x":1e400', '"x":12345678901234567890123', '"delta":{}', '"delta":{"role":"a","content":"b"}',
            '"usage":{"a":1}', '"id":"c"',
        ]
    ),
)  # fmt: skip
OBJECTS = st.lists(MEMBERS, max_size=4).map(lambda parts: "{" + ",".join(parts) + "}")
CHOICES = st.lists(st.one_of(OBJECTS, st.just("5")), max_size=2).map(lambda parts: f'"choices":[{", ".join(parts)}]')
CHUNKS = st.lists(st.one_of(MEMBERS, CHOICES), max_size=4).map(lambda parts: "{" + ",".join(parts) + "}")


def read(text: str) -> Any:
    """Return a JSON text with each object as pairs, each number and string as it is written."""
    quoted = _STRING.sub(lambda match: json.dumps(match[0]), text)
    return json.loads(quoted, object_pairs_hook=list[tuple[str, Any]], parse_int=str, parse_float=str)


def is_object(value: object) -> bool:
    """Tell an object from an array: pairs are tuples; an empty one has nothing to remove either way."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], tuple)


def in_choices(pairs: Pairs, edit: Callable[[Pairs], Pairs]) -> Pairs:
    """Return a chunk with each choice edited."""
    return [
        (key, [edit(one) if is_object(one) else one for one in value] if is_choices(key, value) else value)
        for key, value in pairs
    ]


def is_choices(key: str, value: object) -> bool:
    return key == '"choices"' and isinstance(value, list) and not is_object(value)


def no_ids(pairs: Pairs) -> Pairs:
    return [(key, value) for key, value in pairs if json.loads(key) not in IDS or value is None]


def no_role(choice: Pairs) -> Pairs:
    return [
        (key, [one for one in value if one[0] != '"role"'] if key == '"delta"' and is_object(value) else value)
        for key, value in choice
    ]


@settings(max_examples=examples(150))
@given(text=CHUNKS, ending=st.sampled_from(["\n", "\r\n", " \r", ""]), space=st.sampled_from(["", " "]))
@example('{"token_ids":[1],"token_ids":null}', "\n", " ")
@example('{"token\\u005fids":[1],"x":{"a":1,"token_ids":[2]}}', "\n", " ")
@example('{"choices":[{"token_ids":[1]}],"choices":[{"a":"token_ids","token_ids":[2]}]}', "\n", " ")
@example('{"choices":[{"token_ids":[3],"a":1}],"prompt_token_ids":[5]}', "\n", " ")
@example('{"choices":[{"a":1,"token_ids":[3]}],"token_ids":[4],"prompt_token_ids":[5]}', "\n", "")
def test_nothing_but_the_ids_is_removed(text: str, ending: str, space: str) -> None:
    """Compare each key, string and number, as it is written, with those of the line before."""
    line = f"data:{space}{text}{ending}".encode()
    chunk = parse(text.encode())
    assume(chunk is not None)
    assert chunk is not None
    edited = without_ids(line, chunk)
    assert edited.startswith(b"data:" + space.encode() + b"{")
    assert edited.endswith(ending.encode())
    pairs = read(text)
    expected = in_choices(no_ids(pairs), no_ids)
    assert read(edited.decode()[5:]) == expected
    if expected == pairs:
        assert edited == line


@settings(max_examples=examples(40))
@given(text=CHUNKS, role=st.booleans())
@example('{"id":"x","id":null,"created":1e400,"choices":[{"delta":{"role":"a"},"delta":{"a":1,"role":"b"}}]}', True)
def test_nothing_but_the_head_is_replaced(text: str, role: bool) -> None:
    """Give a line another `id` and `usage`, and compare the rest as it is written."""
    assume(parse(text.encode()) is not None)
    edited = with_head(f"data: {text}\n".encode(), {"id": "é\ud800", "usage": 7}, without_role=role)
    new = {'"id"': json.dumps("é\ud800"), '"usage"': "7"}
    expected = [(key, new[key] if key in new and value is not None else value) for key, value in read(text)]
    assert read(edited.decode()[5:]) == (in_choices(expected, no_role) if role else expected)
