"""What a pause meets: an abort, a client that leaves, a drain, a backend that refuses; nothing of it is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.pausing import ALWAYS, CHAT, LONG, at_rest_of, counted, owned_of, streaming, until, wake
from support.relay.rig import rig

from otel_llm.relay.attempts.connector import Connector
from otel_llm.relay.attempts.destinations import DRAWN_AGAIN
from otel_llm.relay.attempts.run import Run
from otel_llm.relay.deciding.command import Command
from otel_llm.relay.streams.lifecycle import State
from otel_llm.relay.streams.pauses import Pause, Pauses
from otel_llm.relay.streams.session import Session


def test_a_stream_that_is_aborted_as_soon_as_it_is_paused_leaves_no_pause(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), preempt=LONG) as running:
            reading, session = await streaming(running)
            owned, outcomes = owned_of(running), []
            for act, verb in ((owned.preempt, "preempt"), (owned.abort, "abort")):
                command = Command(
                    "act_1", verb, 0, "R", request=session.recorded.key, candidates=(session.recorded.key,)
                )
                act(command, lambda outcome, _detail, _facts: outcomes.append(outcome))
            assert outcomes == ["done", "done"]
            assert [error["type"] for error in (await reading).errors] == ["aborted"]
            await at_rest_of(running)

    asyncio.run(go())


def test_a_stream_that_is_cut_in_the_instant_in_which_its_pause_is_over_does_not_go_on(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), preempt=LONG) as running:
            reading, session = await streaming(running)
            assert (await running.preempt("a"))[0] == "done"
            await asyncio.sleep(0.05)
            wake(running)
            asyncio.get_running_loop().call_soon(session.cut, "aborted", "it is", "aborted")
            assert [error["type"] for error in (await reading).errors] == ["aborted"]
            await at_rest_of(running)
            assert len(running.asked) == 1

    asyncio.run(go())


def test_what_goes_on_in_the_instant_in_which_its_client_leaves_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving: list[asyncio.Task[Any] | None] = []
    serve, resumed = Session.serve, Connector.resumed

    async def noted(self: Session) -> Any:
        serving.append(asyncio.current_task())
        return await serve(self)

    async def found(self: Connector, *args: Any, **more: Any) -> Run | None:
        run = await resumed(self, *args, **more)
        (task,) = serving
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)  # as the transport does when a client has left
        return run

    monkeypatch.setattr(Session, "serve", noted)
    monkeypatch.setattr(Connector, "resumed", found)

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), preempt=ALWAYS) as running:
            reading, _ = await streaming(running)
            assert (await running.preempt("a"))[0] == "done"
            await until(lambda: not owned_of(running).sessions)
            reading.cancel()
            await at_rest_of(running)

    asyncio.run(go())


def test_the_instance_of_a_stream_is_its_source_while_a_move_is_tried_and_when_it_is_refuted(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine()) as running:
            reading, session = await streaming(running)
            source = session.instance
            (row,) = (await running.get("/v1/streams"))["streams"]
            assert row["instance"] == source
            slow = Fault("slow_prefill")
            running.fail_first(slow)
            completed: list[str] = []
            session.migrate("least_load", {"rule": "R"}, lambda outcome, _detail, _facts: completed.append(outcome))
            await until(slow.reached.is_set)
            (row,) = (await running.get("/v1/streams"))["streams"]
            assert row["instance"] == source
            for asked in running.asked:
                if asked.fault is not None and asked.fault.kind == "stall":
                    asked.fault.released.set()
            assert (await reading).done
            assert completed == ["refuted"]
            (row,) = (await running.get("/v1/streams"))["recent"]
            assert row["instance"] == source

    asyncio.run(go())


def test_a_stream_whose_client_has_left_a_pause_is_not_paused_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str | None] = []

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), preempt=LONG) as running:
            reading, session = await streaming(running)
            end = Pauses.end

            def then_looked_at(self: Pauses, pause: Pause) -> None:
                end(self, pause)
                asyncio.get_running_loop().call_soon(lambda: reasons.append(session.pause_reason))

            monkeypatch.setattr(Pauses, "end", then_looked_at)
            assert (await running.preempt("a"))[0] == "done"
            await until(lambda: session.state in (State.PAUSED, State.RESUMING))
            reading.cancel()
            await at_rest_of(running)
            assert reasons == ["no backend serves the stream now"]

    asyncio.run(go())


def test_nobody_is_taken_for_a_stream_that_is_over(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), preempt=LONG) as running:
            reading, session = await streaming(running)
            victims = owned_of(running).victims
            assert victims("a", None) == [session.recorded.key]
            assert victims("a", (bytes(16), bytes(8), "default")) == []
            reading.cancel()

    asyncio.run(go())


@pytest.mark.parametrize(("temperature", "outcome"), [(0.8, "failed"), (0.0, "done")])
def test_no_stream_is_paused_whose_client_has_ids_that_would_be_drawn_again(
    tmp_path: Path, temperature: float, outcome: str
) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(stepping=True), preempt=ALWAYS) as running:
            engine = running.engines[0]
            reading = asyncio.create_task(running.read({**CHAT, "temperature": temperature}))
            await until(lambda: bool(running.asked) and bool(owned_of(running).sessions))
            (session,) = owned_of(running).sessions.values()
            reply = session.reply
            await engine.step(1)  # the role
            while (known := reply.counted(0)) == reply.whole:
                await engine.step(1)
                await counted(reply, known + 1)
            assert session.pause_reason == (DRAWN_AGAIN if temperature else None)
            assert (await running.preempt("a"))[0] == outcome
            while not reading.done():
                await engine.step(5)
                await asyncio.sleep(0.005)
            found = await reading
            assert (found.errors, found.done) == ([], True)

    asyncio.run(go())
