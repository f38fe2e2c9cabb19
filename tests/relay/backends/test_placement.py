"""Where a running relay sends requests by each policy, and where a rule moves a stream. Fake engines, real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine
from support.relay.readers import Reply, read
from support.relay.rig import NO_RULES, Rig, rig

from otel_llm.relay.backends.backends import STARVING_S
from otel_llm.shared.clock import monotonic_s

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 12,
    "ignore_eos": True,
    "messages": [{"role": "user", "content": "tell me"}],
}
LONG: dict[str, Any] = {**CHAT, "messages": [{"role": "user", "content": "tell me a long story " * 40}]}
SLOW_S = 0.15
"""How far apart a slow engine's tokens are, at least: more than the class `quick` allows, less than `slow`."""
SLO = """\
version: 1
default: quick
classes:
  quick: {reading_speed: 0.01, deadline: {policy: dslo, ttft: 60s, tpot: 100ms}}
  slow: {reading_speed: 0.01, deadline: {policy: ttft_tbt, ttft: 60s, tbt: 30s}}
  batch: {reading_speed: 0.01, deadline: {policy: e2e, e2e: 60s}}
  hasty: {reading_speed: 1000, deadline: {policy: dslo, ttft: 60s, tpot: 10s}}
"""
RULES = """\
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: Stalled
    when: "slo_class == 'slow' && tokens == 3 && gap_seconds > 0.03"
    actions:
    - migrate: {to: safest}
      mode: enforce
      ttl: 5s
      budget: {per_request: 1}
"""


class Fleet:
    """A relay before engines that send a chunk of each stream on command, and clients that read."""

    def __init__(self, running: Rig) -> None:
        self.rig = running
        self.engines = dict(zip("abcdef", running.engines, strict=False))
        self.reading: list[asyncio.Task[Reply]] = []

    async def request(self, body: dict[str, Any] = CHAT, slo: str = "quick") -> str:
        """Send a request; return which engine has it."""
        before = {name: len(engine.streams) for name, engine in self.engines.items()}
        headers = {"x-slo-class": slo}
        coming = read(self.rig.session, self.rig.url + "/v1", body, headers=headers)
        self.reading.append(asyncio.create_task(coming))
        await self.until(lambda: any(len(self.engines[name].streams) > count for name, count in before.items()))
        (name,) = [name for name, count in before.items() if len(self.engines[name].streams) > count]
        return name

    async def asked(self, count: int, slo: str = "quick") -> str:
        return "".join([await self.request(slo=slo) for _ in range(count)])

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not true():
                await asyncio.sleep(0.005)

    async def read_until(self, name: str, tokens: int) -> None:
        """Wait until the relay counts so many tokens in flight on an engine."""
        async with asyncio.timeout(WAIT_S):
            while await self.tokens(name) < tokens:
                await asyncio.sleep(0.005)

    async def tokens(self, name: str) -> int:
        rows = (await self.rig.get("/v1/backends"))["backends"]
        return int(next(row["tokens"] for row in rows if row["name"] == name))

    async def begin(self, name: str, body: dict[str, Any] = CHAT) -> None:
        """Have an engine's only stream send its role and its first token, and the relay read them."""
        engine = self.engines[name]
        await engine.step(2)
        await self.read_until(name, len(engine.model.prompt_ids(body)) + 1)

    async def walk(self, name: str, tokens: int, apart_s: float = 0.0) -> None:
        """Have an engine's only stream send tokens that are so far apart, at least."""
        for _ in range(tokens):
            before = await self.tokens(name)
            await asyncio.sleep(apart_s)
            await self.engines[name].step(1)
            await self.read_until(name, before + 1)

    def known(self, name: str, gap_s: float) -> None:
        """Let the relay know of a gap between two tokens of an engine's only stream."""
        assert self.rig.service.pool is not None
        self.rig.service.pool.backends.get(name).gaps.observe(1, gap_s, monotonic_s())

    async def starving(self) -> None:
        """Wait until a reader has nothing left to read, and placement has to count anew."""
        async with asyncio.timeout(WAIT_S):
            while not (await self.rig.get("/v1/streams"))["starving"]:
                await asyncio.sleep(0.005)
        await asyncio.sleep(2 * STARVING_S)

    async def finish(self, name: str) -> None:
        """Let an engine's streams run to their end."""
        engine = self.engines[name]
        engine.stepping = False
        await engine.step(1)
        await self.until(lambda: all(asked.ended.is_set() for asked in engine.streams))


@asynccontextmanager
async def fleet(
    folder: Path, count: int, placement: str, rules: str = NO_RULES, more: str = ""
) -> AsyncIterator[Fleet]:
    (folder / "slo.yaml").write_text(SLO)
    engines = [FakeEngine(stepping=True) for _ in range(count)]
    settings = f"placement: {placement}\n{more}"
    async with rig(folder, *engines, rules=rules, settings=settings, slo=folder / "slo.yaml") as running:
        found = Fleet(running)
        yield found
        for task in found.reading:
            task.cancel()
        await asyncio.gather(*found.reading, return_exceptions=True)


def test_spread_alternates_and_round_robin_takes_turns(tmp_path: Path) -> None:
    async def go() -> None:
        async with fleet(tmp_path, 3, "spread") as found:
            assert await found.asked(6) == "abcabc"
            await found.finish("b")
            assert await found.asked(2) == "bb"
        async with fleet(tmp_path, 3, "round_robin") as found:
            assert await found.asked(4) == "abca"
            await found.finish("b")
            assert await found.asked(5) == "bcabc", "how much each has does not matter"

    asyncio.run(go())


