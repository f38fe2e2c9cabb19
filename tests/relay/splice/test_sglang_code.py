"""What the relay takes SGLang's API for, and its stand-in, against the code of SGLang's wheel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.instrumentation.sglang_wheel import unpacked
from support.relay.fake_model import Json
from support.relay.fake_sglang import FakeSglangModel
from support.relay.sglang_code import Code, installed

from otel_llm.relay.splice.keys import SGLANG_KEYS
from otel_llm.relay.splice.resume import COMPLETIONS_DEFAULT

PROMPT: Json = {"model": "fake", "stream": True, "temperature": 0, "prompt": "tell me", "max_tokens": 60}


@pytest.fixture(scope="module")
def code(request: pytest.FixtureRequest) -> Iterator[Code]:
    assert request.config.cache is not None
    with installed(unpacked(Path(request.config.cache.mkdir("sglang")))) as found:
        yield found


def test_each_key_of_a_completion_is_judged(code: Code) -> None:
    """Compare with the fields of the protocol; what an absent key stands for always carries over."""
    fields = code.protocol.CompletionRequest.model_fields
    assert set(SGLANG_KEYS) == set(fields)
    for name, field in fields.items():
        key = SGLANG_KEYS[name]
        if key.how == "neutral" and field.default is not None:
            assert field.default in key.neutral, name
    assert fields["max_tokens"].default == COMPLETIONS_DEFAULT


def test_detokenize_leaves_out_by_default_what_a_stream_does(code: Code) -> None:
    fields = code.protocol.DetokenizeRequest.model_fields
    assert {"model", "tokens", "skip_special_tokens"} <= set(fields)
    default = fields["skip_special_tokens"].default
    assert default is code.protocol.CompletionRequest.model_fields["skip_special_tokens"].default is True
    assert list(code.protocol.DetokenizeResponse.model_fields) == ["text"]


def test_a_streamed_chat_with_ids_is_refused(code: Code) -> None:
    messages = [{"role": "user", "content": "x"}]
    body = {"model": "fake", "stream": True, "messages": messages, "return_token_ids": True}
    chat = code.chat()
    chat.reasoning_parser, chat.is_gpt_oss, chat.template_manager = None, False, SimpleNamespace(reasoning_config=None)
    with pytest.raises(ValueError, match="return_token_ids is not supported with streaming"):
        chat._convert_to_internal_request(code.protocol.ChatCompletionRequest.model_validate(body), None)


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("per_chunk", [1, 3])
@pytest.mark.parametrize(
    "more",
    [
        {}, {"return_token_ids": True}, {"skip_special_tokens": False}, {"ignore_eos": True}, {"no_stop_trim": True},
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "return_token_ids": True},
    ],
)  # fmt: skip
def test_the_stand_in_streams_as_sglang(code: Code, more: Json, per_chunk: int, incremental: bool) -> None:
    compared = 0
    for word in ("a", "tell me", "é", "你好", "why not", "0"):
        body = {**PROMPT, **more, "prompt": word}
        events = list(FakeSglangModel(stream_interval=per_chunk).chunks(body))
        found = code.completion(FakeSglangModel(stream_interval=per_chunk), body, incremental=incremental)
        if text_of(found) == text_of(events):  # else bytes that are no text: SGLang has sent some of them twice
            assert [reported(event) for event in found] == [reported(event) for event in events]
            compared += 1
    assert compared > 3


def text_of(events: list[bytes]) -> str:
    choices = [choice for event in events[:-1] for choice in json.loads(event[6:])["choices"]]
    return "".join(choice["text"] for choice in choices)


def reported(event: bytes) -> object:
    """Return an event without what names its reply."""
    data = event.removeprefix(b"data: ").strip()
    return data if data == b"[DONE]" else {**json.loads(data), "id": "", "created": 0}
