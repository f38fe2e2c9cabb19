"""Whatever a backend sends is read without an error and passed on: damaged bytes, odd and deep values, long lines."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.relay.fake_model import FakeModel, Json
from support.relay.resuming import owned, pieces_of

from otel_llm.relay.splice.reply import Reply
from otel_llm.relay.splice.resume import Carry, detokenized, left, resume_body
from otel_llm.relay.splice.upstream_response import LineReader, UpstreamResponse

CHAT: Json = {"model": "fake", "stream": True, "temperature": 0, "messages": [{"role": "user", "content": "x"}]}
PROMPT: Json = {"model": "fake", "stream": True, "temperature": 0, "prompt": [1, 2, 3]}
OPTIONS: Json = {"max_tokens": 6, "ignore_eos": True, "stream_options": {"include_usage": True}}
STREAMS = [
    b"".join(FakeModel(stream_interval=2).chunks({**body, **OPTIONS, "return_token_ids": True}))
    for body in (CHAT, PROMPT)
]

BITS = st.one_of(
    st.binary(max_size=6),
    st.sampled_from(
        [
            b"\n", b"\r", b"\r\n", b"data: ", b"data: [DONE]\n\n", b"null", b"[]", b"{}", b"-1", b"true", b"1e999",
            b'"', b"\\", b"\\ud83d", b'"token_ids":[1],', b'"choices":[{},5],', b'"error":{},',
            b'"finish_reason":"abort",', b'"finish_reason":[1],', b'"index":1,', b'"delta":{"role":5},',
            b'"delta":null,', b'"usage":{"prompt_tokens":"x"},', b'"prompt_token_ids":[1],', b"x" * 700,
        ]
    ),
)  # fmt: skip
DAMAGE = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 12), BITS), max_size=6)


def damaged(data: bytes, damage: list[tuple[int, int, bytes]]) -> bytes:
    """Return a stream with bytes removed and others put in their place."""
    for at, removed, put in damage:
        place = at % (len(data) + 1)
        data = data[:place] + put + data[place + removed :]
    return data


def written(reply: Reply, upstream_response: UpstreamResponse, data: bytes, splits: list[int]) -> bytes:
    """Take every line of a stream, breaks and what follows them included."""
    out = b""
    for part in pieces_of(data, splits):
        for line in upstream_response.feed(part):
            out += reply.take(upstream_response, line)
    for line in upstream_response.end():
        out += reply.take(upstream_response, line)
    return out


@settings(max_examples=examples(80))
@given(
    data=st.sampled_from(STREAMS), damage=DAMAGE, splits=st.lists(st.integers(0, 5000), max_size=6), ids=st.booleans()
)
@example(b"data: [DONE]\n\ndata: [DONE]\n\n", [], [], True)
def test_a_damaged_stream_passes_as_it_came(
    data: bytes, damage: list[tuple[int, int, bytes]], splits: list[int], ids: bool
) -> None:
    """Compare every byte if nothing is removed, and every line without ids elsewhere.

    Only what is torn behind the finish is not passed on: the relay ends such a reply itself.
    """
    data = damaged(data, damage)
    straight = Reply(owned({**CHAT, "return_token_ids": ids}))
    out = written(straight, UpstreamResponse(straight, "vllm" if ids else "openai", max_line=600), data, splits)
    assert data.startswith(out)
    assert len(out) >= len(untorn(data) if straight.over else data)
    stripped = Reply(owned(CHAT))
    out = written(stripped, UpstreamResponse(stripped, "vllm", max_line=600), data, splits)
    found = iter(out.splitlines())
    kept = untorn(data) if stripped.over else data
    assert all(line in found for line in kept.splitlines() if line and b"ids" not in line)


def untorn(data: bytes) -> bytes:
    """Return a stream up to its last blank line."""
    ends = [found.end() for found in re.finditer(rb"(?:\r\n|\n|\r(?!\n)){2}", data)]
    return data[: ends[-1]] if ends else b""


@settings(max_examples=examples(80))
@given(
    first=st.sampled_from(STREAMS),
    cut=st.integers(0, 3000),
    second=st.sampled_from(STREAMS),
    damage=DAMAGE,
    splits=st.lists(st.integers(0, 5000), max_size=6),
    ids=st.booleans(),
    kind=st.sampled_from(["vllm", "sglang"]),
    text=st.sampled_from([None, "", "x"]),
)
def test_a_damaged_stream_behind_a_seam_is_read(
    first: bytes,
    cut: int,
    second: bytes,
    damage: list[tuple[int, int, bytes]],
    splits: list[int],
    ids: bool,
    kind: str,
    text: str | None,
) -> None:
    """Resume, or begin again, with whatever comes; what is written are whole lines, those of chunks JSON."""
    reply = Reply(owned({**CHAT, "return_token_ids": ids}))
    written(reply, UpstreamResponse(reply, kind), damaged(first, damage[:2])[:cut], splits)
    carry = Carry(reply)
    while carry.missing is not None:
        carry.answer(text)
    count = carry.count if reply.begun else None
    if count is not None:
        json.loads(resume_body(reply, count, left(reply, count, 4096) or 1))
    out = written(reply, UpstreamResponse(reply, kind, count, max_line=600), damaged(second, damage), splits)
    assert isinstance(out, bytes)
    json.loads(reply.error_event("m", "upstream_error", None).strip()[6:])


def deep(depth: int) -> Iterator[bytes]:
    value = b"[" * depth + b"]" * depth
    start = b'data: {"choices":[{"index":0,"text":"y","token_ids":[9],"token_ids":[9],'
    yield start + b'"stop_reason":' + value + b',"finish_reason":"stop"}]}\n\n'
    yield start + b'"finish_reason":' + value + b"}]}\n\n"
    yield b'data: {"id":' + value + b',"choices":[{"index":0,"delta":{"role":"a","content":"x"},"token_ids":[9]}]}\n\n'


@pytest.mark.parametrize("carried", [None, 0])
def test_values_near_the_depth_that_is_read(carried: int | None) -> None:
    """Send values of every depth about the limit of the parser."""
    limit = sys.getrecursionlimit()
    for depth in range(limit - 50, limit):
        for data in deep(depth):
            reply = Reply(owned(CHAT))
            start = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"a"}}],"prompt_token_ids":[1]}\n\n'
            written(reply, UpstreamResponse(reply, "vllm"), start, [])
            assert written(reply, UpstreamResponse(reply, "vllm", carried), data, [])


@settings(max_examples=examples(60))
@given(
    data=st.lists(st.sampled_from([b"a", b"bcd", b"\n", b"\r", b"\r\n", b"x" * 9]), max_size=20).map(b"".join),
    splits=st.lists(st.integers(0, 100), max_size=12),
    limit=st.integers(1, 12),
)
def test_lines_are_the_body(data: bytes, splits: list[int], limit: int) -> None:
    """Cut a body into readings anywhere: joined, the lines are the body; those over the limit are reported."""
    reader = LineReader(limit)
    lines = [line for part in pieces_of(data, splits) for line in reader.feed(part)] + reader.end()
    assert b"".join(line for line, _ in lines) == data
    joined: list[bytes] = []
    reported: list[bool] = []
    for line, whole in lines:
        ended = not joined or joined[-1].endswith((b"\n", b"\r"))
        if ended and not (line == b"\n" and joined and joined[-1].endswith(b"\r")):
            joined.append(b"")
            reported.append(whole)
        joined[-1] += line
    assert joined == data.splitlines(keepends=True)
    for line, whole in zip(joined, reported, strict=True):
        assert whole or len(line) > limit
        assert not whole or len(line.removesuffix(b"\n")) <= limit


def test_a_line_behind_one_over_the_limit_is_whole_again() -> None:
    reader = LineReader(4)
    parts = [line for part in (b"xxxxx", b"xx", b"x\nab\n", b"cd") for line in reader.feed(part)]
    assert parts == [(b"xxxxx", False), (b"xx", False), (b"x\n", False), (b"ab\n", True)]
    assert reader.end() == [(b"cd", True)]


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b"{}", b'{"prompt":5}', b"[" * 9000, b"\xff", b'{"text":null}'])
def test_an_answer_of_detokenize_without_a_text(body: bytes) -> None:
    assert detokenized(body) is None


def test_an_answer_of_detokenize() -> None:
    assert detokenized(b'{"prompt":"a"}') == "a"
    assert detokenized(b'{"text":"\\u00e9"}') == "é"
