"""Which requests can be continued elsewhere, each rule with its reason; what is then asked of the other backend."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.relay.fake_model import Json
from support.relay.resuming import PATHS, owned

from otel_llm.relay.splice.dialect import dialect_of
from otel_llm.relay.splice.eligibility import carried_keys, static_reason
from otel_llm.relay.splice.keys import VLLM_KEYS
from otel_llm.relay.splice.reply import Reply
from otel_llm.relay.splice.request import OwnedRequest, RequestError, endpoint_of
from otel_llm.relay.splice.resume import MAX_DROPPED, UNFINISHED, Carry, detokenize_body, left, resume_body
from otel_llm.relay.splice.upstream_response import UpstreamResponse

CHAT: Json = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "x"}]}
PROMPT: Json = {"model": "fake", "stream": True, "prompt": "x"}


def reason(base: Json, kind: str = "vllm", **more: Any) -> str | None:
    return static_reason(owned({**base, **more}), kind)


@pytest.mark.parametrize("base", [CHAT, PROMPT], ids=["chat", "completions"])
@pytest.mark.parametrize(
    "more",
    [
        {}, {"temperature": 0, "seed": 5}, {"temperature": 0.0, "seed": 5}, {"seed": None},
        {"temperature": 0.7, "top_p": 0.9},
        {"max_tokens": 5}, {"stop_token_ids": [1]}, {"stop": []}, {"stop": None}, {"n": 1}, {"n": 1.0},
        {"frequency_penalty": 0}, {"presence_penalty": 0.0}, {"min_tokens": 0}, {"bad_words": []},
        {"response_format": {"type": "text"}}, {"logit_bias": {"5": 1}}, {"repetition_penalty": 1.2},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, {"echo": False},
        {"stream_options": {"include_usage": None}}, {"stream_options": {}},
        {"use_beam_search": False}, {"ignore_eos": True}, {"user": "u"}, {"structured_outputs": None},
        {"truncate_prompt_tokens": None}, {"return_token_ids": True}, {"logprobs": None}, {"unknown": None},
        {"stop": ""}, {"store": True}, {"metadata": {"a": "b"}}, {"service_tier": "flex"}, {"prompt_cache_key": "k"},
        {"prompt_cache_retention": "24h"}, {"safety_identifier": "s"}, {"verbosity": "low"}, {"prediction": {"a": 1}},
        {"stream_options": {"include_usage": True, "include_obfuscation": False}},
    ],
)  # fmt: skip
def test_requests_that_can_be_continued(base: Json, more: Json) -> None:
    assert reason(base, **more) is None


@pytest.mark.parametrize(
    "more",
    [
        {"tools": []}, {"tools": [{"type": "function"}], "tool_choice": "none"}, {"tool_choice": "none"},
        {"logprobs": False}, {"logprobs": False, "top_logprobs": 0}, {"max_completion_tokens": 5},
        {"modalities": ["text"]}, {"functions": []}, {"function_call": "none"},
        {"chat_template_kwargs": {"a": 1}}, {"include_reasoning": True}, {"parallel_tool_calls": True},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, "y", {"type": "refusal"}]}]},
    ],
)  # fmt: skip
def test_chats_that_can_be_continued(more: Json) -> None:
    assert reason(CHAT, **more) is None


@pytest.mark.parametrize(
    ("base", "more", "expected"),
    [
        *((base, more, f"{key!r} does not carry over") for base in (CHAT, PROMPT) for key, more in [
            ("frequency_penalty", {"frequency_penalty": 0.5}), ("presence_penalty", {"presence_penalty": -1}),
            ("logprobs", {"logprobs": True}) if base is CHAT else ("prompt_logprobs", {"prompt_logprobs": 1}),
            ("prompt_logprobs", {"prompt_logprobs": 0}), ("min_tokens", {"min_tokens": 1}), ("stop", {"stop": "x"}),
            ("stop", {"stop": ["x"]}), ("stop", {"stop": [""]}), ("bad_words", {"bad_words": ["x"]}),
            ("response_format", {"response_format": {"type": "json_object"}}), ("echo", {"echo": True}),
            ("structured_outputs", {"structured_outputs": {}}), ("use_beam_search", {"use_beam_search": True}),
            ("truncate_prompt_tokens", {"truncate_prompt_tokens": 5}),
            ("truncate_prompt_tokens", {"truncate_prompt_tokens": -1}),
            ("truncation_side", {"truncation_side": "left"}), ("min_tokens", {"min_tokens": False}),
            ("frequency_penalty", {"frequency_penalty": "0"}),
            ("vllm_xargs", {"vllm_xargs": {"a": 1}}),
            ("kv_transfer_params", {"kv_transfer_params": {}}), ("thinking_token_budget", {"thinking_token_budget": 9}),
        ]),
        (CHAT, {"top_logprobs": 3}, "'top_logprobs' does not carry over"),
        (PROMPT, {"suffix": "x"}, "'suffix' does not carry over"),
        (PROMPT, {"best_of": 2}, "'best_of' does not carry over"),
        (PROMPT, {"prompt_embeds": "x"}, "'prompt_embeds' does not carry over"),
        # An engine takes false for 0, which asks for the sampled token's.
        (PROMPT, {"logprobs": False}, "'logprobs' is not known to carry over"),
        (PROMPT, {"logprobs": 0}, "'logprobs' is not known to carry over"),
        (PROMPT, {"max_completion_tokens": 5}, "'max_completion_tokens' is not known to carry over"),
        (PROMPT, {"tools": []}, "'tools' is not known to carry over"),
        (CHAT, {"best_of": 1}, "'best_of' is not known to carry over"),
        (CHAT, {"guided_json": {}}, "'guided_json' is not known to carry over"),
        (CHAT, {"lora_request": {}}, "'lora_request' is not known to carry over"),
        (CHAT, {"functions": [{}]}, "'functions' does not carry over"),
        (CHAT, {"modalities": ["text", "audio"]}, "'modalities' does not carry over"),
        (PROMPT, {"modalities": ["text"]}, "'modalities' is not known to carry over"),
        (CHAT, {"x" * 99: 1}, f"{'x' * 64!r} is not known to carry over"),
        (CHAT, {"stream_options": {"other": 1}}, "'stream_options.other' is not known to carry over"),
        (CHAT, {"stream_options": {"include_usage": "false"}}, "'stream_options.include_usage' is not a boolean"),
        (CHAT, {"max_tokens": 5.0}, "'max_tokens' is not an integer"),
        (CHAT, {"max_completion_tokens": True}, "'max_completion_tokens' is not an integer"),
        (CHAT, {"n": 2}, "2 choices"), (PROMPT, {"prompt": ["a", "b"]}, "2 choices"),
        (PROMPT, {"prompt": [[1], [2]], "n": 3}, "6 choices"),
        (CHAT, {"seed": 5}, "sampled with a seed"), (CHAT, {"seed": 0, "temperature": 1}, "sampled with a seed"),
        (CHAT, {"seed": 5, "temperature": False}, "sampled with a seed"),
        (CHAT, {"tools": [{}]}, "tools"), (CHAT, {"tools": [{}], "tool_choice": "auto"}, "tools"),
        (CHAT, {"tool_choice": {"type": "function"}}, "tools"), (CHAT, {"tool_choice": "required"}, "tools"),
    ],
)  # fmt: skip
def test_requests_that_cannot(base: Json, more: Json, expected: str) -> None:
    assert reason(base, **more) == expected


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "x"}}, {"type": "input_audio"}, {"type": "unheard"}, {"type": 5},
        {"type": ["text"]}, {"image_url": "x"}, {"video_url": {"url": "x"}, "type": None}, {"text": "x"},
        {"type": "text", "text": "x", "uuid": "u", "image_url": "x"},
    ],
)  # fmt: skip
def test_content_that_is_not_text(part: Json) -> None:
    """Send a part of another type, and parts that vLLM takes for pictures without being told so."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]
    assert reason(CHAT, messages=messages) == "multimodal content"


