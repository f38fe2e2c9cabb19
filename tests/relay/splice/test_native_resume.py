"""A chat that is cut goes on by another chat endpoint: reasoning, tools and logprobs, wherever it is cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.relay.fake_model import THINK, THOUGHT, FakeModel, Json
from support.relay.parsing_model import ParsingModel, call, script
from support.relay.resuming import Resumed, Seen, run, seen_of

TOOL: Json = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CHAT: Json = {
    "model": "fake",
    "stream": True,
    "temperature": 0,
    "messages": [{"role": "user", "content": "tell me"}],
    "stream_options": {"include_usage": True},
}
REPLIES = {
    "text": script("Hé, 你好 <b> 😀."),
    "reasoning, text": script(THINK, "hm é <i", THOUGHT, "It is 你."),
    "text, tool": script("Let me look. ", *call("weather", city="Köln")),
    "reasoning, tool": script(THINK, "look it up", THOUGHT, *call("weather", city="Bonn")),
    "reasoning, text, two tools": script(
        THINK, "two", THOUGHT, "Both:", *call("weather", city="Bonn"), *call("weather", city="Köln")
    ),
    "text, reasoning, text": script("Wait. ", THINK, "no", THOUGHT, "Yes."),
}


def models_of(count: int, output: list[int], **more: Any) -> list[FakeModel]:
    """Return engines that differ in all that a resumption must not show."""
    return [
        ParsingModel(prefix="abcd"[i], created=1000 + i, output=output, continues_chats=True, **more)
        for i in range(count)
    ]


def whole_of(body: Json, model: FakeModel) -> Seen:
    """Return what a client sees of the reply through a relay if nothing fails."""
    return seen_of(run(body, [model], []).data)


def check(resumed: Resumed, whole: Seen) -> None:
    seen = seen_of(resumed.data)
    assert (seen.text, seen.reasoning) == (whole.text, whole.reasoning)
    assert [(one["name"], one["arguments"]) for one in seen.calls] == [
        (one["name"], one["arguments"]) for one in whole.calls
    ]
    assert (seen.ids, seen.logprobs) == (whole.ids, whole.logprobs)
    assert (seen.finishes, seen.roles, seen.prompt_ids) == (whole.finishes, whole.roles, whole.prompt_ids)
    assert len(seen.heads) == 1
    if not resumed.bare_finish:
        assert seen.dones == 1
        assert seen.usage == whole.usage


@pytest.mark.parametrize("more", [{}, {"return_token_ids": True}, {"logprobs": True, "top_logprobs": 1}])
@pytest.mark.parametrize("interval", [1, 2, 5])
@pytest.mark.parametrize("name", REPLIES)
def test_every_cut(name: str, interval: int, more: Json) -> None:
    """Behind a tool's first delta no cut can be mended; nearly all others are, and those have every token."""
    output, body = REPLIES[name], {**CHAT, "tools": [TOOL], **more}
    source, destination = models_of(2, output, stream_interval=interval)
    whole = whole_of(body, source)
    lost = []
    for cut in range(len(output) // interval + 1):
        resumed = run(body, [source, destination], [cut], way="chat")
        if resumed.reason is not None:
            assert resumed.reason == "a tool delta"
            assert seen_of(resumed.data + b"\n").calls
        elif resumed.lost:
            lost.append(cut)
        else:
            check(resumed, whole)
    assert len(lost) <= (2 if interval > 1 else 0), lost


@settings(max_examples=examples(150))
@given(
    name=st.sampled_from(sorted(REPLIES)),
    intervals=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    lengths=st.lists(st.integers(0, 60), min_size=3, max_size=3),
    splits=st.lists(st.integers(0, 20_000), max_size=20),
    torn=st.integers(0, 300),
    running=st.booleans(),
    tools=st.booleans(),
    max_tokens=st.none() | st.integers(1, 80),
)
def test_any_cuts(
    name: str,
    intervals: list[int],
    lengths: list[int],
    splits: list[int],
    torn: int,
    running: bool,
    tools: bool,
    max_tokens: int | None,
) -> None:
    body = {**CHAT, "stream_options": {"include_usage": True, "continuous_usage_stats": running}}
    if tools or "tool" in name:
        body["tools"] = [TOOL]
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    models = models_of(len(intervals), REPLIES[name])
    for one, interval in zip(models, intervals, strict=True):
        one.stream_interval = interval
    resumed = run(body, models, lengths, splits, torn, way="chat")
    if not resumed.lost and resumed.reason is None:
        check(resumed, whole_of(body, models[0]))


def test_a_plain_chat_goes_on_as_it_would_have() -> None:
    body = {**CHAT, "max_tokens": 24, "ignore_eos": True, "min_tokens": 20}
    source, destination = (FakeModel(prefix=one, continues_chats=True, pauses=False) for one in "ab")
    body.pop("min_tokens")
    whole = whole_of(body, source)
    for cut in range(26):
        resumed = run(body, [source, destination], [cut], way="chat")
        assert not resumed.lost
        check(resumed, whole)
