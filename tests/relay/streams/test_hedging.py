"""A backend that is late with its first token: another one is asked beside it, and whichever speaks first serves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine, Fault, FaultKind
from support.relay.rig import Rig, at_rest, rig

from otel_llm.relay.backends.backend import Backend
from otel_llm.relay.backends.hedge_budget import MOST_CREDIT, HedgeBudget

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 12,
    "ignore_eos": True,
    "messages": [{"role": "user", "content": "x"}],
}
SOON = "failover: {hedge_after: 300ms, hedge_share: 1}\n"
NEVER = "failover: {first_byte: 50ms, hedge_share: 0}\n"
LATE: tuple[FaultKind, ...] = ("silent", "slow_prefill")
"""A backend that is late before its headers, or behind them."""


async def until(true: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.005)


def backend_of(running: Rig, name: str) -> Backend:
    assert running.service.pool is not None
    return running.service.pool.backends.get(name)


async def hedges(running: Rig) -> dict[str, float]:
    """Return the counts of hedges by outcome, without those that are 0."""
    name = 'otel_llm_relay_hedges_total{outcome="'
    found = await running.metrics()
    return {key.removeprefix(name)[:-2]: v for key, v in found.items() if key.startswith(name) and v}


async def begun(running: Rig, *faults: Fault) -> asyncio.Task[Any]:
    """Ask for a reply whose backends have these faults, and wait until the first of them has it."""
    running.fail_first(*faults)
    reading = asyncio.create_task(running.read(CHAT))
    await faults[0].reached.wait()
    return reading


async def all_ended(running: Rig) -> None:
    for asked in running.asked:
        await asyncio.wait_for(asked.ended.wait(), WAIT_S)
    assert running.service.pool is not None
    pool = running.service.pool
    await until(lambda: all((one.streams, one.tokens, one.waiting_tokens) == (0, 0, 0) for one in pool.backends))


# The budget.


def test_hedges_are_one_and_then_a_share_of_the_requests() -> None:
    budget = HedgeBudget(0.05)
    taken = 0
    for requests in range(1, 1001):
        budget.request()
        taken += budget.take()
        assert taken <= 0.05 * requests + 1
    assert taken == 50


def test_the_budget_saves_up_for_no_overload() -> None:
    budget = HedgeBudget(0.5)
    for _ in range(1000):
        budget.request()
    assert sum(budget.take() for _ in range(1000)) == MOST_CREDIT


def test_a_share_of_nothing_is_no_hedge() -> None:
    budget = HedgeBudget(0.0)
    budget.request()
    assert not budget.take()


# A request.


@pytest.mark.parametrize("kind", LATE)
def test_the_second_serves_if_it_speaks_first(tmp_path: Path, kind: FaultKind) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=SOON) as running:
            undisturbed = await running.direct(CHAT)
            running.engines[0].asked.clear()
            reading = await begun(running, Fault(kind))
            reply = await reading
            assert (reply.text, reply.done, reply.errors, len(reply.heads)) == (undisturbed.text, True, [], 1)
            assert len(running.asked) == 2
            assert await hedges(running) == {"done": 1.0}
            await all_ended(running)
            assert [asked.closed_by_client for asked in running.asked].count(True) == 1
            assert backend_of(running, "a").healthy
            assert (await running.get("/v1/streams"))["recent"][0]["outcome"] == "completed"

    asyncio.run(go())


@pytest.mark.parametrize("kind", LATE)
def test_the_first_is_kept_and_serves_if_all_are_slow(tmp_path: Path, kind: FaultKind) -> None:
    settings = "failover: {first_byte: 300ms, hedge_after: 300ms, hedge_share: 1}\n"

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=settings) as running:
            first, second = Fault(kind), Fault(kind)
            reading = await begun(running, first, second)
            await second.reached.wait()
            await asyncio.sleep(0.4)
            first.released.set()
            reply = await reading
            assert (reply.done, reply.errors) == (True, [])
            assert len(running.asked) == 2
            assert await hedges(running) == {"refuted": 1.0}
            await all_ended(running)

    asyncio.run(go())


@pytest.mark.parametrize("kind", LATE)
def test_one_that_is_silent_is_waited_for_as_it_would_be_without_a_relay(tmp_path: Path, kind: FaultKind) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=NEVER + "health: {interval: 20ms}\n") as running:
            first = Fault(kind)
            reading = await begun(running, first)
            await asyncio.sleep(0.3)
            assert not reading.done()
            first.released.set()
            assert (await reading).done
            assert len(running.asked) == 1
            assert await hedges(running) == {}

    asyncio.run(go())


@pytest.mark.parametrize("kind", LATE)
def test_if_the_first_breaks_the_second_goes_on(tmp_path: Path, kind: FaultKind) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=SOON) as running:
            first, second = Fault(kind), Fault(kind)
            reading = await begun(running, first, second)
            await second.reached.wait()
            (engine,) = [one for one in running.engines if one.streams and one.streams[0].fault is first]
            await engine.stop()
            second.released.set()
            reply = await reading
            assert (reply.done, reply.errors) == (True, [])
            assert len(running.asked) == 2

    asyncio.run(go())


@pytest.mark.parametrize("kind", LATE)
@pytest.mark.parametrize("fails", ["status", "reset"])
def test_if_the_second_fails_the_first_goes_on(tmp_path: Path, kind: FaultKind, fails: FaultKind) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=SOON) as running:
            first = Fault(kind)
            reading = await begun(running, first, Fault(fails, status=503))
            await until(lambda: len(running.asked) == 2 and running.asked[-1].ended.is_set())
            async with asyncio.timeout(WAIT_S):
                while not await hedges(running):
                    await asyncio.sleep(0.005)
            first.released.set()
            reply = await reading
            assert (reply.done, reply.errors) == (True, [])
            assert await hedges(running) == {"failed": 1.0}

    asyncio.run(go())


@pytest.mark.parametrize("kind", LATE)
@pytest.mark.parametrize("fails", ["status", "reset"])
def test_a_third_is_asked_at_once_if_the_second_fails(tmp_path: Path, kind: FaultKind, fails: FaultKind) -> None:
    settings = "failover: {first_byte: 1h, hedge_after: 300ms, hedge_share: 0.05}\n"

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), FakeEngine(), settings=settings) as running:
            reading = await begun(running, Fault(kind), Fault(fails, status=503))
            reply = await reading
            assert (reply.done, reply.errors) == (True, [])
            assert [len(engine.streams) for engine in running.engines] == [1, 1, 1]
            assert await hedges(running) == {"done": 1.0}

    asyncio.run(go())


@pytest.mark.parametrize("kind", LATE)
def test_hedges_count_as_tries(tmp_path: Path, kind: FaultKind) -> None:
    settings = "failover: {connect_retries: 2, hedge_after: 300ms, hedge_share: 1}\n"

    async def go() -> None:
        async with rig(tmp_path, *(FakeEngine() for _ in range(4)), settings=settings) as running:
            first = Fault(kind)
            reading = await begun(running, first, Fault("status", status=503), Fault("status", status=503))
            async with asyncio.timeout(WAIT_S):
                while not await hedges(running):
                    await asyncio.sleep(0.005)
            assert await hedges(running) == {"failed": 1.0}
            first.released.set()
            assert (await reading).done
            assert len(running.asked) == 3

    asyncio.run(go())


@pytest.mark.parametrize("kind", LATE)
def test_a_third_is_asked_if_the_second_is_silent_too(tmp_path: Path, kind: FaultKind) -> None:
    """One at a time: the second is given up once there is another one; the first never."""
    settings = "failover: {first_byte: 300ms, hedge_after: 300ms, hedge_share: 1}\n"

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), FakeEngine(), settings=settings) as running:
            assert running.service.pool is not None
            running.service.pool.hedges.request()
            reading = await begun(running, Fault(kind), Fault(kind))
            reply = await reading
            assert (reply.done, reply.errors) == (True, [])
            assert [len(engine.streams) for engine in running.engines] == [1, 1, 1]
            assert await hedges(running) == {"failed": 1.0, "done": 1.0}

    asyncio.run(go())


@pytest.mark.parametrize("kind", LATE)
def test_a_client_that_leaves_ends_both(tmp_path: Path, kind: FaultKind) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=SOON) as running:
            first, second = Fault(kind), Fault(kind)
            reading = await begun(running, first, second)
            await second.reached.wait()
            reading.cancel()
            await all_ended(running)
            assert [asked.closed_by_client for asked in running.asked] == [True, True]

    asyncio.run(go())


def test_without_retries_there_is_no_hedge(tmp_path: Path) -> None:
    settings = "failover: {connect_retries: 0, hedge_after: 20ms, hedge_share: 1}\n"

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=settings) as running:
            first = Fault("slow_prefill")
            reading = await begun(running, first)
            await asyncio.sleep(0.2)
            first.released.set()
            assert (await reading).done
            assert len(running.asked) == 1

    asyncio.run(go())


def test_a_backend_is_late_after_three_times_its_own_median(tmp_path: Path) -> None:
    settings = "failover: {first_byte: 1h, hedge_share: 1}\n"

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=settings) as running:
            slow, unknown = Fault("slow_prefill"), Fault("slow_prefill")
            reading = await begun(running, unknown)
            await asyncio.sleep(0.4)
            assert len(running.asked) == 1, "nothing is known of it"
            unknown.released.set()
            assert (await reading).done
            for name in "ab":
                for _ in range(40):
                    backend_of(running, name).first_tokens.observe(3, 0.1)
            reading = await begun(running, slow)
            assert (await reading).done
            assert len(running.asked) == 3
            assert await hedges(running) == {"done": 1.0}

    asyncio.run(go())


# Without the budget: the backend is down, and this is no overload.


@pytest.mark.parametrize("kind", LATE)
def test_one_that_becomes_unhealthy_is_not_waited_for_alone(tmp_path: Path, kind: FaultKind) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=NEVER + "health: {interval: 20ms}\n") as running:
            reading = await begun(running, Fault(kind))
            await asyncio.sleep(0.2)
            assert len(running.asked) == 1
            (asked,) = [engine for engine in running.engines if engine.streams]
            asked.healthy = False
            assert (await reading).done
            assert len(running.asked) == 2

    asyncio.run(go())


def test_one_that_serves_nobody_while_others_do_is_not_waited_for_alone(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=NEVER) as running:
            reading, requests = await begun(running, Fault("silent")), 1
            while not reading.done():
                assert (await running.read(CHAT)).done
                requests += 1
                await asyncio.sleep(0.05)
            assert (await reading).done
            await all_ended(running)
            found = await hedges(running)
            assert found["done"] >= 1
            silent = sum(found.values())  # on a busy machine the others may be late, too
            assert 1 <= len(running.asked) - requests <= silent
            assert (await running.metrics())['otel_llm_relay_failovers_total{reason="silent"}'] == silent

    asyncio.run(go())


def test_an_overload_is_not_doubled(tmp_path: Path) -> None:
    settings = "failover: {first_byte: 20ms, hedge_after: 20ms, hedge_share: 0.05}\n"

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), FakeEngine(), settings=settings) as running:
            slow = Fault("slow_prefill")
            for engine in running.engines:
                engine.fault_of = lambda _asked: slow
            reading = [asyncio.create_task(running.read(CHAT)) for _ in range(40)]
            await until(lambda: len(running.asked) >= 40)
            assert await at_rest(lambda: len(running.asked)) <= 42
            slow.released.set()
            assert all(reply.done for reply in await asyncio.gather(*reading))
            assert len(running.asked) <= 42

    asyncio.run(go())