def test_the_first_reason_in_order() -> None:
    many: Json = {"n": 2, "seed": 5, "stop": "x", "tools": [{}]}
    expected = ["2 choices", "sampled with a seed", "'stop' does not carry over", "tools"]
    assert reason(CHAT, "openai", **many) == "a backend of kind openai returns no token ids"
    for gone, reported in zip(["n", "seed", "stop", "tools"], expected, strict=True):
        assert reason(CHAT, **many) == reported
        del many[gone]
    assert reason(CHAT, **many) is None


# Which requests are owned.


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v1/chat/completions", "chat"), ("/v1/completions?a=/x", "completions"), ("/a/b/chat/completions", "chat"),
        ("/v1/completions/", None), ("/v1/embeddings", None), ("/x?/v1/completions", None), ("completions", None),
    ],
)  # fmt: skip
def test_paths(path: str, endpoint: str | None) -> None:
    assert endpoint_of(path) == endpoint


@pytest.mark.parametrize("body", [b'{"stream":false}', b'{"stream":null}', b"{}", b'{"n":2.0,"x":1}'])
def test_bodies_without_a_stream(body: bytes) -> None:
    assert OwnedRequest.parse(PATHS["chat"], body) is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        *((body, None) for body in (
            b"", b"[]", b"{", b'\xff{"stream":true}', b'{"stream":true,"a":1,"a":2}', b'{"stream":true} x',
            b'{"stream":true,"a":NaN}', b'{"stream":true,"a":' + b"[" * 9000, b'\xef\xbb\xbf{"stream":true}',
            '{"stream":true}'.encode("utf-16"), '{"stream":true}'.encode("utf-32-le"), b'{"stream":true,}',
            b'{"stream":true,"stream_options":{"include_usage":true,"include_usage":false}}', b'{"a":"\xed\xa0\x80"}',
        )),
        *((b'{"stream":%s}' % value, "stream") for value in (
            b"1", b"0", b"1.0", b'"true"', b'"false"', b'"on"', b'""', b"[]", b"{}", b"[true]",
        )),
        *((b'{"stream":true,"%s":1}' % key, "stream") for key in (
            b"stream", b"Stream", b"STREAM", b"strea\\u006d", "\u017ftream".encode(),
        )),
        (b'{"stream":false,"stream":true}', "stream"), (b'{"Stream":true}', "stream"), (b'{"N":1}', "n"),
        *((b'{"n":%s}' % value, "n") for value in (b"9", b"0", b"-1", b"1.5", b'"1"', b"true", b"1e9", b"[1]")),
        (b'{"best_of":9,"stream":true}', "best_of"),
    ],
)  # fmt: skip
def test_bodies_that_a_backend_may_read_otherwise_are_refused(body: bytes, param: str | None) -> None:
    with pytest.raises(RequestError) as problem:
        OwnedRequest.parse(PATHS["chat"], body)
    assert problem.value.param == param


