"""What is asked of SGLang, what its clients get, and how a completion goes on at another SGLang."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.relay.fake_model import FakeModel, Json
from support.relay.fake_sglang import FakeSglangModel, decode
from support.relay.resuming import Resumed, Seen, owned, run, seen_of

from otel_llm.relay.splice.eligibility import static_reason
from otel_llm.relay.splice.line import Line
from otel_llm.relay.splice.reply import Reply
from otel_llm.relay.splice.resume import Carry, detokenize_body, left, resume_body
from otel_llm.relay.splice.upstream_response import UpstreamResponse

PROMPT: Json = {"model": "fake", "stream": True, "temperature": 0, "prompt": "tell me"}
CHAT: Json = {"model": "fake", "stream": True, "temperature": 0, "messages": [{"role": "user", "content": "tell me"}]}
USAGES = [None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]


def taken(reply: Reply, data: bytes, kind: str = "sglang") -> bytes:
    upstream_response = UpstreamResponse(reply, kind)
    return b"".join(reply.take(upstream_response, line) for line in upstream_response.feed(data))


# Which requests.


@pytest.mark.parametrize(
    "more",
    [
        {}, {"seed": 5}, {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1}, {"max_tokens": 5}, {"stop": []},
        {"stop_token_ids": [1]}, {"no_stop_trim": True}, {"skip_special_tokens": False}, {"ignore_eos": True},
        {"logit_bias": {"5": 1}}, {"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1.0},
        {"suffix": "x"}, {"rid": "r"}, {"routed_dp_rank": 1}, {"cache_salt": "s", "extra_key": "k", "priority": 1},
        {"return_token_ids": True}, {"stream_options": {"include_usage": True}}, {"response_format": {"type": "text"}},
        {"return_hidden_states": False, "return_cached_tokens_details": False}, {"echo": False, "n": 1},
        {"logprobs": None, "json_schema": None},
    ],
)  # fmt: skip
def test_completions_that_can_be_continued(more: Json) -> None:
    assert static_reason(owned({**PROMPT, **more}), "sglang") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        # vLLM counts a repetition penalty over the prompt too, SGLang does not.
        ("repetition_penalty", 1.1), ("frequency_penalty", 0.5), ("presence_penalty", -1), ("min_tokens", 1),
        ("stop", "x"), ("stop_regex", "x"), ("json_schema", "{}"), ("regex", "x"), ("ebnf", "x"), ("echo", True),
        ("response_format", {"type": "json_object"}), ("custom_logit_processor", "x"), ("watermark", {"key": "k"}),
        ("custom_params", {"a": 1}), ("lora_path", "a"), ("session_params", {"id": "s"}), ("best_of", 2),
        ("bootstrap_host", "h"), ("bootstrap_room", 1), ("disagg_prefill_dp_rank", 0), ("logprobs", 0),
        ("return_hidden_states", True), ("return_routed_experts", True), ("return_cached_tokens_details", True),
    ],
)  # fmt: skip
def test_values_that_do_not_carry_over(key: str, value: object) -> None:
    assert static_reason(owned({**PROMPT, key: value}), "sglang") == f"{key!r} does not carry over"


@pytest.mark.parametrize("key", ["bad_words", "allowed_token_ids", "max_completion_tokens", "tools", "unheard"])
def test_keys_of_which_it_takes_no_notice(key: str) -> None:
    assert static_reason(owned({**PROMPT, key: 1}), "sglang") == f"{key!r} is not known to carry over"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"n": 2}, "2 choices"), ({"seed": 5, "temperature": 1}, "sampled with a seed"),
        ({"max_tokens": 5.0}, "'max_tokens' is not an integer"),
    ],
)  # fmt: skip
def test_completions_that_cannot_be_continued(more: Json, expected: str) -> None:
    assert static_reason(owned({**PROMPT, **more}), "sglang") == expected


def test_a_chat_brings_no_ids_while_it_streams() -> None:
    reason = "a backend of kind sglang returns no token ids while a chat streams"
    assert static_reason(owned(CHAT), "sglang") == reason
    assert static_reason(owned({**CHAT, "return_token_ids": True}), "sglang") == reason


# What passes.


@pytest.mark.parametrize("usage", USAGES)
@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("per_chunk", [1, 3])
def test_a_completion_passes_without_the_ids_that_the_relay_asked_for(
    usage: Json | None, ids: bool, per_chunk: int
) -> None:
    """Compare with the lines that the client would get straight from the backend."""
    body = {**PROMPT, "max_tokens": 30, "stream_options": usage, "return_token_ids": ids}
    request = owned(body)
    reply = Reply(request)
    sent = json.loads(b"".join(request.body_with_ids()))
    assert sent["return_token_ids"] is True
    straight = b"".join(FakeSglangModel(stream_interval=per_chunk).chunks(body))
    assert taken(reply, b"".join(FakeSglangModel(stream_interval=per_chunk).chunks(sent))) == straight
    assert (b"token_ids" in straight) is ids
    assert reply.reason is None
    prompt = FakeSglangModel().prompt_ids(body)
    assert reply.prompt_ids is not None
    assert reply.prompt_ids.last(len(prompt) + 1) == prompt
    assert reply.ids == [token for token, _, _ in FakeSglangModel().tokens(body, prompt)]


@pytest.mark.parametrize("usage", USAGES)
@pytest.mark.parametrize("extension", [{}, {"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True}])
def test_a_chat_passes_as_it_comes(usage: Json | None, extension: Json) -> None:
    body = {**CHAT, "max_tokens": 30, "stream_options": usage, **extension}
    data = b"".join(FakeSglangModel().chunks(body))
    reply = Reply(owned(body))
    assert taken(reply, data) == data
    assert reply.reason == "a chunk without ids"
    assert (reply.finish, reply.done) == ("length", True)


# What is asked of the other backend.


def begun(body: Json, *choices: Json) -> Reply:
    """Return a reply with a prompt of three ids and these chunks' choices."""
    reply = Reply(owned(body))
    upstream_response = UpstreamResponse(reply, "sglang")
    for at, choice in enumerate(choices):
        prompt: Json = {} if at else {"prompt_token_ids": [1, 2, 3]}
        value = {"id": "c", "choices": [{"index": 0, "finish_reason": None, "matched_stop": None, **choice, **prompt}]}
        for line in upstream_response.feed(b"data: " + json.dumps(value).encode() + b"\n\n"):
            reply.take(upstream_response, line)
    return reply


