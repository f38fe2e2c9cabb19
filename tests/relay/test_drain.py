"""What a drain does to the streams that run: they stay, or are moved if the settings say so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.patience import WAIT_S
from support.relay.fake_engine import EngineRequest, FakeEngine, Fault
from support.relay.rig import rig

from otel_llm.config.errors import StartError
from otel_llm.shared.web.address import Address, listen

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 20,
    "ignore_eos": True,
    "messages": [{"role": "user", "content": "tell me"}],
}


@pytest.mark.parametrize("body", [CHAT, {**CHAT, "min_tokens": 3}], ids=["eligible", "not"])
@pytest.mark.parametrize("after", [0, 9], ids=["before the first token", "behind it"])
@pytest.mark.parametrize("migrate", [True, False])
def test_a_drain(tmp_path: Path, migrate: bool, after: int, body: dict[str, Any]) -> None:
    moves = migrate and (not after or body is CHAT)

    async def go() -> None:
        settings = "drain: {migrate: true}\n" if migrate else ""
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=settings) as running:
            undisturbed = await running.direct(body)
            stalls = Fault("stall", after=after)
            running.fail_first(stalls)
            reading = asyncio.create_task(running.read(body))
            await asyncio.wait_for(stalls.reached.wait(), WAIT_S)
            source = "a" if any(one.fault is stalls for one in running.engines[0].streams) else "b"
            async with asyncio.timeout(WAIT_S):
                while not (await running.get("/v1/streams"))["streams"]:
                    await asyncio.sleep(0.005)
            await running.caught_up()
            async with running.session.post(f"{running.web}/v1/backends/{source}/drain", json={}) as response:
                assert response.status == 200
            if not moves:
                stalls.released.set()
            reply = await reading
            assert reply.errors == []
            assert reply.content() == undisturbed.content()
            assert reply.done
        (request,) = running.recorded.requests()
        found = [dict(event.attributes or {}) for event in request.events if event.name == "otel_llm.migrated"]
        assert [(event["from"], event["reason"]) for event in found] == ([(source, "drain")] if moves else [])

    asyncio.run(go())


def test_a_drained_source_goes_on_if_the_destination_is_silent(tmp_path: Path) -> None:
    """The move is decisive, but the reader does not wait for a destination beside a source that has text."""
    settings = "drain: {migrate: true}\nmove: {start: 50ms}\nfailover: {first_byte: 1h}\n"

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(rate=50), FakeEngine(rate=50), settings=settings) as running:
            undisturbed = await running.direct(CHAT)
            for engine in running.engines:
                engine.asked.clear()
                engine.fault_of = lambda asked: Fault("slow_prefill") if "prompt" in asked.json else None
            reading = asyncio.create_task(running.read(CHAT))
            async with asyncio.timeout(WAIT_S):
                while not running.asked or running.asked[0].chunks_sent < 4:
                    await asyncio.sleep(0.005)
            source = "a" if running.engines[0].streams else "b"
            async with running.session.post(f"{running.web}/v1/backends/{source}/drain", json={}) as response:
                assert response.status == 200
            reply = await reading
            assert (reply.errors, reply.done) == ([], True)
            assert reply.content() == undisturbed.content()
            assert len(running.asked) > 1, "a destination was asked"

    asyncio.run(go())


def test_a_drain_moves_a_stream_to_a_destination_that_starts_late(tmp_path: Path) -> None:
    """The source has a token within each start limit; every move that it refutes gives the destination more time."""
    settings = "drain: {migrate: true}\nmove: {start: 100ms}\n"

    def late(asked: EngineRequest) -> Fault | None:
        if "prompt" not in asked.json:
            return None
        fault = Fault("slow_prefill")
        asyncio.get_running_loop().call_later(0.4, fault.released.set)
        return fault

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(rate=20), FakeEngine(rate=20), settings=settings) as running:
            for engine in running.engines:
                engine.fault_of = late
            reading = asyncio.create_task(running.read({**CHAT, "max_tokens": 1000}))
            async with asyncio.timeout(WAIT_S):
                while not running.asked or running.asked[0].chunks_sent < 4:
                    await asyncio.sleep(0.005)
                source = "a" if running.engines[0].streams else "b"
                async with running.session.post(f"{running.web}/v1/backends/{source}/drain", json={}) as response:
                    assert response.status == 200
                while (await running.get("/v1/streams"))["streams"][0]["instance"] == source:
                    await asyncio.sleep(0.01)
            reading.cancel()

    asyncio.run(go())


def test_a_relay_that_stops_leaves_both_ports_to_the_next_at_once(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            stalls = Fault("stall", after=4)
            running.fail_first(stalls)
            reading = asyncio.create_task(running.read(CHAT))
            await asyncio.wait_for(stalls.reached.wait(), WAIT_S)
            running.service.stop.set()
            for url in (running.url, running.web):
                at = Address("127.0.0.1", urlsplit(url).port or 0)
                async with asyncio.timeout(WAIT_S):
                    while True:
                        try:
                            listen(at, "--listen").close()
                        except StartError:
                            await asyncio.sleep(0.01)
                        else:
                            break
            assert not reading.done()
            stalls.released.set()
            assert (await reading).done

    asyncio.run(go())