def test_as_many_replies_as_are_recorded() -> None:
    assert OwnedRequest.parse(PATHS["completions"], json.dumps({"prompt": ["a"] * 999}).encode()) is None
    body = {"stream": True, "prompt": ["a"] * 64, "n": 2}
    assert owned(body).choices == 128
    with pytest.raises(RequestError):
        owned({**body, "prompt": ["a"] * 65})


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b'{"stream":true}', b'{"stream":true,"return_token_ids":true}'),
        (b' { "stream" : true } \n', b' { "stream" : true,"return_token_ids":true } \n'),
        (b'{"return_token_ids":false,"stream":true}', b'{"return_token_ids":true,"stream":true}'),
        (b'{"return_token_ids": null ,"stream":true}', b'{"return_token_ids": true ,"stream":true}'),
        (b'{"stream":true,"return_token_ids":true}', b'{"stream":true,"return_token_ids":true}'),
        (
            b'{"stream":true,"t":1.50e0,"u":"\\u00e9\\ud800"}',
            b'{"stream":true,"t":1.50e0,"u":"\\u00e9\\ud800","return_token_ids":true}',
        ),
    ],
)  # fmt: skip
def test_a_body_that_asks_for_ids_is_else_as_it_came(body: bytes, sent: bytes) -> None:
    request = OwnedRequest.parse(PATHS["chat"], body)
    assert request is not None
    assert b"".join(request.body_with_ids()) == sent


# What is asked of the other backend.


def begun(body: Json, *chunks: Json, kind: str = "vllm") -> Reply:
    """Return a reply with a prompt of three ids and these chunks' choices."""
    reply = Reply(owned(body))
    upstream_response = UpstreamResponse(reply, kind)
    for choice in chunks:
        data = {"id": "c", "prompt_token_ids": [1, 2, 3], "choices": [{"index": 0, **choice}]}
        for line in upstream_response.feed(b"data: " + json.dumps(data).encode() + b"\n\n"):
            reply.take(upstream_response, line)
    return reply


def text(ids: list[int], content: str, body: Json = CHAT) -> Json:
    return {"token_ids": ids, **({"text": content} if body is PROMPT else {"delta": {"content": content}})}


@pytest.mark.parametrize(
    ("base", "more", "carried", "expected"),
    [
        (CHAT, {"max_tokens": 10}, 4, 6), (CHAT, {"max_completion_tokens": 5, "max_tokens": 10}, 4, 1),
        (CHAT, {"max_completion_tokens": None, "max_tokens": 10}, 4, 6), (CHAT, {}, 4, 100 - 3 - 4),
        (PROMPT, {"max_tokens": 10}, 4, 6), (PROMPT, {}, 4, 12), (PROMPT, {"max_tokens": None}, 15, 1),
        (PROMPT, {}, 16, None), (CHAT, {"max_tokens": 4}, 4, None), (CHAT, {"max_tokens": 3}, 4, None),
        (CHAT, {}, 97, None), (CHAT, {}, 96, 1), (CHAT, {"max_tokens": 0}, 0, None),
    ],
)  # fmt: skip
def test_what_is_left(base: Json, more: Json, carried: int, expected: int | None) -> None:
    reply = begun({**base, **more}, text([5], "a", base))
    assert left(reply, carried, 100) == expected


