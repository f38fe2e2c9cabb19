"""A preempted stream: its backend is left, its reader reads on, and the reply goes on before the text is used up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.patience import WAIT_S
from support.relay.fake_engine import EngineRequest, FakeEngine, Fault
from support.relay.fake_model import FakeModel
from support.relay.pausing import owned_of, wake
from support.relay.readers import Reply, read
from support.relay.rig import Rig, at_rest, rig

from otel_llm.relay.settings import Preempt

TOKENS = 330
CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": TOKENS,
    "ignore_eos": True,
    "return_token_ids": True,
    "stream_options": {"include_usage": True},
    "messages": [{"role": "user", "content": "tell me"}],
}
ENOUGH = 300
"""Chunks of a chat behind which its reader (5 tokens/s) has a minute left; a pause needs 3 s."""
SHORT = Preempt(calm_s=0.05)
LONG = Preempt(calm_s=3600.0)
STAYS = Preempt(resume_runway_s=-3600.0, calm_s=3600.0)
"""Goes on when a test says so."""
ALWAYS = Preempt(resume_runway_s=-3600.0, calm_s=0.02, spare_s=0.0, again_s=0.0)
"""Pauses whatever the reader has left, as often as asked."""


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.005)


async def streaming(running: Rig, chunks: int, body: dict[str, Any] | None = None) -> asyncio.Task[Reply]:
    """Begin a reply and let so many of its chunks reach the relay."""
    reading = asyncio.create_task(running.read(CHAT if body is None else body))
    await until(lambda: any(not asked.ended.is_set() for asked in running.asked))
    for engine in running.engines:
        await engine.step(chunks)
    await seen(running, chunks - 2)
    return reading


async def seen(running: Rig, tokens: int) -> None:
    """Wait until the relay has read as many tokens of a stream."""
    async with asyncio.timeout(WAIT_S):
        while not any(row["tokens"] >= tokens for row in (await running.get("/v1/streams"))["streams"]):
            await asyncio.sleep(0.005)


async def release(running: Rig, reading: asyncio.Task[Reply]) -> Reply:
    """Let all backends go on to the end of a reply."""
    while not reading.done():
        for engine in running.engines:
            await engine.step(5)
        await asyncio.sleep(0.005)
    return await reading


def other(name: str) -> str:
    return "b" if name == "a" else "a"


def test_a_paused_stream_goes_on_and_its_reader_has_the_undisturbed_reply(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(stepping=True), preempt=SHORT) as running:
            plain = FakeEngine()
            async with plain:
                running.engines = [*running.engines, plain]
                undisturbed = await running.direct(CHAT, 1)
                running.engines = running.engines[:1]
            reading = await streaming(running, ENOUGH)
            outcome, detail = await running.preempt("a")
            assert outcome == "done", detail
            (first,) = running.asked
            await until(lambda: first.closed_by_client)
            await until(lambda: len(running.asked) == 2)
            reply = await release(running, reading)
            assert reply.content() == undisturbed.content()
            assert reply.done
            assert len(reply.heads) == 1
            metrics = await running.metrics()
            assert metrics["otel_llm_relay_preempted_total"] == 1
            assert metrics["otel_llm_relay_paused"] == 0
            assert metrics['otel_llm_relay_streams_in_flight{instance="a"}'] == 0
        (request,) = running.recorded.requests()
        paused, resumed = request.events
        assert (paused.name, paused.attributes) == ("otel_llm.paused", {"from": "a", "rule": "Overload"})
        assert resumed.name == "otel_llm.resumed"
        assert resumed.attributes is not None
        carried = resumed.attributes["tokens_carried"]
        assert isinstance(carried, int)
        assert 0 < carried < ENOUGH
        assert (resumed.attributes["to"], resumed.attributes["reason"]) == ("a", "calm")
        assert request.attributes is not None
        assert "otel_llm.relay.migrations" not in request.attributes

    asyncio.run(go())


def test_the_reader_reads_on_until_less_than_two_seconds_are_left(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(stepping=True), preempt=LONG) as running:
            reading = await streaming(running, 40)
            assert (await running.preempt("a"))[0] == "done"
            (row,) = (await running.get("/v1/streams"))["streams"]
            assert row["paused"] is True
            (session,) = owned_of(running).sessions.values()
            left_s: list[float | None] = []

            def noted(_asked: EngineRequest) -> None:
                left_s.append(session.recorded.runway_s)

            running.engines[0].fault_of = noted
            assert len(running.asked) == 1
            await until(lambda: bool(left_s))
            assert left_s[0] is not None
            assert left_s[0] < LONG.resume_runway_s, "the reader reads on meanwhile"
            await release(running, reading)
        (request,) = running.recorded.requests()
        resumed = request.events[1]
        assert resumed.attributes is not None
        assert resumed.attributes["reason"] == "runway"

    asyncio.run(go())


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(pauses=[3, 9, 18, 3], per_chunk=1, chat=True, ids=True, backends=2)  # paused again before it has text
@given(
    pauses=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    per_chunk=st.integers(1, 4),
    chat=st.booleans(),
    ids=st.booleans(),
    backends=st.integers(1, 2),
)
def test_pauses_at_any_instant_leave_the_reply_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, pauses: list[int], per_chunk: int, chat: bool, ids: bool, backends: int
) -> None:
    """`pauses`: how many chunks come before each pause; those behind the end, and in the race with it, are refused."""

    async def go() -> None:
        body = {**CHAT, "return_token_ids": ids, "max_tokens": 60}
        if not chat:
            body["prompt"] = body.pop("messages")[0]["content"]
        engines = [FakeEngine(FakeModel(stream_interval=per_chunk), stepping=True) for _ in range(backends)]
        async with (
            FakeEngine(FakeModel(stream_interval=per_chunk)) as plain,
            rig(tmp_path_factory.mktemp("pauses"), *engines, preempt=ALWAYS) as running,
        ):
            running.engines = [plain]
            undisturbed = await running.direct(body)
            running.engines = engines
            reading = asyncio.create_task(running.read(body))
            done = 0
            for chunks in pauses:
                await until(lambda: reading.done() or any(not asked.ended.is_set() for asked in running.asked))
                for engine in engines:
                    await engine.step(chunks)
                for name in "ab"[:backends]:
                    done += (await running.preempt(name))[0] == "done"
            reply = await release(running, reading)
            assert reply.errors == []
            assert reply.content() == undisturbed.content()
            assert reply.done
            assert len(reply.heads) == 1
            metrics = await running.metrics()
            assert metrics["otel_llm_relay_preempted_total"] == done
            assert metrics["otel_llm_relay_paused"] == 0
        (request,) = running.recorded.requests()
        names = [event.name for event in request.events]
        assert names == ["otel_llm.paused", "otel_llm.resumed"] * done

    asyncio.run(go())


def test_a_client_that_leaves_a_paused_stream_ends_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(stepping=True), preempt=LONG) as running:
            reading = await streaming(running, ENOUGH)
            assert (await running.preempt("a"))[0] == "done"
            reading.cancel()
            async with asyncio.timeout(WAIT_S):
                while (await running.get("/v1/streams"))["streams"]:
                    await asyncio.sleep(0.005)
            assert (await running.metrics())["otel_llm_relay_paused"] == 0
            (row,) = (await running.get("/v1/streams"))["recent"]
            assert row["outcome"] == "cancelled"
            assert len(running.asked) == 1
            await at_rest(lambda: len(asyncio.all_tasks()))
        (request,) = running.recorded.requests()
        assert [event.name for event in request.events] == ["otel_llm.paused"]

    asyncio.run(go())


def test_a_paused_stream_waits_for_a_backend_that_comes_back(tmp_path: Path) -> None:
    async def go() -> None:
        engine = FakeEngine(stepping=True)
        async with rig(tmp_path, engine, preempt=STAYS, settings="health: {interval: 50ms}\n") as running:
            reading = await streaming(running, ENOUGH)
            await engine.stop()
            # The engine's stream broke with it: what follows is about a stream that was paused before.
            assert (await asyncio.wait_for(reading, WAIT_S)).errors
            await engine.start(engine.port)
            async with asyncio.timeout(WAIT_S):
                while not (await running.get("/v1/backends"))["backends"][0]["open"]:
                    await asyncio.sleep(0.02)
            reading = await streaming(running, ENOUGH)
            assert (await running.preempt("a"))[0] == "done"
            await engine.stop()
            wake(running)
            await asyncio.sleep(0.3)
            assert not reading.done()
            await engine.start(engine.port)
            found = await release(running, reading)
            assert found.errors == []
            assert found.done

    asyncio.run(go())


@pytest.mark.parametrize("backends", [1, 2])
def test_a_paused_stream_goes_on_where_it_was_when_all_are_drained_and_elsewhere_when_one_is(
    tmp_path: Path, backends: int
) -> None:
    async def go() -> None:
        engines = [FakeEngine(stepping=True) for _ in range(backends)]
        async with rig(tmp_path, *engines, preempt=STAYS) as running:
            reading = await streaming(running, ENOUGH)
            served = "a" if engines[0].streams else "b"
            assert (await running.preempt(served))[0] == "done"
            url = f"{running.web}/v1/backends/{served}/drain"
            async with running.session.post(url, json={}) as response:
                assert response.status == 200
            wake(running)
            found = await asyncio.wait_for(release(running, reading), WAIT_S)
            assert (found.errors, found.done) == ([], True)
        (request,) = running.recorded.requests()
        assert [dict(event.attributes or {}).get("to") for event in request.events] == [
            None,
            served if backends == 1 else other(served),
        ]

    asyncio.run(go())


def test_a_stop_ends_paused_streams_with_an_error(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(
            tmp_path, FakeEngine(stepping=True), preempt=LONG, settings="limits: {drain_seconds: 0.2}\n"
        ) as running:
            reading = await streaming(running, ENOUGH)
            assert (await running.preempt("a"))[0] == "done"
            running.service.stop.set()
            reply = await reading
            assert [error["code"] for error in reply.errors] == ["shutting_down"]
            assert not reply.done
        (request,) = running.recorded.requests()
        assert [event.name for event in request.events] == ["otel_llm.paused"]

    asyncio.run(go())


def test_no_more_streams_are_paused_than_the_settings_say(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), preempt=Preempt(calm_s=3600.0, max_paused=1)) as running:
            running.fail_first(*(Fault("stall", after=ENOUGH) for _ in range(2)))
            readings = [asyncio.create_task(running.read(CHAT)) for _ in range(2)]
            await until(lambda: len(running.asked) == 2)
            async with asyncio.timeout(WAIT_S):
                while [row["tokens"] for row in (await running.get("/v1/streams"))["streams"]] != [ENOUGH - 1] * 2:
                    await asyncio.sleep(0.005)
            assert (await running.preempt("a"))[0] == "done"
            assert await running.preempt("a") == ("budget", "1 streams are paused already")
            for asked in running.asked:
                assert asked.fault is not None
                asked.fault.released.set()
            wake(running)
            for reading in readings:
                assert (await reading).done

    asyncio.run(go())


def test_nobody_is_taken_who_has_no_text_to_spare(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(stepping=True), preempt=LONG) as running:
            assert await running.preempt("a") == ("failed", "no stream can be paused")
            reading = await streaming(running, 10)
            assert await running.preempt("a") == ("failed", "no stream can be paused")
            assert await running.preempt("elsewhere") == ("failed", "no stream can be paused")
            assert (await release(running, reading)).done

    asyncio.run(go())


def test_a_stream_whose_whole_ids_cannot_be_told_is_left_where_it_is(tmp_path: Path) -> None:
    async def go() -> None:
        engine = FakeEngine(FakeModel(stream_interval=3), stepping=True)
        engine.detokenizes = False
        async with rig(tmp_path, engine, preempt=ALWAYS) as running:
            reading = await streaming(running, 10)
            assert await running.preempt("a") == ("failed", "unfinished character")
            reply = await release(running, reading)
            assert reply.done
            assert len(running.asked) == 1
        (request,) = running.recorded.requests()
        assert request.events == ()

    asyncio.run(go())


def test_the_client_of_a_paused_stream_gets_comments(tmp_path: Path) -> None:
    async def go() -> None:
        preempt = Preempt(calm_s=3600.0, comment_s=0.05)
        async with rig(tmp_path, FakeEngine(stepping=True), preempt=preempt) as running:
            body = {**CHAT, "stream": True}
            async with running.session.post(running.url + "/v1/chat/completions", json=body) as response:
                await until(lambda: any(not asked.ended.is_set() for asked in running.asked))
                await running.engines[0].step(ENOUGH)
                await seen(running, ENOUGH - 2)
                assert (await running.preempt("a"))[0] == "done"
                data = b""
                async with asyncio.timeout(WAIT_S):
                    while data.count(b"\n\n: paused\n\n: paused\n\n") < 1:
                        data += await response.content.readany()

    asyncio.run(go())


ABORTS = """\
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: Aborts
    when: '{when}'
    max_fact_age: 1m
    actions:
    - abort: {{}}
      mode: enforce
      ttl: 5s
