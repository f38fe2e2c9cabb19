"""A collector's rule drains a backend of a relay, end to end: real processes, once, over a restart of either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest
from support.actions.acting import acting, records
from support.commands import Collector, collector
from support.patience import WAIT_S
from support.ports import free_ports
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.process import Relay, relay
from support.relay.readers import Reply, read
from support.relay.signed_actions import SETTINGS, write_secret

T = TypeVar("T")
RULES = """\
version: 1
groups:
- name: g
  scope: instance
  rules:
  - rule: ReadersOfOneWait
    when: 'instance == "a" && measured_at == "relay" && starving > 0'
    keep_firing_for: 10m
    actions:
    - drain: {}
      mode: enforce
      ttl: 20s
  - rule: Canary
    when: 'streams > 3'
    actions:
    - alert: {name: Canary, by: [instance]}
"""
"""The first keeps firing while a process is away, from which nothing is heard. The second shows that rules are
evaluated: it fires where a test begins streams for it."""
CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 20,
    "ignore_eos": True,
    "messages": [{"role": "user", "content": "tell me"}],
}
STAYS = {**CHAT, "min_tokens": 3}
"""Cannot be resumed elsewhere: it goes on waiting, and the rule goes on firing."""


@dataclass
class World:
    """Two engines, a relay in front of them and a collector that hears of its streams; both can be started again."""

    folder: Path
    engines: tuple[FakeEngine, FakeEngine]
    session: aiohttp.ClientSession
    stack: AsyncExitStack
    web_port: int
    otlp_port: int
    relay: Relay | None = None
    collector: Collector | None = None
    readers: list[asyncio.Task[Reply]] = field(default_factory=list)

    @property
    def web(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    async def start_relay(self) -> None:
        backends = [f"--backend={name}={engine.url}" for name, engine in zip("ab", self.engines, strict=True)]
        files = ("--config", self.folder / "relay.yaml", "--web", f"127.0.0.1:{self.web_port}")
        receiver = f"http://127.0.0.1:{self.otlp_port}"
        more = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        self.relay = await self._entered(relay(*backends, *files, more=more))
        await self.until("both backends are open", self._open)

    async def start_collector(self) -> None:
        engine = f"kind: relay, instances: {{'*': '{self.web}'}}, secret_file: relay.secret"
        arguments = acting(self.folder, RULES, f"actions: {{engines: {{front: {{{engine}}}}}}}\n")
        port = ("--http", f"127.0.0.1:{self.otlp_port}")
        self.collector = await self._entered(collector(self.folder, *arguments, *port))

    async def kill(self, one: Relay | Collector | None) -> None:
        """Kill a process, as `kill -9` does."""
        assert one is not None
        one.process.kill()
        await asyncio.to_thread(one.process.wait)

    async def drain(self, name: str, *, to: str = "drain") -> None:
        async with self.session.post(f"{self.web}/v1/backends/{name}/{to}", json={}) as response:
            assert response.status == 200

    async def draining(self) -> list[str]:
        return [one["name"] for one in await self._backends() if one["draining"]]

    async def drains(self) -> dict[str, float]:
        """Return what the relay answered to drains, and how often."""
        async with self.session.get(f"{self.web}/metrics") as response:
            lines = (await response.text()).splitlines()
        name = 'otel_llm_relay_received_actions_total{action="drain",result="'
        return {
            line.removeprefix(name).partition('"')[0]: float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(name)
        }

    def read(self, body: dict[str, Any]) -> asyncio.Task[Reply]:
        assert self.relay is not None
        reader = asyncio.create_task(read(self.session, self.relay.url + "/v1", body))
        self.readers.append(reader)
        return reader

    async def canary(self) -> None:
        """Begin streams that stall, so that a rule fires which has not fired before."""
        before = len(records(self.folder, "alert"))
        for engine in self.engines:
            engine.fault_of = lambda asked: Fault("stall", after=2)
        for _ in range(10):
            self.read(CHAT)
        await self.until("the canary fires", lambda: len(records(self.folder, "alert")) > before)

    async def until(self, what: str, holds: Callable[[], Any]) -> None:
        """Poll until something holds; `holds` may be async."""
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    found = holds()
                    if await found if asyncio.iscoroutine(found) else found:
                        return
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"not within {WAIT_S} s: {what}") from None

    async def _backends(self) -> list[dict[str, Any]]:
        async with self.session.get(f"{self.web}/v1/backends") as response:
            found: list[dict[str, Any]] = (await response.json())["backends"]
            return found

    async def _open(self) -> bool:
        return all(one["open"] and one["models"] for one in await self._backends())

    async def _entered(self, made: AbstractContextManager[T]) -> T:
        found = await asyncio.to_thread(made.__enter__)
        self.stack.push_async_callback(asyncio.to_thread, made.__exit__, None, None, None)
        return found


@asynccontextmanager
async def drained(folder: Path) -> AsyncIterator[World]:
    """Let a backend stall, and the collector's rule drain it; one of its two streams goes on elsewhere, whole.

    The other backend is there before the first token: readers starve soon behind that, and a stream that is drained
    while there is no other backend stays.
    """
    write_secret(folder)
    settings = "version: 1\ndrain: {migrate: true}\nhealth: {timeout: 20s}\n"  # the engines are in this busy process
    (folder / "relay.yaml").write_text(settings + SETTINGS)
    async with AsyncExitStack() as stack:
        engines = (FakeEngine(), FakeEngine())
        for engine in engines:
            await stack.enter_async_context(engine)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        web_port, otlp_port = free_ports(2)
        world = World(folder, engines, session, stack, web_port, otlp_port)
        await world.start_collector()
        await world.start_relay()
        undisturbed = await read(session, engines[1].url + "/v1", CHAT)
        stalls = [Fault("stall", after=9), Fault("stall", after=9)]
        engines[0].next_fault(*stalls)
        engines[0].stepping = True
        await world.drain("b")
        moved = world.read(CHAT)
        world.read(STAYS)
        await engines[0].wait_for(lambda: len(engines[0].streams) == len(stalls), WAIT_S)
        await world.drain("b", to="undrain")
        engines[0].stepping = False
        await engines[0].step()
        for fault in stalls:
            await asyncio.wait_for(fault.reached.wait(), WAIT_S)
        reply = await asyncio.wait_for(moved, WAIT_S)
        assert (reply.done, reply.errors, reply.content()) == (True, [], undisturbed.content())
        assert await world.draining() == ["a"]
        await world.until("the drain is recorded", lambda: records(folder, "drain"))
        try:
            yield world
            (record,) = records(folder, "drain")
            assert (record["outcome"], record["mode"], record["rule"]) == ("done", "enforce", "ReadersOfOneWait")
            assert (record["labels"]["instance"], record["labels"]["measured_at"]) == ("a", "relay")
        finally:
            for reader in world.readers:
                reader.cancel()
            await asyncio.gather(*world.readers, return_exceptions=True)


@pytest.mark.essential
def test_once_over_a_restart_of_the_collector(tmp_path: Path) -> None:
    async def go() -> None:
        async with drained(tmp_path) as world:
            assert await world.drains() == {"done": 1}
            await world.kill(world.collector)
            await world.start_collector()
            await world.canary()
            assert await world.drains() == {"done": 1}
            assert await world.draining() == ["a"]

    asyncio.run(go())


def test_once_over_a_restart_of_the_relay_which_forgets_that_a_backend_is_drained(tmp_path: Path) -> None:
    async def go() -> None:
        async with drained(tmp_path) as world:
            await world.kill(world.relay)
            await world.start_relay()
            await world.canary()
            assert await world.drains() == {}
            assert await world.draining() == []

    asyncio.run(go())