def test_a_resumed_request() -> None:
    more: Json = {"suffix": "x", "rid": "r", "repetition_penalty": 1, "no_stop_trim": True, "max_tokens": 9}
    reply = begun({**PROMPT, **more, "skip_special_tokens": False}, {"text": "a", "token_ids": [5]})
    assert resume_body(reply, 1, 8) == (
        b'{"model":"fake","temperature":0,"repetition_penalty":1,"no_stop_trim":true,"skip_special_tokens":false,'
        b'"prompt":[1,2,3,5],"max_tokens":8,"stream":true,"return_token_ids":true,"suffix":""}'
    )
    assert detokenize_body(reply, [5]) == b'{"model":"fake","skip_special_tokens":false,"tokens":[5]}'
    assert detokenize_body(begun(PROMPT, {"text": "a", "token_ids": [5]}), []) == b'{"model":"fake","tokens":[]}'


def test_the_default_of_a_completion() -> None:
    reply = begun(PROMPT, {"text": "a", "token_ids": [5, 6, 7]})
    assert left(reply, 3, 4096) == 13


def test_a_text_with_one_id_may_end_within_a_character() -> None:
    carry = Carry(begun(PROMPT, {"text": "a", "token_ids": [5]}, {"text": " ", "token_ids": [6]}))
    for asked, answer in (([1, 2, 3], "ppp"), ([1, 2, 3, 5, 6], "pppa \ufffd"), ([1, 2, 3, 5], "pppa")):
        assert carry.missing == asked
        carry.answer(answer)
    assert (carry.count, carry.reason) == (None, "unfinished character")


