"""`placement: polyserve` in a running relay: tiers, requests that wait, and what becomes free. Fake engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.queued_clients import QueuedClients
from support.relay.readers import read
from support.relay.rig import NO_RULES, Rig, rig

from otel_llm.config.errors import StartError
from otel_llm.relay.settings import Failover

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 30,
    "ignore_eos": True,
    "messages": [{"role": "user", "content": "tell me"}],
}
PROFILE = """\
version: 1
model: fake
accelerator: none
engine: a stand-in
kv_tokens: 100000
max_batch: 64
max_batched_tokens: 8192
source: a test
linear: {base: 10ms, per_decode: 2ms}
"""
"""Five streams at 20 ms a token."""
SLO = """\
version: 1
default: patient
classes:
  quick: {reading_speed: 50, deadline: {policy: dslo, ttft: 60s, tpot: 20ms}}
  patient: {reading_speed: 50, deadline: {policy: ttft_tbt, ttft: 60s, tbt: 5s}}
  batch: {reading_speed: 50, deadline: {policy: e2e, e2e: 60s}}
"""
FULL = 5


@asynccontextmanager
async def fleet(folder: Path, *engines: FakeEngine, more: str = "", **how: Any) -> AsyncIterator[Rig]:
    """Run a relay by polyserve in front of engines, which a test lets go on."""
    (folder / "small.yaml").write_text(PROFILE)
    (folder / "slo.yaml").write_text(SLO)
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        named = zip("fg", engines, strict=False)
        backends = "".join(f"  {name}: {{url: '{one.url}', profile: ./small.yaml}}\n" for name, one in named)
        settings = f"placement: polyserve\nbackends:\n{backends}{more}"
        running = await stack.enter_async_context(rig(folder, settings=settings, slo=folder / "slo.yaml", **how))
        running.engines = engines
        yield running


class Clients(QueuedClients):
    """The readers of a relay's replies."""

    async def request(self, slo: str, body: dict[str, Any] = CHAT) -> FakeEngine | None:
        """Send a request; return the engine that has it, None if it waits."""
        before, waited = [len(one.streams) for one in self.rig.engines], await self.waiting()
        self.send(slo, body)
        async with asyncio.timeout(WAIT_S):
            while True:
                for engine, count in zip(self.rig.engines, before, strict=True):
                    if len(engine.streams) > count:
                        return engine
                if await self.waiting() > waited:
                    return None
                await asyncio.sleep(0.005)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.005)


def test_two_tiers_have_an_engine_each_and_a_full_tier_holds_its_requests(tmp_path: Path) -> None:
    async def go() -> None:
        first, second = FakeEngine(stepping=True), FakeEngine(stepping=True)
        async with fleet(tmp_path, first, second) as running:
            clients = Clients(running)
            quick = [await clients.request("quick") for _ in range(FULL)]
            patient = [await clients.request("patient") for _ in range(FULL + 2)]
            assert len(set(quick)) == 1
            assert set(patient) == {first, second} - set(quick), "the tighter tier is full"
            assert await clients.request("quick") is None, (
                "it waits, though the other engine could take it in looser time"
            )
            held = next(engine for engine in (first, second) if engine in quick)
            assert len(held.streams) == FULL
            replies = await clients.finish()
            assert all(reply.done for reply in replies)
            assert len(held.streams) == FULL + 1
            metrics = await running.metrics()
            assert metrics["otel_llm_relay_queue"] == 0
            rows = (await running.get("/v1/backends"))["backends"]
            assert [(row["streams"], row["tokens"]) for row in rows] == [(0, 0), (0, 0)]
        requests = [dict(request.attributes or {}) for request in running.recorded.requests()]
        waits: list[Any] = [request["gen_ai.latency.time_in_queue"] for request in requests]
        assert max(waits) > 0.0
        assert len(waits) == 2 * FULL + 3

    asyncio.run(go())