def test_a_resumed_request_has_the_parameters_as_they_were_written() -> None:
    written = (
        b'{"stream":true,"model":"f\\u0061ke","messages":[],"temperature":1.50e-1,"top_k":null,"seed":null,"logit_bias":'
        b'{"5": 1.0,"5": 2},"frequency_penalty":0.0,"min_tokens":0,"user":"\\ud800","max_tokens":9,"stop":[],'
        b'"request_id":"r","stream_options":{"include_usage":true,"continuous_usage_stats":true},"tool_choice":"none"}'
    )
    request = OwnedRequest.parse(PATHS["chat"], written)
    assert request is not None
    assert static_reason(request, "vllm") is None
    resumed = Reply(request)
    upstream_response = UpstreamResponse(resumed, "vllm")
    raw = b'data: {"prompt_token_ids":[1,2,3],"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[5]}]}\n\n'
    for line in upstream_response.feed(raw):
        resumed.take(upstream_response, line)
    assert resume_body(resumed, 1, 8) == (
        b'{"model":"f\\u0061ke","temperature":1.50e-1,"logit_bias":{"5": 1.0,"5": 2},"frequency_penalty":0.0,'
        b'"user":"\\ud800","prompt":[1,2,3,5],"max_tokens":8,"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true}}'
    )
    assert detokenize_body(resumed, [5]) == b'{"model":"f\\u0061ke","tokens":[5]}'
    resumed.cannot_resume("x")
    with pytest.raises(ValueError, match="not resumable"):
        resume_body(resumed, 1, 8)


def test_what_is_sent_again_has_its_meaning_there() -> None:
    """Send again only what both endpoints take."""
    for key, known in VLLM_KEYS.items():
        if known.how == "carry" or known.sent:
            assert known.endpoints == ("chat", "completions"), key
    assert carried_keys(owned({**CHAT, "temperature": 0, "n": 1, "top_p": None}), dialect_of("vllm")) == [
        "model",
        "temperature",
    ]


# Which ids are carried.


def answers(reply: Reply, *texts: str | None) -> Carry:
    """Answer each question about ids in turn; each is to be asked."""
    carry = Carry(reply)
    for answer in texts:
        assert carry.missing is not None
        carry.answer(answer)
    return carry


def test_a_text_with_one_id_is_whole_without_a_question() -> None:
    carry = answers(begun(CHAT, text([5, 6], "ab"), text([7], ""), text([8], "c")))
    assert (carry.missing, carry.count, carry.reason) == (None, 4, None)


def test_ids_without_text_are_generated_again() -> None:
    carry = answers(begun(CHAT, text([5], "a"), text([6], ""), text([7, 8], "")))
    assert (carry.missing, carry.count) == (None, 1)


def test_ids_are_dropped_until_their_text_is_what_was_delivered() -> None:
    reply = begun(CHAT, text([5], "a"), text([6, 7, 8], "b"))
    for texts, asks in (
        ((), [1, 2, 3, 5]), (("pppa",), [1, 2, 3, 5, 6, 7, 8]), (("pppa", "pppab\ufffd"), [1, 2, 3, 5, 6, 7]),
        (("pppa", "pppab\ufffd", "pppab"), None),
    ):  # fmt: skip
        carry = answers(reply, *texts)
        assert carry.missing == asks
    assert (carry.count, carry.reason) == (3, None)


@pytest.mark.parametrize("texts", [(None,), ("pa", None), ("pa", "x", "y", "z")])
def test_a_text_that_never_comes_is_an_unfinished_character(texts: tuple[str | None, ...]) -> None:
    carry = answers(begun(CHAT, text([5], "a"), text([6, 7, 8], "b")), *texts)
    assert (carry.missing, carry.count, carry.reason) == (None, None, UNFINISHED)


def test_not_every_id_of_a_long_tail_is_asked_about() -> None:
    reply = begun(CHAT, text(list(range(100)), "b"))
    carry = answers(reply, "p", *["x"] * (MAX_DROPPED + 1))
    assert carry.reason == UNFINISHED


def test_what_cannot_be_resumed_carries_nothing() -> None:
    reply = begun(CHAT, {"delta": {"content": "a"}})
    carry = Carry(reply)
    assert (carry.missing, carry.count, carry.reason) == (None, None, "a chunk without ids")
