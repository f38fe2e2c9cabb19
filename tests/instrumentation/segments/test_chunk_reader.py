"""What a chunk is read as: tokens, kinds, choices, exact counts; on the SDK's own chunk objects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._models import construct_type
from openai.types.chat import ChatCompletionChunk
from support.instrumentation.readings import in_ones
from support.sse_server import Json, chunk, usage, usage_of

from otel_llm.instrumentation.segments.chunks import FRAMING, ChunkReader, Reading

CONTENT, REASONING, TOOL = 0, 1, 2


def of(json: Json) -> Any:
    return construct_type(value=json, type_=ChatCompletionChunk)


def look(reader: ChunkReader, chunk: Any) -> Reading:
    """Return what the reading loop learns of a chunk."""
    return in_ones((reader.plain_size(chunk) if reader.plain else 0) or reader(chunk))


def read(reader: ChunkReader, *chunks: Json) -> list[Reading]:
    return [look(reader, of(json)) for json in chunks]


ROLE = chunk({"role": "assistant", "content": ""})


def test_framing_is_no_token() -> None:
    keep_alive = {**ROLE, "choices": []}
    assert read(ChunkReader(), ROLE, chunk({"content": ""}), keep_alive, usage(5)) == [FRAMING] * 4


@pytest.mark.parametrize(
    ("delta", "kind"),
    [
        ({"content": "a"}, CONTENT),
        ({"refusal": "no"}, CONTENT),
        ({"audio": {"transcript": "a"}}, CONTENT),
        ({"reasoning_content": "hm"}, REASONING),
        ({"reasoning": "hm"}, REASONING),
        ({"reasoning": "hm", "content": "a"}, CONTENT),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, TOOL),
        ({"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": ""}}]}, None),
        ({"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": "{}"}}]}, TOOL),
        ({"function_call": {"name": "f", "arguments": ""}}, None),
        ({"function_call": {"arguments": "{"}}, TOOL),
        ({"tool_calls": [{"index": 0, "type": "custom", "custom": {"input": "SELECT"}}]}, TOOL),
        ({"tool_calls": [{"index": 0, "type": "custom", "custom": {"name": "sql", "input": ""}}]}, None),
        ({"tool_calls": [{"index": 0, "type": "custom", "custom": {"input": ""}}]}, None),
        ({"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}, None),
        ({"content": None, "reasoning_content": None}, None),
    ],
)
def test_the_kind_of_text(delta: Json, kind: int | None) -> None:
    [marks] = read(ChunkReader(), chunk(delta))
    assert marks == (FRAMING if kind is None else ((0, kind, 1, False),))


def test_the_common_chunk_is_told_by_a_look_once_it_is_known_that_nobody_counts() -> None:
    reader = ChunkReader()
    plain, text = [], of(chunk({"content": "a"}))
    for json in (ROLE, chunk({"content": "a"})):
        plain.append(reader.plain)
        reader(of(json))
    assert (plain, reader.plain, reader.plain_size(text)) == ([False, False], True, 1)
    others = [ROLE, chunk({"content": "a"}, index=1), chunk({"content": "a"}, finish="stop"), chunk({}), usage(1)]
    assert [reader.plain_size(of(json)) for json in others] == [0] * 5
    assert [reader.plain_size(thing) for thing in (None, "text", 3, object())] == [0] * 4


def test_a_server_that_counts_is_read_to_the_end() -> None:
    reader = ChunkReader()
    read(reader, ROLE, *[chunk({"content": "a"}, token_ids=[1])] * 3)
    assert not reader.plain


def test_a_closing_chunk_says_so_with_and_without_text() -> None:
    assert read(ChunkReader(), chunk({"content": "a"}, finish="stop"), chunk(finish="length")) == [
        ((0, CONTENT, 1, True),),
        ((0, CONTENT, 0, True),),
    ]


def test_choices_are_told_apart_also_in_one_chunk() -> None:
    both = chunk({"content": "a"})
    both["choices"] += chunk({"content": "b"}, index=1)["choices"]
    assert read(ChunkReader(), both, chunk({"content": "c"}, index=1)) == [
        ((0, CONTENT, 1, False), (1, CONTENT, 1, False)),
        ((1, CONTENT, 1, False),),
    ]


def test_running_usage_counts_tokens_held_back_text_included() -> None:
    reader = ChunkReader()
    assert read(
        reader,
        chunk({"role": "assistant", "content": ""}, usage=usage_of(0)),
        chunk({"content": "a"}, usage=usage_of(1)),
        chunk({"content": ""}, usage=usage_of(2)),  # an incomplete UTF-8 sequence
        chunk({"content": "é and more"}, usage=usage_of(5)),
        chunk({}, finish="stop", usage=usage_of(6)),  # the end-of-text token
        usage(6),
    ) == [
        FRAMING,
        ((0, CONTENT, 1, False),),
        ((0, CONTENT, 1, False),),
        ((0, CONTENT, 3, False),),
        ((0, CONTENT, 1, True),),
        FRAMING,
    ]
    assert (reader.basis(0), reader.reported.input_tokens) == ("exact", 7)


def test_token_ids_count_tokens() -> None:
    reader = ChunkReader()
    assert read(
        reader,
        ROLE,
        chunk({"content": "ab"}, token_ids=[1, 2]),
        chunk({"content": ""}, token_ids=[3]),
        chunk({"content": "c"}, finish="stop", token_ids=[4]),
        usage(4),
    )[1:4] == [((0, CONTENT, 2, False),), ((0, CONTENT, 1, False),), ((0, CONTENT, 1, True),)]
    assert reader.basis(0) == "exact"


def test_a_chunk_held_back_while_thinking_is_of_that_kind() -> None:
    reader = ChunkReader()
    marks = read(reader, chunk({"reasoning": "h"}, token_ids=[1]), chunk({"content": ""}, token_ids=[2]))
    assert [mark[0][1] for mark in marks] == [REASONING, REASONING]


def test_the_tokens_that_a_server_counts_for_a_tool_s_name_are_the_tool_s() -> None:
    named = {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": ""}}]}
    assert read(ChunkReader(), chunk(named, token_ids=[1, 2, 3])) == [((0, TOOL, 3, False),)]


def test_running_usage_is_of_each_choice() -> None:
    reader = ChunkReader()
    marks = read(
        reader,
        chunk({"content": "a "}, usage=usage_of(2)),
        chunk({"content": "b"}, index=1, usage=usage_of(1)),
        chunk({"content": "c"}, usage=usage_of(3)),
        usage(4),
    )
    assert [mark[0][::2] for mark in marks[:3]] == [(0, 2), (1, 1), (0, 1)]
    assert (reader.basis(0), reader.basis(1)) == ("exact", "exact")


def test_a_total_on_the_closing_chunk_tells_no_times() -> None:
    reader = ChunkReader()
    marks = read(reader, ROLE, chunk({"content": "a"}), chunk({}, finish="stop", usage=usage_of(500)))
    assert marks[1:] == [((0, CONTENT, 1, False),), ((0, CONTENT, 0, True),)]
    assert reader.basis(0) == "chunk"


TOTAL = "gen_ai.usage.output_tokens"


def test_a_total_on_the_closing_chunk_alone_is_the_replys() -> None:
    # transformers serve sends it so, and no chunk of usage behind it.
    reader = ChunkReader()
    read(reader, ROLE, chunk({"content": "a"}), chunk({"content": "b"}), chunk({}, finish="length", usage=usage_of(3)))
    assert reader.reported.span_attributes()[TOTAL] == 3
    read(reader, usage(4))
    assert reader.reported.span_attributes()[TOTAL] == 4, "that of all choices counts more"


def test_totals_on_the_closing_chunks_of_several_choices_are_not_known_to_be_of_one() -> None:
    reader = ChunkReader()
    first, second = chunk({"content": "a"}), chunk({"content": "b"}, index=1)
    read(reader, first, second, chunk({}, finish="stop", usage=usage_of(3)))
    assert TOTAL not in reader.reported.span_attributes()


def test_tokens_that_nobody_saw_come_at_no_time() -> None:
    reader = ChunkReader()
    assert read(reader, ROLE, chunk({}, finish="stop", usage=usage_of(37))) == [FRAMING, ((0, CONTENT, 0, True),)]


def test_a_whole_reply_in_one_chunk_is_counted() -> None:
    reader = ChunkReader()
    assert read(reader, chunk({"content": "all of it, at once"}, finish="stop", usage=usage_of(12))) == [
        ((0, CONTENT, 12, True),)
    ]
    assert reader.basis(0) == "exact"


def test_hidden_tokens_in_the_final_usage_leave_a_chunk_count_what_it_is() -> None:
    reader = ChunkReader()
    read(reader, ROLE, chunk({"content": "a"}), chunk(finish="stop"), usage(900))
    assert reader.basis(0) == "chunk"


@pytest.mark.parametrize(
    "contradiction",
    [
        [chunk({"content": "a b"}, usage=usage_of(3)), chunk({"content": "b"}, usage=usage_of(2))],
        [chunk({"content": "a"}, usage=usage_of(0))],
        [chunk({"content": "a"}, token_ids=[1]), usage(9)],
        [chunk({"content": "a"}, token_ids=[1]), chunk({"content": "b"})],
    ],
    ids=["goes back", "text without a token", "another total", "counted in part"],
)
def test_counts_that_do_not_add_up_are_not_called_exact(contradiction: list[Json]) -> None:
    reader = ChunkReader()
    marks = read(reader, *contradiction)
    assert reader.basis(0) == "estimated"
    assert all(mark[0][2] >= 1 for mark in marks if mark)  # text is never lost for it


def test_the_reply_says_who_it_is() -> None:
    reader = ChunkReader()
    read(reader, ROLE, usage(5, prompt_tokens=11))
    assert reader.reported.span_attributes() == {
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": "served",
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.output_tokens": 5,
    }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "index",
                    "content",
                    "usage",
                    "completion_tokens",
                    "finish_reason",
                    "tool_calls",
                    "id",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(chunks=st.lists(st.dictionaries(st.sampled_from(["choices", "usage", "id", "model"]), json_values), max_size=4))
def test_whatever_a_server_sends_is_read_as_something(chunks: list[Json]) -> None:
    reader = ChunkReader()
    for json in chunks:
        assert all(choice >= 0 and count >= 0 for choice, _, count, _ in look(reader, of(json)))
    assert reader.basis(0) in {"exact", "chunk", "estimated"}


def test_what_is_no_chunk_is_no_token() -> None:
    assert [ChunkReader()(thing) for thing in (None, "text", 3, object())] == [FRAMING] * 4


@pytest.mark.parametrize(
    "claims",
    [
        [chunk({"content": "a"}, token_ids=list(range(10)))],
        [chunk({"content": "a"}, token_ids=list(range(100_000)))],
        [chunk({"content": ""}, token_ids=list(range(65))), chunk({"content": "a"})],
        [chunk({"content": "a"}, usage=usage_of(10**12))],
        [chunk({"content": "a"}, usage=usage_of(2**31 - 1))],
        [chunk({"content": "a"}, usage=usage_of(1)), chunk({"content": "b"}, usage=usage_of(10**6))],
        [chunk({"content": "a"}, usage=usage_of(1)), chunk({}, usage=usage_of(10**6)), chunk({"content": "b"})],
    ],
)
def test_a_claim_of_more_tokens_than_a_text_has_bytes_is_not_used(claims: list[Json]) -> None:
    reader = ChunkReader()
    counts = [mark[2] for json in claims for mark in reader(of(json))]
    assert max(counts) <= 64
    assert sum(count for count in counts if count < 0) == -1
    assert reader.basis(0) in {"chunk", "estimated"}


def test_special_tokens_beside_a_text_are_counted() -> None:
    reader = ChunkReader()
    assert read(reader, chunk({"content": "a"}, token_ids=[1, 2, 3])) == [((0, CONTENT, 3, False),)]
    assert reader.basis(0) == "exact"


def test_an_end_of_turn_is_a_token_without_text() -> None:
    reader = ChunkReader()
    assert read(reader, chunk({"content": "a"}, token_ids=[1, 2], finish="stop")) == [((0, CONTENT, 2, True),)]
    assert reader.basis(0) == "exact"


def test_raw_thinking_is_reasoning_up_to_its_tag() -> None:
    reader = ChunkReader()
    texts = ["<think>", "hm", "</think>Yes", " it", " is"]
    readings = [reader(of(chunk({"content": text}))) for text in texts]
    assert [[(mark[1], mark[2]) for mark in reading] for reading in readings] == [
        [(REASONING, -7)],
        [(REASONING, -2)],
        [(REASONING, -8), (CONTENT, -3)],
        [(CONTENT, -3)],
        [(CONTENT, -3)],
    ]
    assert reader.plain


def test_text_is_not_plain_while_the_model_thinks() -> None:
    reader = ChunkReader()
    for text in ("<think>", "hm"):
        reader(of(chunk({"content": text})))
        assert not reader.plain


def test_the_tokens_of_raw_thinking_are_those_that_the_server_counts() -> None:
    reader = ChunkReader()
    said = [("<think>", 1), ("a b", 2), ("</think>Yes", 3), (" it", 1)]
    readings = [reader(of(chunk({"content": text}, token_ids=[1] * count))) for text, count in said]
    assert [[(mark[1], mark[2]) for mark in reading] for reading in readings] == [
        [(REASONING, 1)],
        [(REASONING, 2)],
        [(REASONING, 2), (CONTENT, 1)],
        [(CONTENT, 1)],
    ]
    assert reader.basis(0) == "exact"


@pytest.mark.parametrize("logged", [1, 3])
def test_the_tokens_of_log_probabilities_are_counted(logged: int) -> None:
    reader = ChunkReader()
    said = chunk({"content": "abc"})
    said["choices"][0]["logprobs"] = {"content": [{"token": "a", "logprob": -1.0, "top_logprobs": []}] * logged}
    [mark] = reader(of(said))
    assert (mark[2], reader.basis(0), reader.plain) == (logged, "exact", False)


def test_more_log_probabilities_than_bytes_are_not_believed() -> None:
    reader = ChunkReader()
    said = chunk({"content": "abc"})
    said["choices"][0]["logprobs"] = {"content": [{"token": "a", "logprob": -1.0, "top_logprobs": []}] * 99}
    [mark] = reader(of(said))
    assert (mark[2], reader.basis(0)) == (-3, "chunk")