"""
RULES = ABORTS.format(when="tokens_read > 5 && gap_seconds > 0.5")


def test_stream_rules_rest_while_a_stream_is_paused_and_run_again_behind(tmp_path: Path) -> None:
    """A pause of 1.5 s sets off no rule about gaps of 0.5 s; a stall behind it does.

    The rule comes with the pause: before it, a machine that stands still makes a gap, too.
    """

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(stepping=True), preempt=STAYS) as running:
            reading = await streaming(running, ENOUGH, {**CHAT, "max_tokens": 2 * ENOUGH})
            running.fail_first(Fault("stall", after=15, burst=True))
            assert (await running.preempt("a"))[0] == "done"
            (tmp_path / "rules.yaml").write_text(RULES)
            assert running.service.reload()[1] == []
            await asyncio.sleep(1.5)
            assert running.decisions() == []
            wake(running)
            reply = await reading
            assert [error["type"] for error in reply.errors] == ["aborted"]
            await until(lambda: [one["outcome"] for one in running.decisions() if one["action"]] == ["done"])

    asyncio.run(go())


ALIVE = ABORTS.format(when="tokens_read > 5 && gap_seconds > 1.5 && silence_seconds < 1.0")


def test_a_backends_keep_alives_are_no_silence(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(stepping=True), rules=ALIVE) as running:
            stalls = Fault("keep_alive", after=15, burst=True)
            running.fail_first(stalls)
            reading = await streaming(running, 10, {**CHAT, "max_tokens": 100})
            reply = await reading
            assert [error["type"] for error in reply.errors] == ["aborted"]
            await until(lambda: any(one["action"] for one in running.decisions()))  # its action is completed then
            [fired] = [one for one in running.decisions() if one["action"]]
            assert fired["facts"]["gap_seconds"] > 1.5
            stalls.released.set()

    asyncio.run(go())


OVERLOAD = """\
version: 1
groups:
- name: g
  scope: instance
  rules:
  - rule: CodeFirst
    when: 'slo_class == "code" && streams >= 1'
    actions:
    - preempt: {}
      mode: enforce
      ttl: 5s
