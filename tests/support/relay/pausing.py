"""Streams of a relay that can be paused at once, and what is left when they are over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from support.patience import WAIT_S
from support.relay.fake_engine import Fault
from support.relay.readers import Reply
from support.relay.rig import Rig

from otel_llm.relay.settings import Preempt
from otel_llm.relay.splice.reply import Reply as SeamReply
from otel_llm.relay.streams.owned import Owned
from otel_llm.relay.streams.session import Session

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 40,
    "ignore_eos": True,
    "return_token_ids": True,
    "messages": [{"role": "user", "content": "tell me"}],
}
ALWAYS = Preempt(resume_runway_s=-3600.0, calm_s=0.02, spare_s=0.0, again_s=0.0)
"""Pauses whatever the reader has left, as often as asked."""
LONG = Preempt(resume_runway_s=-3600.0, calm_s=3600.0, spare_s=0.0, again_s=0.0)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.005)


def owned_of(running: Rig) -> Owned:
    owned = running.service.owned
    assert owned is not None
    return owned


async def streaming(running: Rig, chunks: int = 9, **more: Any) -> tuple[asyncio.Task[Reply], Session]:
    """Begin a reply that stalls behind so many chunks, which the relay has read."""
    stalls = Fault("stall", after=chunks)
    running.fail_first(stalls)
    reading = asyncio.create_task(running.read({**CHAT, **more}))
    await until(stalls.reached.is_set)
    await running.caught_up()
    (session,) = owned_of(running).sessions.values()
    return reading, session


def wake(running: Rig) -> None:
    """End the only pause."""
    (pause,) = owned_of(running).pauses
    pause.wake("calm")


async def counted(reply: SeamReply, ids: int) -> None:
    await until(lambda: reply.counted(0) >= ids)


async def at_rest_of(running: Rig) -> None:
    """Wait until no backend has a stream, and no stream is paused."""
    pool = running.service.pool
    assert pool is not None
    await until(lambda: not owned_of(running).sessions)
    await until(lambda: all((one.streams, one.tokens, one.waiting_tokens) == (0, 0, 0) for one in pool.backends))
    assert len(owned_of(running).pauses) == 0