def test_pack_fills_one_up_to_the_time_a_token_of_the_class(tmp_path: Path) -> None:
    """Nothing is known of either at first: the fullest is filled. Once it is slow, who is in a hurry goes elsewhere."""

    async def go() -> None:
        async with fleet(tmp_path, 2, "pack") as found:
            assert await found.asked(1) == "a"
            await found.begin("a")
            await found.walk("a", 4, SLOW_S)
            assert await found.asked(2, "slow") == "aa"
            assert await found.asked(2, "quick") == "bb"
            assert await found.asked(1, "slow") == "a"
            assert await found.asked(1, "batch") == "b", "no time a token is promised: the less loaded"

    asyncio.run(go())


def test_lmetric_counts_prompts_that_wait_and_the_batch(tmp_path: Path) -> None:
    async def go() -> None:
        async with fleet(tmp_path, 2, "lmetric") as found:
            assert await found.request(LONG) == "a"
            assert await found.request() == "b"
            await found.begin("b")
            assert await found.request() == "b", "s x 2 is less than (s + long) x 2"
            await found.engines["b"].step(2)
            await found.begin("a", LONG)
            assert await found.request() == "a", "its prompt is prefilled: s x 2 is less than s x 3"

    asyncio.run(go())


@pytest.mark.parametrize("placement", ["random", "power_of_two"])
def test_policies_that_draw_serve(tmp_path: Path, placement: str) -> None:
    async def go() -> None:
        async with fleet(tmp_path, 2, placement) as found:
            names = await found.asked(8)
            if placement == "power_of_two":  # of two backends both are drawn
                assert names.count("a") == names.count("b") == 4
            for name in set(names):
                await found.finish(name)
            assert all(reply.done for reply in await asyncio.gather(*found.reading))

    asyncio.run(go())


def test_safest_avoids_a_backend_with_a_starving_stream(tmp_path: Path) -> None:
    """b is the slower one by far, and is taken all the same as long as a reader of a has nothing to read."""

    async def go() -> None:
        async with fleet(tmp_path, 2, "safest") as found:
            assert await found.asked(1, "slow") == "a"
            assert await found.asked(1, "slow") == "b"
            await found.begin("a")
            await found.begin("b")
            await found.walk("a", 4)
            found.known("b", 10.0)
            assert await found.asked(1) == "a", "it is faster"
            assert await found.request(slo="hasty") == "a"
            await found.engines["a"].step(2)  # the hasty reader has read that within ms
            await found.starving()
            assert await found.asked(2) == "bb"
            found.reading[3].cancel()  # the hasty reader leaves
            await found.until(lambda: found.engines["a"].streams[2].ended.is_set())
            await asyncio.sleep(2 * STARVING_S)
            assert await found.asked(1) == "a"

    asyncio.run(go())


def test_a_rule_moves_a_stream_to_the_safest_and_records_why(tmp_path: Path) -> None:
    """a stalls; a reader of b starves, and c has nothing: the stream goes to c, though nothing is known of it."""

    async def go() -> None:
        async with fleet(tmp_path, 3, "least_load", rules=RULES) as found:
            assert await found.request(slo="slow") == "a"
            assert await found.request(slo="hasty") == "b"
            await found.begin("b")
            await found.starving()
            await found.engines["a"].step(4)
            await found.until(lambda: len(found.engines["c"].streams) == 1)
            await found.finish("c")
            assert (await found.reading[0]).done
            await found.until(lambda: bool(found.rig.decisions()))
        (record,) = [one for one in found.rig.decisions() if one["action"] == "migrate"]
        assert (record["outcome"], record["from"], record["to"]) == ("done", "a", "c")
        prompt = len(found.engines["b"].model.prompt_ids(CHAT))
        assert record["candidates"] == [
            {
                "instance": "c",
                "score": {"starving": 0.0, "iteration_seconds": 0.0, "tokens": 0.0, "streams": 0.0},
                "reason": "0 streams starving; nothing is known of its iterations, taken to meet 30000 ms a token; "
                "0 tokens of 0 streams in flight",
            },
            {
                "instance": "b",
                "score": {"starving": 1.0, "iteration_seconds": 0.0, "tokens": prompt + 1.0, "streams": 1.0},
                "reason": "1 stream starving; nothing is known of its iterations, taken to meet 30000 ms a token; "
                f"{prompt + 1} tokens of 1 stream in flight",
            },
        ]

    asyncio.run(go())


def test_streams_that_are_moved_at_one_instant_do_not_all_go_to_one_backend(tmp_path: Path) -> None:
    async def go() -> None:
        async with fleet(tmp_path, 3, "least_load", more="drain: {migrate: true}\n") as found:
            for name in "bc":
                assert await drain(found, name, "drain")
            assert await found.asked(5) == "aaaaa"
            await found.engines["a"].step(3)
            assert await drain(found, "b", "undrain")
            assert await found.asked(1) == "b"
            assert await drain(found, "c", "undrain")
            assert await drain(found, "a", "drain")
            await found.until(lambda: sum(len(found.engines[name].streams) for name in "bc") == 6)
            assert [len(found.engines[name].streams) for name in "abc"] == [5, 3, 3], "not all of them to c"

    asyncio.run(go())


async def drain(found: Fleet, name: str, verb: str) -> bool:
    async with found.rig.session.post(f"{found.rig.web}/v1/backends/{name}/{verb}", json={}) as response:
        return response.status == 200