"""


def test_the_lowest_class_with_the_most_text_that_can_go_on_exactly_is_taken(tmp_path: Path) -> None:
    """Neither the seeded stream with more text, nor that of a lower class whose reader has none to spare."""

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), rules=OVERLOAD, preempt=LONG) as running:
            url = running.url + "/v1"

            async def begin(chunks: int, slo_class: str, **more: Any) -> tuple[asyncio.Task[Reply], Fault]:
                fault = Fault("stall", after=chunks)
                running.engines[0].next_fault(fault)
                headers = {"x-slo-class": slo_class}
                reading = asyncio.create_task(read(running.session, url, {**CHAT, **more}, headers=headers))
                await until(fault.reached.is_set)
                return reading, fault

            some = [
                await begin(200, "chat"),
                await begin(240, "chat"),
                await begin(280, "chat", temperature=0.8, seed=1),
                await begin(260, "batch"),
            ]
            await running.caught_up()
            some.append(await begin(3, "code"))
            await until(lambda: bool(running.decisions()))
            (record,) = running.decisions()
            assert (record["action"], record["outcome"]) == ("preempt", "done")
            assert [one["slo_class"] for one in record["candidates"]] == ["chat", "chat"]
            first, second = (one["score"]["runway_seconds"] for one in record["candidates"])
            assert first > second > 3
            paused = [row for row in (await running.get("/v1/streams"))["streams"] if row["paused"]]
            assert [row["tokens"] for row in paused] == [239]
            assert record["detail"] == f"paused {paused[0]['trace_id']}/{paused[0]['span_id']}"
            for _, fault in some:
                fault.released.set()
            wake(running)
            for reading, _ in some:
                reply = await asyncio.wait_for(reading, WAIT_S)
                assert reply.done
                assert reply.errors == []

    asyncio.run(go())
