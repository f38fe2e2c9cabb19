"""Events of any form and any cut of their bytes: the client gets the same bytes and counts, and nothing waits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.relay.fake_model import Json
from support.relay.resuming import owned, pieces_of, seen_of

from otel_llm.relay.splice.reply import Reply
from otel_llm.relay.splice.upstream_response import CUT, NOT_JSON, TOO_LONG, UpstreamResponse

CHAT: Json = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "x"}]}
BOM = b"\xef\xbb\xbf"


def chunk(text: str | None, finish: str | None = None, **more: Any) -> Json:
    delta = {} if text is None else {"content": text}
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]}


def several(value: Json, ending: bytes = b"\n", space: bytes = b" ") -> bytes:
    """Return the data of an event on several lines."""
    return b"".join(b"data:" + space + line + ending for line in json.dumps(value, indent=1).encode().splitlines())


def one(value: Json, ending: bytes = b"\n", space: bytes = b" ") -> bytes:
    return b"data:" + space + json.dumps(value).encode() + ending


def passed(kind: str, data: list[bytes], body: Json = CHAT, max_line: int = 1 << 20) -> tuple[Reply, bytes, int]:
    """Return the reply, its client's bytes and the tokens of a body that is read in these parts."""
    reply = Reply(owned(body))
    upstream_response = UpstreamResponse(reply, kind, max_line=max_line)
    out, tokens = b"", 0
    for lines in [*map(upstream_response.feed, data), upstream_response.end()]:
        for line in lines:
            out += reply.take(upstream_response, line)
            tokens += sum(count for _, count, _, _ in line.tokens) + len(line.texts)
    return reply, out, tokens


