"""A backend that fails behind the finish reason: its reply is whole, and ends as the client asked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine
from support.relay.rig import Rig, rig
from support.relay.scripted_engine import COMMENTS, Part, ScriptedEngine

BODY: dict[str, Any] = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "tell me"}]}
USAGE = {"stream_options": {"include_usage": True}}
DONE = b"data: [DONE]\n\n"
HEAD = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
NEVER = "never"
"""Stands for an event that does not come."""


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(text: str, finish: str | None = None, ids: list[int] | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return event({**HEAD, "choices": [{**choice, "token_ids": ids} if ids else choice], **more})


def with_ids(*more: bytes) -> list[bytes]:
    first = chunk("", prompt_token_ids=[1, 2, 3])
    return [first, chunk("a ", ids=[7]), chunk("b", "stop", ids=[8, 9]), *more]


TOLD = event({**HEAD, "choices": [], "usage": {"prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3}})
ENDS: list[Any] = [[], [None], [NEVER], [COMMENTS], [b"data: {", None]]
NAMES = ["ends", "breaks", "stalls", "sends comments", "breaks within an event"]


def read(folder: Path, engine: FakeEngine, **asked: Any) -> tuple[list[Any], list[str]]:
    """Return the events of the reply, and the outcomes of the rows."""

    async def request(running: Rig) -> bytes:
        async with asyncio.timeout(WAIT_S):
            async with running.session.post(running.url + "/v1/chat/completions", json={**BODY, **asked}) as response:
                return await response.read()

    async def go() -> tuple[list[Any], list[str]]:
        async with rig(folder, engine) as running:
            got = await request(running)
            found = (await running.get("/v1/streams"))["recent"]
        assert got.endswith(b"\n\n")
        events = [one.removeprefix(b"data: ") for one in got.split(b"\n\n")[:-1] if one != b": keep-alive"]
        return [one if one == b"[DONE]" else json.loads(one) for one in events], [row["outcome"] for row in found]

    return asyncio.run(go())


def engine_of(parts: list[bytes], end: list[Any], kind: str) -> FakeEngine:
    rest: list[Part] = [asyncio.Event() if one == NEVER else one for one in end]
    return ScriptedEngine(*parts, *rest, kind=kind)


@pytest.mark.parametrize("end", ENDS, ids=NAMES)
@pytest.mark.parametrize("usage", [True, False])
def test_a_client_gets_what_it_asked_for(tmp_path: Path, end: list[Any], usage: bool) -> None:
    got, outcomes = read(tmp_path, engine_of(with_ids(), end, "vllm"), **(USAGE if usage else {}))
    assert got[-1] == b"[DONE]"
    assert got.count(b"[DONE]") == 1
    reported = [one["usage"] for one in got[:-1] if "usage" in one]
    assert reported == ([{"prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3}] if usage else [])
    if usage:
        assert {name: got[-2][name] for name in HEAD} == HEAD
        assert got[-2]["choices"] == []
    assert outcomes == ["completed"]


@pytest.mark.parametrize("end", ENDS, ids=NAMES)
def test_a_usage_that_the_client_has_is_not_told_twice(tmp_path: Path, end: list[Any]) -> None:
    got, _ = read(tmp_path, engine_of(with_ids(TOLD), end, "vllm"), **USAGE)
    assert [one["usage"]["completion_tokens"] for one in got[:-1] if "usage" in one] == [3]
    assert got[-1] == b"[DONE]"


def test_the_usage_is_the_running_one_where_there_is_one(tmp_path: Path) -> None:
    stated = {"prompt_tokens": 5, "total_tokens": 7, "completion_tokens": 2}
    parts = [chunk("a ", usage={**stated, "completion_tokens": 1}), chunk("b", "stop", usage=stated)]
    asked = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    got, _ = read(tmp_path, engine_of(parts, [None], "vllm"), **asked)
    assert got[-1] == b"[DONE]"
    assert (got[-2]["choices"], got[-2]["usage"]) == ([], stated)


@pytest.mark.parametrize("end", [[], [None]], ids=["ends", "breaks"])
def test_what_is_not_known_is_not_made_up(tmp_path: Path, end: list[Any]) -> None:
    """A backend without ids states no count; one of kind `openai` may leave `[DONE]` out."""
    got, _ = read(tmp_path, engine_of([chunk("a "), chunk("b", "stop")], end, "openai"), **USAGE)
    assert not any("usage" in one for one in got if one != b"[DONE]")
    assert (got[-1] == b"[DONE]") is (end == [None])
