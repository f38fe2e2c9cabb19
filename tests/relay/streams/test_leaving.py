"""Without a rule: a stream whose backend is silent for too long goes on elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.rig import rig

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 20,
    "ignore_eos": True,
    "messages": [{"role": "user", "content": "tell me"}],
}


def test_a_silent_backend_is_left(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings="failover: {idle: 100ms}\n") as running:
            undisturbed = await running.direct(CHAT)
            running.fail_first(Fault("stall", after=9))
            reply = await running.read(CHAT)
            assert reply.content() == undisturbed.content()
            assert reply.done
        (request,) = running.recorded.requests()
        (event,) = request.events
        assert event.attributes is not None
        assert (event.name, event.attributes["reason"]) == ("otel_llm.migrated", "idle")

    asyncio.run(go())


def test_a_destination_that_fails_is_not_the_last_attempt(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings="failover: {idle: 100ms}\n") as running:
            undisturbed = await running.direct(CHAT)
            running.fail_first(Fault("stall", after=9), Fault("status", status=503), Fault("status", status=429))
            reply = await running.read(CHAT)
            assert reply.content() == undisturbed.content()
            assert reply.done

    asyncio.run(go())


@pytest.mark.parametrize(
    ("settings", "kind"),
    [("failover: {idle: 0s}\n", "stall"), ("failover: {idle: 200ms}\n", "keep_alive"), ("", "stall")],
    ids=["never", "comments", "default"],
)
def test_a_backend_that_is_not_silent_for_so_long_is_kept(tmp_path: Path, settings: str, kind: Any) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=settings) as running:
            stalls = Fault(kind, after=9, every_s=0.0)  # whenever the relay looks, a comment has come
            running.fail_first(stalls)
            reading = asyncio.create_task(running.read(CHAT))
            await asyncio.wait_for(stalls.reached.wait(), WAIT_S)
            await asyncio.sleep(0.6)
            assert len(running.asked) == 1
            stalls.released.set()
            assert (await reading).done

    asyncio.run(go())


def test_a_stream_that_cannot_be_resumed_stays(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings="failover: {idle: 50ms}\n") as running:
            stalls = Fault("stall", after=9)
            running.fail_first(stalls)
            reading = asyncio.create_task(running.read({**CHAT, "min_tokens": 3}))
            await asyncio.wait_for(stalls.reached.wait(), WAIT_S)
            await asyncio.sleep(0.4)
            stalls.released.set()
            reply = await reading
            assert reply.done
            assert reply.errors == []
            assert len(running.asked) == 1

    asyncio.run(go())
