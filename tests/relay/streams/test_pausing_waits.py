"""A paused stream that cannot go on just now waits, or not: by what its backend answers, to it and to `/detokenize`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.relay.fake_engine import EngineRequest, FakeEngine, Fault
from support.relay.fake_model import FakeModel
from support.relay.pausing import ALWAYS, LONG, streaming, until, wake
from support.relay.rig import changed, rig

from otel_llm.relay.attempts.connector import Connector
from otel_llm.relay.attempts.run import Run
from otel_llm.relay.settings import Failover
from otel_llm.relay.splice.reply import Reply as SeamReply
from otel_llm.relay.splice.resume import UNFINISHED
from otel_llm.relay.streams.pausing import ASKED


class InParts(FakeEngine):
    """Sends what `/detokenize` answers in two parts, as a long text comes."""

    async def _detokenize(self, request: web.Request) -> web.StreamResponse:  # type: ignore[override]
        body = json.dumps(self.model.detokenized(await request.json())).encode()
        response = web.StreamResponse(headers={"Content-Length": str(len(body))})
        await response.prepare(request)
        await response.write(body[:15])
        await asyncio.sleep(0.02)
        await response.write(body[15:])
        return response


class Wedged(FakeEngine):
    """Answers `/detokenize` once `gate` is set."""

    def __init__(self, model: FakeModel) -> None:
        super().__init__(model)
        self.gate = asyncio.Event()

    async def _detokenize(self, request: web.Request) -> web.Response:
        await self.gate.wait()
        return await super()._detokenize(request)


def test_a_backend_that_refuses_a_resumption_is_not_ejected_and_not_asked_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), preempt=ALWAYS) as running:
            reading, _ = await streaming(running)
            refused: list[EngineRequest] = []

            def fault_of(asked: EngineRequest) -> Fault | None:
                refused.append(asked)
                return Fault("status", status=400)

            running.engines[0].fault_of = fault_of
            assert (await running.preempt("a"))[0] == "done"
            await until(lambda: bool(refused))
            assert [error["type"] for error in (await reading).errors] == ["upstream_error"]
            assert len(refused) == 1
            assert (await running.get("/v1/backends"))["backends"][0]["open"]

    asyncio.run(go())


def test_a_paused_stream_of_several_ids_a_chunk_waits_for_a_backend_that_comes_back(tmp_path: Path) -> None:
    async def go() -> None:
        engine = FakeEngine(FakeModel(stream_interval=3))
        async with rig(tmp_path, engine, preempt=LONG, settings="health: {interval: 50ms}\n") as running:
            reading, session = await streaming(running, 4, messages=[{"role": "user", "content": "four"}])
            assert session.reply.tail
            assert (await running.preempt("a"))[0] == "done"
            await engine.stop()
            wake(running)
            await asyncio.sleep(0.1)
            await engine.start(engine.port)
            reply = await reading
            assert (reply.errors, reply.done) == ([], True)

    asyncio.run(go())


def test_ids_are_detokenized_though_the_answer_comes_in_parts(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, InParts(FakeModel(stream_interval=3)), preempt=ALWAYS) as running:
            reading, session = await streaming(running, 4, messages=[{"role": "user", "content": "four"}])
            assert session.reply.tail
            assert (await running.preempt("a"))[0] == "done"
            reply = await reading
            assert (reply.errors, reply.done) == ([], True)

    asyncio.run(go())


def test_a_reader_does_not_wait_for_a_backend_that_detokenizes_slowly(tmp_path: Path) -> None:
    preempt, failover = changed(ALWAYS, ask_s=0.05), Failover(detokenize_s=3600.0)

    async def go() -> None:
        engine = Wedged(FakeModel(stream_interval=3))
        async with rig(tmp_path, engine, preempt=preempt, failover=failover) as running:
            reading, session = await streaming(running, 4)
            assert session.reply.tail
            asked = asyncio.create_task(running.preempt("a"))
            await until(lambda: session.pause_reason == ASKED)
            (stalled,) = running.asked
            assert stalled.fault is not None
            stalled.fault.released.set()
            assert await asked == ("failed", "silent")
            reply = await reading
            assert (reply.errors, reply.done) == ([], True)

    asyncio.run(go())


def test_a_failure_of_long_ago_does_not_end_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resumed = Connector.resumed

    async def behind_a_failure(self: Connector, *args: Any, **more: Any) -> Run | None:
        self.last_reason = UNFINISHED
        return await resumed(self, *args, **more)

    monkeypatch.setattr(Connector, "resumed", behind_a_failure)

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), preempt=LONG, settings="health: {interval: 100ms}\n") as running:
            reading, _ = await streaming(running)
            assert (await running.preempt("a"))[0] == "done"
            running.fail_first(Fault("status", status=503))
            wake(running)
            reply = await reading
            assert (reply.errors, reply.done) == ([], True)

    asyncio.run(go())


def test_a_client_that_reads_slowly_by_the_time_of_the_answer_is_not_paused(tmp_path: Path) -> None:
    async def go() -> None:
        engine = Wedged(FakeModel(stream_interval=3))
        async with rig(tmp_path, engine, preempt=ALWAYS) as running:
            reading, session = await streaming(running, 4, messages=[{"role": "user", "content": "four"}])
            asked = asyncio.create_task(running.preempt("a"))
            await until(lambda: session.pause_reason == ASKED)
            session.recorded.blocked(True)
            engine.gate.set()
            assert await asked == ("failed", "its reader has no text to spare")
            reading.cancel()

    asyncio.run(go())


def test_a_client_gets_comments_while_its_backend_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comments: list[str] = []
    comment = SeamReply.comment

    def noted(self: SeamReply, text: str) -> bytes:
        comments.append(text)
        return comment(self, text)

    monkeypatch.setattr(SeamReply, "comment", noted)
    preempt = changed(ALWAYS, comment_s=0.3, try_again_s=0.01)

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), preempt=preempt, settings="health: {interval: 1h}\n") as running:
            reading, _ = await streaming(running)
            (engine,) = running.engines
            engine.fault_of = lambda _asked: Fault("status", status=503)
            assert (await running.preempt("a"))[0] == "done"
            await until(lambda: len(comments) == 2)
            engine.fault_of = lambda _asked: None
            reply = await reading
            assert (reply.errors, reply.done) == ([], True)

    asyncio.run(go())


def test_a_pause_goes_on_though_one_of_two_backends_refuses_while_the_other_is_full(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), preempt=ALWAYS) as running:
            reading, session = await streaming(running)
            running.fail_first(Fault("status", status=429), Fault("status", status=400))
            assert (await running.preempt(session.instance))[0] == "done"
            reply = await reading
            assert (reply.errors, reply.done) == ([], True)

    asyncio.run(go())