# How it goes on.


def undisturbed(body: Json, **model: Any) -> Seen:
    return seen_of(b"".join(FakeSglangModel(**model).chunks(body)))


def models_of(count: int, **model: Any) -> list[FakeModel]:
    """Return engines that differ in all that a resumption must not show."""
    return [FakeSglangModel(prefix="abcd"[i], created=1000 + i, **model) for i in range(count)]


def plain(usage: Json | None) -> Json | None:
    """Return a usage without what is left out behind a splice: the cached tokens, and those of reasoning."""
    return usage and {key: usage[key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")}


def check(resumed: Resumed, whole: Seen, *, skip_special: bool = True) -> None:
    seen = seen_of(resumed.data)
    if resumed.lost:  # rightly: what was sent is the text of no number of the ids
        ids = resumed.reply.ids
        texts = {decode(ids[:count], skip_special=skip_special) for count in range(len(ids) + 1)}
        assert seen.text not in texts
        assert whole.text.startswith(seen.text)
        return
    assert seen.text == whole.text
    assert seen.ids == whole.ids
    assert seen.prompt_ids == whole.prompt_ids
    assert seen.finishes == whole.finishes
    if not resumed.bare_finish:
        assert seen.dones == 1
        assert plain(seen.usage) == plain(whole.usage)
    assert seen.running == sorted(seen.running)
    assert len(seen.heads) == 1


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("per_chunk", [1, 2, 3, 5])
@pytest.mark.parametrize("skip_special", [False, True])
def test_every_cut_between_chunks(ids: bool, per_chunk: int, skip_special: bool) -> None:
    body = {**PROMPT, "max_tokens": 60, "ignore_eos": True, "return_token_ids": ids}
    body["skip_special_tokens"] = skip_special
    whole = undisturbed(body, stream_interval=per_chunk)
    assert ("<|pause|>" in whole.text) is not skip_special
    cuts, lost = range(60 // per_chunk + 2), 0
    for cut in cuts:
        resumed = run(body, models_of(2, stream_interval=per_chunk), [cut], kind="sglang")
        check(resumed, whole, skip_special=skip_special)
        lost += resumed.lost
        if not resumed.again and not resumed.lost:
            assert resumed.tokens == 60
    assert lost <= len(cuts) / 2


def events_of(data: bytes) -> list[Json]:
    """Return the events of a reply but `[DONE]`."""
    return [json.loads(event[6:]) for event in data.split(b"\n\n")[:-2]]


def reported(choices: list[Json]) -> list[Json]:
    """Return what choices tell: a null field and an absent one are equal."""
    return [{key: value for key, value in choice.items() if value is not None} for choice in choices]


def test_a_chunk_behind_a_seam_has_the_form_of_one_before() -> None:
    body = {**PROMPT, "max_tokens": 24, "stream_options": USAGES[2]}
    ids = [token for token, _, _ in FakeSglangModel().tokens(body, FakeSglangModel().prompt_ids(body))]
    stop = next(token for at, token in enumerate(ids) if at > 9 and token not in ids[:at])
    body["stop_token_ids"] = [stop]
    resumed = run(body, models_of(2), [4], kind="sglang")
    assert len(resumed.carried) == 1
    events, straight = events_of(resumed.data), events_of(b"".join(FakeSglangModel().chunks(body)))
    assert [reported(event["choices"]) for event in events] == [reported(event["choices"]) for event in straight]
    assert [plain(event["usage"]) for event in events] == [plain(event["usage"]) for event in straight]
    assert events[-2]["choices"][0]["matched_stop"] == stop


def test_a_server_with_a_completion_template_goes_on_from_ids() -> None:
    """Use engines that would write a list of ids into their template as text, were there no empty suffix."""
    body = {**PROMPT, "max_tokens": 24, "ignore_eos": True}
    whole = undisturbed(body, completion_template=True, pauses=False)
    assert whole.text != undisturbed(body, pauses=False).text
    check(run(body, models_of(2, completion_template=True, pauses=False), [3], kind="sglang"), whole)


def test_running_usage_does_not_go_back_behind_ids_without_text() -> None:
    """Cut if two ids of a character were counted and not yet shown; the next engine writes one id a chunk."""
    body = {**PROMPT, "prompt": "aaaa", "max_tokens": 17, "skip_special_tokens": False, "stream_options": USAGES[2]}
    models = models_of(2, cached_tokens=True, max_model_len=160)
    models[0].stream_interval, models[1].stream_interval = 2, 1
    whole = undisturbed(body, cached_tokens=True, max_model_len=160)
    check(run(body, models, [6, 0], kind="sglang"), whole, skip_special=False)


@settings(max_examples=examples(150))
@given(
    words=st.text("abcdefgh é你", min_size=1, max_size=6),
    ids=st.booleans(),
    usage=st.sampled_from(USAGES),
    intervals=st.lists(st.integers(1, 7), min_size=2, max_size=4),
    lengths=st.lists(st.integers(0, 30), min_size=3, max_size=3),
    torn=st.integers(0, 400),
    splits=st.lists(st.integers(0, 20_000), max_size=30),
    skip_special=st.booleans(),
    max_tokens=st.one_of(st.none(), st.integers(1, 60)),
    more=st.sampled_from([{}, {"ignore_eos": True}, {"stop_token_ids": [300, 301, 302]}, {"no_stop_trim": True}]),
)
def test_any_cuts_and_splits(
    words: str,
    ids: bool,
    usage: Json | None,
    intervals: list[int],
    lengths: list[int],
    torn: int,
    splits: list[int],
    skip_special: bool,
    max_tokens: int | None,
    more: Json,
) -> None:
    """Cut a reply up to three times, anywhere, with other numbers of tokens a chunk on each engine."""
    stated = {"max_tokens": max_tokens, "stream_options": usage, "return_token_ids": ids, **more}
    body = {**PROMPT, "prompt": words, **{key: value for key, value in stated.items() if value is not None}}
    body["skip_special_tokens"] = skip_special
    whole = undisturbed(body, cached_tokens=True, max_model_len=160)
    models = models_of(len(intervals), cached_tokens=True, max_model_len=160)
    for one, interval in zip(models, intervals, strict=True):
        one.stream_interval = interval
    check(run(body, models, lengths, splits, torn, kind="sglang"), whole, skip_special=skip_special)


def test_a_usage_that_a_server_tells_unasked_is_told_behind_a_seam() -> None:
    body = {**PROMPT, "max_tokens": 24, "ignore_eos": True}
    whole = undisturbed(body, default_usage=True, pauses=False)
    assert whole.usage is not None
    check(run(body, models_of(2, default_usage=True, pauses=False), [3], kind="sglang"), whole)


# Breaks.


def test_breaks_have_sglangs_forms() -> None:
    """Read the events that its code sends for an abort with a status, and for one without."""
    reply = Reply(owned(PROMPT))

    def line(value: Json) -> Line:
        return UpstreamResponse(reply, "sglang").feed(b"data: " + json.dumps(value).encode() + b"\n\n")[0]

    error = {"object": "error", "message": "m", "type": "SERVICE_UNAVAILABLE", "param": None, "code": 503}
    assert line({"error": error}).error
    choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": "abort", "matched_stop": None, "token_ids": []}
    assert line({"id": "c", "choices": [choice], "usage": None}).aborted
