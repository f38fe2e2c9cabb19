"""What a client is sent for each kind of line: what passes as it came, what is removed, what is a break."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.relay.fake_model import Json
from support.relay.resuming import owned

from otel_llm.relay.splice.line import Line
from otel_llm.relay.splice.reply import Reply
from otel_llm.relay.splice.upstream_response import CUT, DIFFERS, MAX_LINE, NOT_JSON, TOO_LONG, UpstreamResponse

CHAT: Json = {"model": "fake", "stream": True, "temperature": 0, "messages": [{"role": "user", "content": "x"}]}
COMPLETION: Json = {"model": "fake", "stream": True, "temperature": 0, "prompt": "x"}
HEAD: Json = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "fake"}
DONE = b"data: [DONE]\n\n"


def event_line(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def chunk(ids: list[int] | None, content: str | None, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    """Return a chunk of a chat; `content` None for an empty delta."""
    choice: Json = {"index": index, "delta": {} if content is None else {"content": content}, "finish_reason": finish}
    if ids is not None:
        choice["token_ids"] = ids
    return event_line({**HEAD, "choices": [choice], **more})


def role(index: int = 0, **more: Any) -> bytes:
    delta = {"role": "assistant", "content": ""}
    choice = {"index": index, "delta": delta, "finish_reason": None}
    return event_line({**HEAD, "choices": [choice], "prompt_token_ids": [1, 2, 3], **more})


def reply_to(body: Json, **more: Any) -> Reply:
    return Reply(owned({**body, **more}))


def lines(upstream_response: UpstreamResponse, *data: bytes) -> list[Line]:
    return [line for part in data for line in upstream_response.feed(part)]


def taken(reply: Reply, upstream_response: UpstreamResponse, *data: bytes) -> bytes:
    """Take lines as the session does, up to the first that is a break; return what is written."""
    out = b""
    for line in lines(upstream_response, *data):
        if reply.finish is None and (line.error or line.aborted or line.done_without_finish or line.trouble == DIFFERS):
            break
        out += reply.take(upstream_response, line)
    return out


# What passes as it came.


@pytest.mark.parametrize("kind", ["openai", "vllm"])
@pytest.mark.parametrize(
    "data",
    [
        b": a comment\n", b"\n", b"\n\n\n", b"event: message\nid: 5\nretry: 3\n", b"data\n", b"data:\n\n", b"data:  \n",
        b'data:{"choices":[]}\n\n', b'data: {"choices":null}\n\n', b'data: {"choices":[{"index":0,"delta":{}}]}\n\n',
        b'data:\t{"choices": [ {"index" : 0, "delta":{"content":"\\u00e9\\ud83d\\ude00"},"x":1.50e+1 } ] }  \r\n\r\n',
        b"\xef\xbb\xbfdata: x\n\n", b": \xff\xfe\n\n", b"data: [1]\n\n", b"data: 5\n\n", b"\r\r", b"\r\n\r\n",
    ],
)  # fmt: skip
def test_a_line_without_ids_passes_as_it_came(kind: str, data: bytes) -> None:
    """Take lines of every form, byte by byte and at once."""
    for step in (1, len(data)):
        reply = reply_to(CHAT)
        upstream_response = UpstreamResponse(reply, kind)
        parts = [data[at : at + step] for at in range(0, len(data), step)]
        assert taken(reply, upstream_response, role(), *parts).endswith(data)
        assert upstream_response.end() == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"data: {\n\n", NOT_JSON), (b'data: {"a":NaN}\n\n', NOT_JSON), (b"data: [1]\n\n", NOT_JSON),
        (b'data: "\xff"\n\n', NOT_JSON), (b"data: " + b"[" * 5000 + b"\n\n", NOT_JSON),
        (b'data: {"a":' + b"1" * 5000 + b"}\n\n", NOT_JSON), (b": " + b"x" * 6000 + b"\n\n", TOO_LONG),
        (b"data: " + b"x" * 6000 + b"\n\n", TOO_LONG),
        (b'data: {"choices":5}\n\n', "choices of a wrong type"),
        (b'data: {"choices":[5]}\n\n', "a choice of a wrong type"),
        (b'data: {"choices":[{"index":-1}]}\n\n', "an index that is none"),
        (b'data: {"choices":[{"index":1,"delta":{"content":"x"},"token_ids":[1]}]}\n\n', "several choices"),
        (b'data: {"choices":[{"token_ids":[true]}]}\n\n', "ids of a wrong type"),
        (b'data: {"choices":[{"token_ids":[-1]}]}\n\n', "ids of a wrong type"),
        (b'data: {"choices":[{"token_ids":"1"}]}\n\n', "ids of a wrong type"),
        (b'data: {"choices":[],"prompt_token_ids":7}\n\n', "prompt ids of a wrong type"),
        (b'data: {"choices":[{"text":7}]}\n\n', "text of a wrong type"),
        (b'data: {"choices":[{"delta":"x"}]}\n\n', "text of a wrong type"),
        (b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', "a chunk without ids"),
        (b'data: {"choices":[{"delta":{"content":"x"},"token_ids":null}]}\n\n', "a chunk without ids"),
        (b'data: {"choices":[{"delta":{"content":"x"},"token_ids":[]}]}\n\n', "a chunk without ids"),
        (b'data: {"choices":[{"delta":{"reasoning":"x"}}]}\n\n', "a chunk without ids"),
        (b'data: {"choices":[{"delta":{"reasoning":7},"token_ids":[5]}]}\n\n', "a reasoning delta"),
        (b'data: {"choices":[{"delta":{"reasoning_content":["y"]},"token_ids":[5]}]}\n\n', "a reasoning delta"),
        (b'data: {"choices":[{"delta":{"tool_calls":[{}]},"token_ids":[5]}]}\n\n', "a tool delta"),
        (b'data: {"choices":[{"delta":{"content":[{"type":"text"}]},"token_ids":[5]}]}\n\n', "a content delta"),
        (b'data: {"choices":[{"finish_reason":5,"token_ids":[5]}]}\n\n', "a finish reason of a wrong type"),
    ],
)  # fmt: skip
def test_a_line_that_ends_eligibility(data: bytes, reason: str) -> None:
    """Take a line after which the stream cannot be resumed; it is passed on all the same."""
    reply = reply_to(CHAT, return_token_ids=True)
    upstream_response = UpstreamResponse(reply, "vllm", max_line=6000)
    start = taken(reply, upstream_response, role(), chunk([5], "a"))
    assert reply.reason is None
    assert taken(reply, upstream_response, data) == data
    assert reply.reason == reason
    assert reply.ids == []
    assert taken(reply, upstream_response, chunk([6], "b")) == chunk([6], "b")
    assert reply.reason == reason
    assert start == role() + chunk([5], "a")


def test_the_ids_of_a_long_prompt_stay_here() -> None:
    """The line with them is over the limit of lines because of what the relay itself asked for."""
    prompt = list(range(100_000, 300_000))
    reply = reply_to(CHAT)
    upstream_response = UpstreamResponse(reply, "vllm", most_prompt_tokens=len(prompt))
    first = role(prompt_token_ids=prompt)
    assert len(first) > MAX_LINE
    parts = [first[at : at + 65536] for at in range(0, len(first), 65536)]
    written = taken(reply, upstream_response, *parts, chunk([5], "a"))
    assert b"token_ids" not in written
    assert len(written) < 1000
    assert reply.reason is None
    assert reply.prompt_ids is not None
    assert (len(reply.prompt_ids), reply.prompt_ids.last(2)) == (200_000, [299_998, 299_999])
    assert json.loads(b"[" + reply.prompt_ids.text + b"]") == prompt
    long = event_line({"other": "x" * MAX_LINE})
    assert taken(reply, upstream_response, long) == long
    assert reply.reason == TOO_LONG  # the limit of other lines stays


def test_ids_without_those_of_the_prompt_are_no_base() -> None:
    reply = reply_to(CHAT)
    taken(reply, UpstreamResponse(reply, "vllm"), chunk([5], "a"))
    assert reply.reason == "no prompt ids"


# What is removed.


def test_a_chunk_that_exists_for_its_ids_is_dropped_with_its_blank_line() -> None:
    reply = reply_to(CHAT)
    upstream_response = UpstreamResponse(reply, "vllm")
    parts = [role(), chunk([4], None), b": ping\n\n", chunk([5], "a"), chunk([6], None, "stop"), DONE]
    written = taken(reply, upstream_response, *parts)
    assert written == (
        role().replace(b',"prompt_token_ids":[1,2,3]', b"")
        + b": ping\n\n"
        + chunk(None, "a")
        + chunk(None, None, "stop")
        + DONE
    )
    assert reply.ids == [4, 5, 6]
    reply = reply_to(CHAT)
    assert taken(reply, UpstreamResponse(reply, "vllm"), *(bytes([one]) for one in b"".join(parts))) == written


@pytest.mark.parametrize(
    "kept",
    [
        chunk(None, None), chunk([], None), chunk([5], ""), chunk([5], None, "stop"),
        event_line({**HEAD, "choices": []}), event_line({**HEAD, "choices": [], "usage": {"prompt_tokens": 3}}),
        event_line({**HEAD, "choices": [{"index": 0, "delta": {}, "logprobs": {"content": []}, "token_ids": [5]}]}),
    ],
)  # fmt: skip
def test_other_chunks_are_kept(kept: bytes) -> None:
    """Take chunks that would come without ids, too."""
    reply = reply_to(CHAT)
    written = taken(reply, UpstreamResponse(reply, "vllm"), kept)
    assert written == kept.replace(b',"token_ids":[5]', b"").replace(b',"token_ids":[]', b"")


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_ids_inside_the_choice_and_in_the_chunk(kind: str) -> None:
    choice = {"index": 0, "text": "a", "finish_reason": None}
    inside = event_line({"id": "c", "choices": [{**choice, "prompt_token_ids": [1, 2], "token_ids": [5]}]})
    beside = event_line({"id": "c", "prompt_token_ids": [1, 2], "choices": [choice], "token_ids": [5]})
    for data in (inside, beside):
        reply = reply_to(COMPLETION)
        assert taken(reply, UpstreamResponse(reply, kind), data) == event_line({"id": "c", "choices": [choice]})
        assert reply.prompt_ids is not None
        assert (reply.prompt_ids.text, reply.ids, reply.reason) == (b"1,2", [5], None)
        reply = reply_to(COMPLETION, return_token_ids=True)
        assert taken(reply, UpstreamResponse(reply, kind), data) == data


def test_a_client_of_an_openai_backend_keeps_what_that_sends() -> None:
    reply = reply_to(CHAT)
    parts = [role(), chunk([4], None), chunk([5], "a")]
    assert taken(reply, UpstreamResponse(reply, "openai"), *parts) == b"".join(parts)


# What is a break.


def test_breaks_are_seen_before_they_are_taken() -> None:
    reply = reply_to(CHAT)
    upstream_response = UpstreamResponse(reply, "vllm")
    error = event_line({"error": {"message": "m"}})
    (line,) = lines(upstream_response, error)
    assert line.error
    (line,) = lines(upstream_response, chunk([], "", "abort"))
    assert line.aborted
    (line,) = lines(UpstreamResponse(reply, "vllm"), DONE)
    assert line.done_without_finish
    (line,) = lines(UpstreamResponse(reply, "vllm"), event_line({"object": "error", "message": "m"}))
    assert line.error


def test_a_done_behind_the_finish_is_none() -> None:
    reply = reply_to(CHAT)
    upstream_response = UpstreamResponse(reply, "vllm")
    *_, line = lines(upstream_response, role(), chunk([5], "a"), chunk([6], "", "length"), DONE)
    assert line.done
    assert not line.done_without_finish


def test_a_reply_of_two_choices_is_finished_with_both() -> None:
    """Cut a reply with one finished choice: that is not complete."""
    start = [role(0), role(1), chunk([5], "a", index=0), chunk([5], "a", index=1), chunk([6], "", "stop", index=1)]
    reply = reply_to(CHAT, n=2)
    upstream_response = UpstreamResponse(reply, "vllm")
    taken(reply, upstream_response, *start)
    assert reply.begun
    assert reply.finish is None
    assert lines(upstream_response, DONE)[0].done_without_finish
    assert taken(reply, upstream_response, chunk([7], "", "length", index=0)) == chunk(None, "", "length", index=0)
    assert reply.finish == "length"


def test_a_reply_of_fewer_choices_than_asked_for_is_finished_with_done() -> None:
    """Read a backend that takes no notice of `n`."""
    reply = reply_to(CHAT, n=2)
    upstream_response = UpstreamResponse(reply, "openai")
    taken(reply, upstream_response, role(0), chunk(None, "a"), chunk(None, "", "stop"))
    assert reply.finish is None
    assert taken(reply, upstream_response, DONE) == DONE
    assert reply.finish == "stop"


@pytest.mark.parametrize(
    ("rest", "trouble"),
    [
        (b"data: {", CUT), (b"d", CUT), (b": comm", CUT), (b"data:", CUT), (b"data: [DONE]", None),
        (chunk([6], "b").rstrip(), None), (b"\r", None), (b"", None),
    ],
)  # fmt: skip
def test_the_end_of_a_body_in_the_midst_of_a_line(rest: bytes, trouble: str | None) -> None:
    reply = reply_to(CHAT)
    upstream_response = UpstreamResponse(reply, "vllm")
    lines(upstream_response, role(), chunk([5], "a"), rest)
    assert [line.trouble for line in upstream_response.end()] == ([trouble] if rest not in (b"", b"\r") else [])


# What a second backend continues, or begins again.


def test_a_reply_that_is_begun_again_has_the_head_and_the_role_of_the_first() -> None:
    reply = reply_to(CHAT)
    first = taken(reply, UpstreamResponse(reply, "vllm"), b": 1\n\n", role(system_fingerprint="f1"))
    assert not reply.begun
    other: Json = {"id": "chatcmpl-2", "created": 8, "system_fingerprint": "f2"}
    delta = {"role": "assistant", "content": "a"}
    choice = {"index": 0, "delta": delta, "finish_reason": None, "token_ids": [5]}
    both = event_line({**HEAD, "id": "chatcmpl-2", "choices": [choice], "prompt_token_ids": [1, 2, 3], **other})
    for start in ([role(**other), chunk([5], "a", **other)], [both]):
        again = reply_to(CHAT)
        taken(again, UpstreamResponse(again, "vllm"), b": 1\n\n", role(system_fingerprint="f1"))
        written = taken(again, UpstreamResponse(again, "vllm"), *start)
        assert written == chunk(None, "a", system_fingerprint="f1")
        assert again.ids == [5]
    assert first.endswith(b'"system_fingerprint":"f1"}\n\n')


def test_a_reply_that_is_begun_again_needs_its_prompt_ids_again() -> None:
    reply = reply_to(CHAT)
    taken(reply, UpstreamResponse(reply, "vllm"), role())
    taken(reply, UpstreamResponse(reply, "vllm"), chunk([5], "a"))
    assert reply.reason == "no prompt ids"


def test_each_choice_of_a_reply_that_is_begun_again_gets_its_role_once() -> None:
    reply = reply_to(CHAT, n=2)
    first = taken(reply, UpstreamResponse(reply, "vllm"), role(0))
    second = taken(reply, UpstreamResponse(reply, "vllm"), role(0), role(1), chunk([5], "a", index=1))
    gone = b',"prompt_token_ids":[1,2,3]'
    assert first + second == role(0).replace(gone, b"") + role(1).replace(gone, b"") + chunk(None, "a", index=1)


def completion(ids: list[int], text: str, finish: str | None = None, **more: Any) -> bytes:
    choice: Json = {"index": 0, "text": text, "finish_reason": finish, "token_ids": ids, **more}
    return event_line({"id": "cmpl-2", "object": "text_completion", "created": 9, "model": "fake", "choices": [choice]})


def test_ids_that_come_again_are_neither_sent_nor_counted_twice() -> None:
    """Resume behind one of three ids, as the last two have no whole text."""
    reply = reply_to(CHAT, return_token_ids=True)
    taken(reply, UpstreamResponse(reply, "vllm"), role(), chunk([5], "a"), chunk([6, 7], ""))
    upstream_response = UpstreamResponse(reply, "vllm", 1)
    found = lines(upstream_response, completion([6], ""), completion([7, 8], "é"), completion([9], "", "stop"), DONE)
    assert [count for line in found for _, count, _, _ in line.tokens] == [1, 1]
    written = b"".join(reply.take(upstream_response, line) for line in found)
    events = [json.loads(part[6:]) for part in written.split(b"\n\n")[:-2]]
    assert [event["choices"][0]["token_ids"] for event in events] == [[8], [9]]
    assert reply.ids == [5, 6, 7, 8, 9]
    assert reply.counted(0) == 5


def test_ids_that_are_drawn_otherwise_are_seen() -> None:
    reply = reply_to(CHAT, return_token_ids=True)
    taken(reply, UpstreamResponse(reply, "vllm"), role(), chunk([5], "a"), chunk([6, 7], ""))
    found = lines(UpstreamResponse(reply, "vllm", 1), completion([6], ""), completion([8, 9], "x"))
    assert [line.trouble == DIFFERS for line in found] == [False, True]


def test_one_finish_one_usage_and_one_done_behind_a_seam() -> None:
    reply = reply_to(CHAT, stream_options={"include_usage": True})
    taken(reply, UpstreamResponse(reply, "vllm"), role(), chunk([5], "a"))
    usage = {
        "prompt_tokens": 4,
        "completion_tokens": 2,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    last = event_line({"id": "cmpl-2", "choices": [], "usage": usage})
    finish = completion([7], "", "stop")
    written = taken(
        reply,
        UpstreamResponse(reply, "vllm", 1),
        completion([6], "b"),
        finish,
        finish,
        completion([8], ""),
        last,
        DONE,
        DONE,
    )
    *events, rest = written.split(b"\n\n")
    assert [event for event in events if event == b"data: [DONE]"] == [b"data: [DONE]"]
    found = [json.loads(event[6:]) for event in events[:-1]]
    assert rest == b""
    choices = [event["choices"][0] for event in found if event["choices"]]
    assert [(choice["index"], choice["finish_reason"]) for choice in choices] == [(0, None), (0, "stop")]
    assert {tuple(event[key] for key in HEAD) for event in found} == {tuple(HEAD.values())}
    assert found[-1]["usage"].keys() == {"prompt_tokens", "completion_tokens", "total_tokens"}
    assert found[-1]["usage"]["prompt_tokens"] == 3


def test_running_usage_goes_on_behind_a_seam() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    reply = reply_to(CHAT, stream_options=options)
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    taken(reply, UpstreamResponse(reply, "vllm"), role(), chunk([5], "a", usage=usage))
    written = taken(reply, UpstreamResponse(reply, "vllm", 1), completion([6, 7], "b"), completion([8], "", "length"))
    found = [json.loads(part[6:])["usage"] for part in written.split(b"\n\n")[:-1]]
    assert found == [
        {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6},
        {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    ]


def test_an_empty_delta_stays_one_behind_a_seam() -> None:
    """Resume a stream whose ids without text came as empty deltas, for a client that asked for ids."""
    reply = reply_to(CHAT, return_token_ids=True)
    taken(reply, UpstreamResponse(reply, "vllm"), role(), chunk([4], None), chunk([5], "a"))
    written = taken(reply, UpstreamResponse(reply, "vllm", 2), completion([6], ""))
    assert json.loads(written[6:])["choices"][0]["delta"] == {}
    reply = reply_to(CHAT)
    taken(reply, UpstreamResponse(reply, "vllm"), role(), chunk([4], None), chunk([5], "a"))
    assert taken(reply, UpstreamResponse(reply, "vllm", 2), completion([6], "")) == b""


@pytest.mark.parametrize("value", [b"1e999", b"-1e999", b"[1]", b'{"a":1}', b"true"])
def test_what_is_written_anew_is_json(value: bytes) -> None:
    """Resume behind a head, and with a stop reason, that no engine sends."""
    head = b'data: {"id":"c","created":' + value + b',"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
    reply = reply_to(CHAT)
    taken(reply, UpstreamResponse(reply, "vllm"), head)
    assert reply.reason == "an id, object, created or model of a wrong type"
    written = taken(reply, UpstreamResponse(reply, "vllm"), chunk(None, "a"))
    assert written == chunk(None, "a").replace(b"chatcmpl-1", b"c")
    reply = reply_to(CHAT)
    taken(reply, UpstreamResponse(reply, "vllm"), role(), chunk([5], "a"))
    stop = (
        b'data: {"choices":[{"index":0,"text":"","token_ids":[6],"finish_reason":"stop","stop_reason":'
        + value
        + b"}]}\n\n"
    )
    written = taken(reply, UpstreamResponse(reply, "vllm", 1), stop)
    assert "Infinity" not in written.decode()
    assert json.loads(written[6:])["choices"][0]["finish_reason"] == "stop"


# What is written in the midst.


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (b": a\n\n", b""), (b": a\n", b"\n"), (b": a\r\n\r\n", b""), (b": a\r\n", b"\n"), (b": a\r\r", b""),
        (b": a\r", b"\n\n"), (b": a\r\n\r", b"\n\n"), (b"", b""),
    ],
)  # fmt: skip
def test_an_event_of_ours_begins_behind_the_end_of_the_last(last: bytes, expected: bytes) -> None:
    reply = reply_to(CHAT)
    assert taken(reply, UpstreamResponse(reply, "vllm"), last) == last
    assert reply.separator() == expected
    event = reply.error_event("m", "upstream_error", "reset")
    assert event == expected + b'data: {"error":{"message":"m","type":"upstream_error","code":"reset"}}\n\n'