forms = st.sampled_from([one, several])
endings = st.sampled_from([b"\n", b"\r\n", b"\r"])
others = st.sampled_from([b"", b": ping", b"event: m", b"id: 7", b"retry: 3", b"other"])


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Return a stream of three tokens and a finish: events that are whole by themselves need no blank line behind."""
    ending = draw(endings)
    out = draw(st.sampled_from([b"", BOM]))
    for value in (chunk("a"), chunk("b\n"), chunk("c{}"), chunk(None, "stop")):
        if other := draw(others):
            out += other + ending
        form = draw(forms)
        out += form(value, ending, draw(st.sampled_from([b"", b" "])))
        if form is several or draw(st.booleans()):
            out += ending * draw(st.integers(1, 2))
    return out + b"data: [DONE]" + ending * draw(st.integers(0, 2))


@settings(max_examples=examples(200))
@given(body=bodies(), splits=st.lists(st.integers(0, 5000), max_size=30))
def test_any_cut_of_any_events_gives_the_same_bytes_and_counts(body: bytes, splits: list[int]) -> None:
    for parts in ([body], pieces_of(body, splits)):
        reply, out, tokens = passed("openai", parts)
        assert (out, tokens, reply.finish, reply.done) == (body, 3, "stop", True)


@settings(max_examples=examples(100))
@given(body=bodies())
def test_byte_by_byte(body: bytes) -> None:
    _, out, tokens = passed("openai", [body[at : at + 1] for at in range(len(body))])
    assert (out, tokens) == (body, 3)


@settings(max_examples=examples(100))
@given(ending=endings, splits=st.lists(st.integers(0, 5000), max_size=30), form=forms)
def test_ids_are_removed_from_an_event_of_several_lines(ending: bytes, splits: list[int], form: Any) -> None:
    values = [chunk("a", token_ids=[5]), chunk(None, token_ids=[6]), chunk("b", "stop", token_ids=[7])]
    values[0]["prompt_token_ids"] = [1, 2]
    body = BOM + b"".join(b": c {" + ending + form(value, ending) + ending for value in values)
    body += b"data: [DONE]" + ending * 2
    reply, out, tokens = passed("vllm", pieces_of(body, splits))
    assert tokens == 3
    assert reply.ids == [5, 6, 7]
    assert b"token_ids" not in out
    seen = seen_of(out.removeprefix(BOM))
    assert (seen.text, seen.ids, seen.finishes, seen.dones) == ("ab", [], ["stop"], 1)


def test_a_reply_that_is_begun_again_has_its_first_head_in_an_event_of_several_lines() -> None:
    reply = Reply(owned(CHAT))
    first, second = UpstreamResponse(reply, "openai"), UpstreamResponse(reply, "openai")
    role = chunk(None)
    role["choices"][0]["delta"] = {"role": "assistant"}
    out = b"".join(reply.take(first, line) for line in first.feed(several(role) + b"\n"))
    again = {**chunk("a"), "id": "other"}
    body = b"event: m\n" + several(again).replace(b"\n", b"\n: within {\n", 1) + b"\n"
    out += b"".join(reply.take(second, line) for line in second.feed(body))
    assert b"event: m\n: within {\ndata: {" in out
    assert seen_of(out).heads == {("c", "chat.completion.chunk", 1, "m")}


def test_a_whole_event_waits_for_nothing_and_an_unfinished_one_for_its_blank_line() -> None:
    reply = Reply(owned(CHAT))
    upstream_response = UpstreamResponse(reply, "openai")
    for data in (b": ping\n", b"event: m\n", one(chunk("a")), b"data\n", b"data: ping\n", b"data: [1]\n", b"\n"):
        assert b"".join(reply.take(upstream_response, line) for line in upstream_response.feed(data)) == data
    body = several(chunk("b"))
    assert upstream_response.feed(body) == []
    (line,) = upstream_response.feed(b"\n")
    assert reply.take(upstream_response, line) == body + b"\n"
    assert line.text == "b"


@pytest.mark.parametrize("ending", [b"\r\n", b"\r"])
def test_half_an_ending_is_no_blank_line(ending: bytes) -> None:
    body = several(chunk("a", "stop"), ending) + ending
    for at in range(len(body)):
        _, out, tokens = passed("openai", [body[:at], body[at:]])
        assert (out, tokens) == (body, 1)


def test_lines_that_are_no_json_together_are_read_one_by_one() -> None:
    body = b"data: {oops\n" + one(chunk("a", "stop")) + b"\n"
    reply, out, tokens = passed("openai", [body])
    assert (out, tokens, reply.finish, reply.reason) == (body, 1, "stop", NOT_JSON)


def test_no_more_of_an_event_is_held_than_a_line_may_have() -> None:
    reply = Reply(owned(CHAT))
    upstream_response = UpstreamResponse(reply, "openai", max_line=600)
    sent = out = b""
    for data in [b"data: {\n", *[b"data: \n: " + b"x" * 90 + b"\n"] * 20]:
        sent += data
        out += b"".join(reply.take(upstream_response, line) for line in upstream_response.feed(data))
        assert len(sent) - len(out) <= 600
    assert reply.reason == TOO_LONG
    rest = one(chunk("lost")) + b"\n" + one(chunk("a", "stop")) + b"\n"
    lines = upstream_response.feed(rest)
    assert out + b"".join(reply.take(upstream_response, line) for line in lines) == sent + rest
    assert [choice.text for line in lines for choice in line.texts] == ["a"]


def test_a_line_over_the_limit_amid_an_event_lets_it_go() -> None:
    body = b"data: {\n" + b"data: " + b"x" * 900 + b"\n\n" + one(chunk("a", "stop"))
    for step in (1, 7, len(body)):
        parts = [body[at : at + step] for at in range(0, len(body), step)]
        reply, out, tokens = passed("openai", parts, max_line=600)
        assert (out, tokens, reply.finish) == (body, 1, "stop")


@pytest.mark.parametrize("rest", [b"data: {\n", b'data: {\ndata: "a":', b"data: {\r\n: c\r\n"])
def test_the_end_of_a_body_amid_an_event_is_a_cut(rest: bytes) -> None:
    upstream_response = UpstreamResponse(Reply(owned(CHAT)), "openai")
    upstream_response.feed(one(chunk("a")) + b"\n")
    assert upstream_response.feed(rest) == []
    assert {line.trouble for line in upstream_response.end()} == {CUT}


def test_an_event_of_several_lines_needs_no_blank_line_at_the_end_of_the_body() -> None:
    body = several(chunk("a", "stop"))
    reply, out, tokens = passed("openai", [body])
    assert (out, tokens, reply.finish) == (body, 1, "stop")
