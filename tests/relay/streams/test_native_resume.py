"""Chats with reasoning and tools go on by the chat endpoint of another backend, if that takes ids."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.fake_model import THINK, THOUGHT
from support.relay.parsing_model import ParsingModel, call, script
from support.relay.rig import Rig, rig

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "stream_options": {"include_usage": True},
    "messages": [{"role": "user", "content": "tell me"}],
    "tools": [TOOL],
}
OUTPUT = script(THINK, "look it up", THOUGHT, "Let me see. ", *call("weather", city="Bonn"))
IN_REASONING, IN_TEXT, IN_CALL = 8, 20, len(OUTPUT) - 4
"""Chunks before a break: the role chunk counts, and each other has one id."""


def engine(*, continues: bool = True, **more: Any) -> FakeEngine:
    return FakeEngine(ParsingModel(output=OUTPUT, continues_chats=continues, **more))


async def probed(running: Rig) -> list[object]:
    """Wait until every backend is known to continue chats, or not to; return which."""
    async with asyncio.timeout(WAIT_S):
        while None in (found := [row["continues_chats"] for row in (await running.get("/v1/backends"))["backends"]]):
            await asyncio.sleep(0.01)
    return found


@pytest.mark.parametrize("after", [IN_REASONING, IN_TEXT])
def test_a_chat_with_reasoning_and_tools_goes_on(tmp_path: Path, after: int) -> None:
    async def go() -> None:
        async with rig(tmp_path, engine(prefix="a"), engine(prefix="b", created=7)) as running:
            assert await probed(running) == [True, True]
            undisturbed = await running.direct(CHAT)
            assert undisturbed.calls.startswith('weather{"city"')
            running.fail_first(Fault("reset", after=after))
            reply = await running.read(CHAT)
            assert reply.errors == []
            assert reply.done
            assert reply.content() == undisturbed.content()
            assert len(reply.heads) == 1
            first = next(asked.json for asked in running.asked if asked.fault is not None)
            sent = next(asked.json for asked in running.asked if "kv_transfer_params" in asked.json)
            assert sent.pop("kv_transfer_params")["prompt_token_ids"]
            assert sent.pop("max_tokens") < 4096
            assert sent == first  # all that the client and the relay asked for, unchanged

    asyncio.run(go())


@pytest.mark.parametrize(
    ("continues", "after", "reason"),
    [
        ((False, False), IN_TEXT, "tools"),
        ((True, False), IN_TEXT, "tools"),
        ((True, True), IN_CALL, "a tool delta"),
    ],
)
def test_what_cannot_go_on_says_why(tmp_path: Path, continues: tuple[bool, bool], after: int, reason: str) -> None:
    """A backend that serves the reply is asked last; the first of the rig gets the first request."""

    async def go() -> None:
        engines = [engine(continues=one) for one in continues]
        async with rig(tmp_path, *engines) as running:
            assert await probed(running) == list(continues)
            stall = Fault("stall", after=after)
            running.fail_first(stall)
            reading = asyncio.create_task(running.read(CHAT))
            await asyncio.wait_for(stall.reached.wait(), WAIT_S)
            await running.caught_up()
            (row,) = (await running.get("/v1/streams"))["streams"]
            assert (row["exact_resume"], row["exact_resume_reason"]) == (False, reason)
            stall.released.set()
            assert (await reading).done

    asyncio.run(go())


def test_a_backend_that_ignores_the_ids_is_left(tmp_path: Path) -> None:
    """It did take ids when it was probed: another version has been started in its place."""

    async def go() -> None:
        source, changed, third = engine(prefix="a"), engine(prefix="b"), engine(prefix="c")
        async with rig(tmp_path, source, changed, third) as running:
            assert await probed(running) == [True, True, True]
            undisturbed = await running.direct(CHAT)
            changed.model.continues_chats = False
            for one in running.engines:
                one.fault_of = lambda asked: (
                    None if "kv_transfer_params" in asked.json else Fault("reset", after=IN_TEXT)
                )
            for _ in range(20):  # until the one that changed was asked to go on
                reply = await running.read(CHAT)
                assert reply.content() == undisturbed.content()
                assert reply.errors == []
                if any("kv_transfer_params" in asked.json for asked in changed.streams):
                    break
            else:
                pytest.fail("the backend was not asked to go on")
            rows = {row["name"]: row["continues_chats"] for row in (await running.get("/v1/backends"))["backends"]}
            assert rows["b"] is not True

    asyncio.run(go())
