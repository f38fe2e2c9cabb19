"""The ids of a long prompt are cut out of their chunk, and everything else of it is read as if they had been short."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.relay.splice.chunk import parse
from otel_llm.relay.splice.large_body import LARGE_BYTES, PromptIds, cut_prompt_ids

MANY = list(range(100_000, 100_000 + LARGE_BYTES // 7))
MEMBERS: dict[str, Any] = {
    "id": "c",
    "choices": [{"index": 0, "text": 'a "prompt_token_ids": [1]', "token_ids": [5], "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3},
}
SEPARATORS = [(",", ":"), (", ", ": "), (" ,\n ", " : ")]


@pytest.mark.parametrize("separators", SEPARATORS, ids=str)
@given(place=st.integers(0, 3), inside=st.booleans())
def test_a_large_chunk_is_read_as_a_small_one(separators: tuple[str, str], place: int, inside: bool) -> None:
    def chunk(ids: list[int]) -> bytes:
        value = json.loads(json.dumps(MEMBERS))
        holder = value["choices"][0] if inside else value
        pairs = list(holder.items())
        holder.clear()
        holder.update([*pairs[:place], ("prompt_token_ids", ids), *pairs[place:]])
        return json.dumps(value, separators=separators).encode()

    large, small = parse(chunk(MANY)), parse(chunk([7]))
    assert large is not None
    assert small is not None
    assert large.prompt_ids is not None
    assert json.loads(b"[" + large.prompt_ids.text + b"]") == MANY
    assert (len(large.prompt_ids), large.prompt_ids.last(3)) == (len(MANY), MANY[-3:])
    assert large.rest is not None
    assert json.loads(large.rest) == MEMBERS
    assert [(one.text, one.ids, one.finish) for one in large.choices] == [
        (one.text, one.ids, one.finish) for one in small.choices
    ]
    assert (large.usage, large.odd, large.error) == (small.usage, None, None)


@pytest.mark.parametrize(
    "text",
    [
        '{"prompt_token_ids":null}', '{"prompt_token_ids":[]}', '{"prompt_token_ids":"x"}', '{"prompt_token_ids":[-1]}',
        '{"prompt_token_ids":[1.5]}', '{"prompt_token_ids":[[1]]}',
        '{"prompt_token_ids":[1', '{"prompt_token_ids":[,]}', '{"prompt_token_ids":[1 2]}',
        '{"x\\"prompt_token_ids":[1]}', '{"a":"\\"prompt_token_ids\\":[1]"}',
        "{}", "",
    ],
)  # fmt: skip
def test_what_is_no_list_of_ids_stays(text: str) -> None:
    assert cut_prompt_ids(text.encode()) == (text.encode(), None)


def test_the_last_ids_of_a_list_and_of_a_text_are_the_same() -> None:
    for count in (0, 1, 3):
        ids = list(range(count))
        text = b", ".join(b"%d" % one for one in ids)
        assert PromptIds(ids).last(2) == PromptIds(text=text, count=count).last(2) == ids[-2:]