def test_a_request_that_a_client_gives_up_makes_room(tmp_path: Path) -> None:
    async def go() -> None:
        engine = FakeEngine(stepping=True)
        async with fleet(tmp_path, engine) as running:
            clients = Clients(running)
            for _ in range(FULL):
                assert await clients.request("quick") is engine
            assert await clients.request("quick") is None
            clients.reading.pop(0).cancel()
            await until(lambda: len(engine.streams) == FULL + 1)
            assert all(reply.done for reply in await clients.finish())

    asyncio.run(go())


@pytest.mark.parametrize("fault", [None, Fault("refuse"), Fault("status")], ids=["served", "broken", "refused"])
def test_an_engine_leaves_its_tier_with_the_last_request_of_it(tmp_path: Path, fault: Fault | None) -> None:
    """Eight of the looser tier are too many for the tighter one: 26 ms an iteration."""

    async def go() -> None:
        engine = FakeEngine()
        async with fleet(tmp_path, engine, failover=Failover(connect_retries=0)) as running:
            if fault is not None:
                engine.next_fault(fault)
            headers = {"x-slo-class": "quick"}
            reply = await read(running.session, running.url + "/v1", CHAT, headers=headers)
            assert reply.done is (fault is None)
            engine.stepping = True
            clients = Clients(running)
            for _ in range(FULL + 3):
                assert await clients.request("patient") is engine
            assert all(reply.done for reply in await clients.finish())

    asyncio.run(go())


def test_best_effort_waits_for_the_promised_ones(tmp_path: Path) -> None:
    async def go() -> None:
        engine = FakeEngine(stepping=True)
        async with fleet(tmp_path, engine, more="queue: {in_flight: 1}\n") as running:
            clients = Clients(running)
            for slo, tokens in (("quick", 5), ("batch", 6), ("quick", 7), ("patient", 8)):
                await clients.request(slo, {**CHAT, "max_tokens": tokens})
            assert all(reply.done for reply in await clients.finish())
            assert [asked.json["max_tokens"] for asked in engine.streams] == [5, 7, 8, 6]

    asyncio.run(go())


def test_a_backend_that_fails_before_its_first_token_frees_its_place_in_the_tier(tmp_path: Path) -> None:
    async def go() -> None:
        engine = FakeEngine(stepping=True)
        none = Failover(connect_retries=0)
        async with fleet(tmp_path, engine, failover=none) as running:
            clients = Clients(running)
            engine.next_fault(*(Fault("status", status=429) for _ in range(3 * FULL)))
            statuses = [(await running.read(CHAT)).status for _ in range(3 * FULL)]
            assert statuses == [429] * 3 * FULL
            for _ in range(FULL):
                assert await clients.request("quick") is engine, "none of those that failed is counted"
            assert all(reply.done for reply in await clients.finish())

    asyncio.run(go())


def test_what_is_not_owned_and_what_fails_over_goes_by_load(tmp_path: Path) -> None:
    async def go() -> None:
        engines = FakeEngine(), FakeEngine()
        async with fleet(tmp_path, *engines) as running:
            async with running.session.get(running.url + "/v1/models") as response:
                assert response.status == 200
            running.fail_first(Fault("reset", after=9))
            reply = await running.read(CHAT)
            assert reply.done
            assert len(running.asked) == 2

    asyncio.run(go())


def test_without_a_promised_pace_it_is_refused_with_the_remedy(tmp_path: Path) -> None:
    async def go() -> None:
        (tmp_path / "e2e.yaml").write_text(
            "version: 1\ndefault: b\nclasses:\n  b: {deadline: {policy: e2e, e2e: 60s}}\n"
        )
        (tmp_path / "small.yaml").write_text(PROFILE)
        settings = "placement: polyserve\nbackends: {f: {url: 'http://127.0.0.1:9', profile: ./small.yaml}}\n"
        async with rig(tmp_path, settings=settings, slo=tmp_path / "e2e.yaml", rules=NO_RULES):
            pass

    with pytest.raises(StartError, match="give a class of --slo a deadline of another policy than e2e"):
        asyncio.run(go())
