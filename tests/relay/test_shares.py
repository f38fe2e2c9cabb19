"""One client leaves room to the others, in streams, in the queue and on the page; and names the classes it may."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.rig import Rig, rig

from otel_llm.relay.callers import Caller, Shares, caller_of
from otel_llm.shared.web.tokens import Bearer

ALICE, MALLORY = "client-alice-of-this-test", "client-mallory-of-this-test"
CHAT: dict[str, Any] = {"model": "fake", "max_tokens": 3, "messages": [{"role": "user", "content": "x"}]}
PATH = "/v1/chat/completions"
SLO = """\
version: 1
default: chat
classes:
  chat: {reading_speed: 5, deadline: {policy: dslo, ttft: 60s, tpot: 1s}}
  code: {reading_speed: 5, deadline: {policy: dslo, ttft: 1s, tpot: 1s}}
  batch: {reading_speed: 5, deadline: {policy: dslo, ttft: 600s, tpot: 1s}}
"""
TOKENS = "auth: {tokens_file: tokens%s}\n"


def test_an_eighth_is_left_to_others_whatever_the_amount() -> None:
    shares, mallory, alice = Shares(80), Caller("m"), Caller("a")
    assert not shares.take(mallory, 71)
    assert shares.take(mallory, 70)
    assert not shares.take(mallory)
    assert not shares.take(alice, 11)
    assert shares.take(alice, 10)
    assert not shares.take(alice)
    shares.give_back(mallory, 70)
    assert shares.take(alice, 60)
    shares.give_back(alice, 70)
    assert shares.taken == 0


def test_a_client_is_its_token_or_else_its_network() -> None:
    token = Bearer(b"digest", "default")
    assert caller_of("10.0.0.1", token, {}) == caller_of("10.0.0.2", token, {})
    assert caller_of("2001:db8::1", None, {}) == caller_of("2001:db8::2", None, {})
    assert caller_of("10.0.0.1", None, {}) != caller_of("10.0.0.2", None, {})


async def post(running: Rig, token: str, body: dict[str, Any], **headers: str) -> int:
    """Return the status of a request; a reply is not read."""
    given = {"Authorization": f"Bearer {token}", **headers}
    async with (
        asyncio.timeout(WAIT_S),
        running.session.post(running.url + PATH, json=body, headers=given) as response,
    ):
        return response.status


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("by", ["token", "address"])
def test_the_streams_of_one_client_leave_room(tmp_path: Path, stream: bool, by: str) -> None:
    (tmp_path / "tokens").write_text(f"{ALICE}\n{MALLORY}\n")
    body = {**CHAT, "stream": stream}

    async def go() -> None:
        async with AsyncExitStack() as stack:
            engine = FakeEngine()
            settings = "limits: {streams: 16}\n" + (TOKENS % "" if by == "token" else "")
            running = await stack.enter_async_context(rig(tmp_path, engine, settings=settings))
            running.fail_first(*[Fault("silent") for _ in range(15)])
            hold = [asyncio.create_task(post(running, MALLORY, body)) for _ in range(14)]
            await engine.wait_for(lambda: len(engine.streams) == 14)
            assert await post(running, MALLORY, body) == 429
            other = await stack.enter_async_context(
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=("127.0.0.2", 0), force_close=True))
            )
            running.session = running.session if by == "token" else other
            running.fail_first()
            assert await post(running, ALICE, body) == 200
            for one in hold:
                one.cancel()
            await asyncio.gather(*hold, return_exceptions=True)

    asyncio.run(go())


def test_a_place_goes_to_the_client_with_the_fewest(tmp_path: Path) -> None:
    """Mallory's three requests came first; of two slots the second is Alice's, and so the next one."""
    (tmp_path / "tokens").write_text(f"{ALICE}\n{MALLORY}\n")

    async def go() -> None:
        engine = FakeEngine(stepping=True)
        settings = TOKENS % "" + "queue: {in_flight: 1, max_waiting: 16}\n"
        async with rig(tmp_path, engine, settings=settings) as running:
            reading = []
            for number, token in enumerate((MALLORY, MALLORY, MALLORY, ALICE)):
                body = {**CHAT, "stream": True, "messages": [{"role": "user", "content": str(number)}]}
                reading.append(asyncio.create_task(post_whole(running, token, body)))
                await completed(running, number)
            async with asyncio.timeout(WAIT_S):
                while not all(one.done() for one in reading):
                    await engine.step(20)
                    await asyncio.sleep(0.005)
            assert [one.json["messages"][0]["content"] for one in engine.streams] == ["0", "3", "1", "2"]

    asyncio.run(go())


async def post_whole(running: Rig, token: str, body: dict[str, Any]) -> bytes:
    given = {"Authorization": f"Bearer {token}"}
    async with running.session.post(running.url + PATH, json=body, headers=given) as response:
        return await response.read()


async def completed(running: Rig, waiting: int) -> None:
    """Wait until so many requests wait, with one at the backend."""
    async with asyncio.timeout(WAIT_S):
        while (await running.metrics())["otel_llm_relay_queue"] != waiting or not running.asked:
            await asyncio.sleep(0.005)


def test_the_queue_of_one_client_leaves_room(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"{ALICE}\n{MALLORY}\n")

    async def go() -> None:
        engine = FakeEngine(stepping=True)
        settings = TOKENS % "" + "queue: {in_flight: 1, max_waiting: 8}\n"
        async with rig(tmp_path, engine, settings=settings) as running:
            body = {**CHAT, "stream": True}
            reading = [asyncio.create_task(post_whole(running, MALLORY, body)) for _ in range(8)]
            await completed(running, 7)
            assert await post(running, MALLORY, body) == 429
            reading.append(asyncio.create_task(post_whole(running, ALICE, body)))
            await completed(running, 8)
            assert await post(running, ALICE, body) == 429
            for one in reading:
                one.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    asyncio.run(go())


def test_the_viewers_of_one_client_leave_room(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"{ALICE}\n")
    (tmp_path / "operators").write_text("operator-one-of-this-test\noperator-two-of-this-test\n")

    async def go() -> None:
        settings = TOKENS % "" + "operators: {tokens_file: operators}\nlimits: {viewers: 8}\n"
        async with rig(tmp_path, FakeEngine(), settings=settings) as running, AsyncExitStack() as stack:

            async def view(token: str) -> int:
                headers = {"Authorization": f"Bearer operator-{token}-of-this-test"}
                coming = running.session.get(running.web + "/v1/events", headers=headers)
                return (await stack.enter_async_context(coming)).status

            assert [await view("one") for _ in range(8)] == [200] * 7 + [503]
            assert [await view("two") for _ in range(2)] == [200, 503]

    asyncio.run(go())


@pytest.mark.parametrize(
    ("client", "headers", "judged"),
    [
        ("a", {"x-slo-class": "code"}, "code"), ("a", {"baggage": "otel_llm.slo.class=code,k=v"}, "code"),
        ("a", {"x-slo-class": "batch"}, "chat"), ("a", {"baggage": "k=v,otel_llm.slo.class=batch"}, "chat"),
        ("a", {"baggage": "otel_llm%2Eslo%2Eclass=batch"}, "chat"), ("b", {"x-slo-class": "code"}, "chat"),
        ("a", {"X-SLO-Class": " batch "}, "chat"), ("a", {"baggage": "otel_llm.slo.class=%62atch;p=1"}, "chat"),
    ],
)  # fmt: skip
def test_a_client_names_the_classes_that_it_may(
    tmp_path: Path, client: str, headers: dict[str, str], judged: str
) -> None:
    (tmp_path / "tokens").write_text(f"a={ALICE}\nb={MALLORY}\n")
    (tmp_path / "slo.yaml").write_text(SLO)
    token = ALICE if client == "a" else MALLORY

    async def go() -> None:
        settings = TOKENS % ", classes: {a: [code]}, web: open"
        async with rig(tmp_path, FakeEngine(), settings=settings, slo=tmp_path / "slo.yaml") as running:
            given = {"Authorization": f"Bearer {token}", **headers}
            for stream in (True, False):
                body = {**CHAT, "stream": stream}
                async with running.session.post(running.url + PATH, json=body, headers=given) as response:
                    await response.read()
            (row,) = (await running.get("/v1/streams"))["recent"]
            assert row["slo_class"] == judged
            for asked in running.asked:
                sent = f"{asked.headers.get('x-slo-class')} {asked.headers.get('baggage')}"
                assert ("code" in sent) is (judged == "code")
                assert "batch" not in sent
                assert "atch" not in sent

    asyncio.run(go())
