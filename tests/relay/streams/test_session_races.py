"""What happens to a stream while something else is under way: it ends once, and nothing is counted twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.fake_model import FakeModel
from support.relay.readers import Reply, read
from support.relay.resuming import seen_of
from support.relay.rig import Rig, at_rest, rig

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 40,
    "ignore_eos": True,
    "return_token_ids": True,
    "messages": [{"role": "user", "content": "tell me"}],
}
PATIENT = "health: {interval: 5s, timeout: 20s}\n"
RULES = """\
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: Abort
    when: 'tokens == 8 && gap_seconds > 0.3'
    actions:
    - abort: {}
      mode: enforce
      ttl: 5s
"""


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.005)


async def drain(running: Rig, name: str) -> None:
    async with running.session.post(f"{running.web}/v1/backends/{name}/drain", json={}) as response:
        assert response.status == 200


def serving(running: Rig, fault: Fault) -> str:
    """Return the name of the backend that met a fault."""
    return next(
        name
        for name, engine in zip("abcdef", running.engines, strict=False)
        if any(asked.fault is fault for asked in engine.streams)
    )


def test_malformed_framing_in_mid_stream_is_a_break(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(rate=200), FakeEngine(rate=200), settings=PATIENT) as running:
            undisturbed = await running.direct(CHAT)
            running.fail_first(Fault("bad_framing", after=9))
            reply = await running.read(CHAT)
            assert reply.content() == undisturbed.content()
            assert reply.done
            running.fail_first(Fault("bad_framing", after=9))
            cut = await running.read({**CHAT, "min_tokens": 3})
            assert [error["type"] for error in cut.errors] == ["upstream_error"]
            assert not cut.done

    asyncio.run(go())


def test_a_reply_of_several_choices_is_whole_when_all_have_finished(tmp_path: Path) -> None:
    finished = 'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"fake","choices":[%s]}\n\n'
    one = '{"index":%d,"delta":{"content":"a"},"finish_reason":%s}'

    async def go(first: bool) -> None:
        async with rig(tmp_path, FakeEngine(), settings=PATIENT) as running:
            model = running.engines[0].model

            def chunks(_body: Any) -> Any:
                yield (finished % (one % (0, '"stop"') + "," + one % (1, "null"))).encode()
                yield (finished % (one % (1, "null" if first else '"stop"'))).encode()
                yield b"data: [DONE]\n\n"

            running.fail_first(Fault("reset", after=2))
            model.chunks = chunks  # type: ignore[method-assign,assignment]
            reply = await running.read({**CHAT, "n": 2})
            assert [error["type"] for error in reply.errors] == (["upstream_error"] if first else [])
            outcomes = {row["choice"]: row["outcome"] for row in (await running.get("/v1/streams"))["recent"]}
            assert outcomes == {0: "completed", 1: "error" if first else "completed"}

    asyncio.run(go(first=True))
    asyncio.run(go(first=False))


def test_without_resume_a_break_ends_the_reply(tmp_path: Path) -> None:
    async def go() -> None:
        settings = PATIENT + "failover: {resume: false}\n"
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=settings) as running:
            running.fail_first(Fault("reset", after=9))
            reply = await running.read(CHAT)
            assert [error["type"] for error in reply.errors] == ["upstream_error"]
            assert len(running.asked) == 1
            running.fail_first(Fault("reset"))  # before the first token it is not resumed, but sent again
            assert (await running.read(CHAT)).done

    asyncio.run(go())


def test_a_stream_that_is_aborted_while_it_is_resumed_ends(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), rules=RULES, settings=PATIENT) as running:
            slow = Fault("slow_prefill")
            running.fail_first(Fault("reset", after=9), slow)
            reading = asyncio.create_task(running.read(CHAT))
            await until(lambda: any(one["action"] == "abort" for one in running.decisions()))
            slow.released.set()
            reply = await reading
            assert [error["type"] for error in reply.errors] == ["aborted"]
            assert not reply.done
            assert [one["outcome"] for one in running.decisions() if one["action"] == "abort"] == ["done"]
            await until(lambda: all(asked.ended.is_set() for asked in running.asked))
            assert (await running.get("/v1/backends"))["backends"][0]["streams"] == 0

    asyncio.run(go())


def test_a_drain_does_not_move_a_stream_that_is_being_resumed_or_has_finished(tmp_path: Path) -> None:
    async def go() -> None:
        settings = PATIENT + "drain: {migrate: true}\n"
        async with rig(tmp_path, *(FakeEngine() for _ in range(3)), settings=settings) as running:
            undisturbed = await running.direct(CHAT)
            breaks, slow = Fault("reset", after=9), Fault("slow_prefill")
            running.fail_first(breaks, slow)
            reading = asyncio.create_task(running.read(CHAT))
            await until(slow.reached.is_set)
            await drain(running, serving(running, breaks))
            slow.released.set()
            assert (await reading).content() == undisturbed.content()
            assert len(running.asked) == 2 + 1  # the direct one, too
        async with rig(tmp_path, *(FakeEngine() for _ in range(2)), settings=settings) as running:
            behind_the_finish = Fault("stall", after=41)
            running.fail_first(behind_the_finish)
            reading = asyncio.create_task(running.read(CHAT))
            await until(behind_the_finish.reached.is_set)
            await running.caught_up()
            await drain(running, serving(running, behind_the_finish))
            behind_the_finish.released.set()
            assert (await reading).done
            assert len(running.asked) == 1

    asyncio.run(go())


def test_a_refused_request_is_not_counted_as_a_stream_while_another_backend_serves_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=PATIENT) as running:
            refuses, stalls = Fault("status", status=429), Fault("stall", after=3)
            running.fail_first(refuses, stalls)
            reading = asyncio.create_task(running.read(CHAT))
            await until(stalls.reached.is_set)
            rows = {row["name"]: row["streams"] for row in (await running.get("/v1/backends"))["backends"]}
            assert rows == {serving(running, refuses): 0, serving(running, stalls): 1}
            stalls.released.set()
            assert (await reading).done

    asyncio.run(go())


def test_a_move_that_has_won_goes_on_though_its_backend_is_drained_before_the_client_reads(tmp_path: Path) -> None:
    async def go() -> None:
        settings = PATIENT + "drain: {migrate: true}\n"
        model = FakeModel(name="fake" + "x" * 16_000)
        async with rig(tmp_path, FakeEngine(model), FakeEngine(model), settings=settings) as running:
            body = {**CHAT, "model": model.name, "max_tokens": 1200}
            gate, reads = asyncio.Event(), 0

            async def between(_: Reply) -> None:
                nonlocal reads
                reads += 1
                if reads == 1:
                    await gate.wait()

            reading = asyncio.create_task(read(running.session, running.url + "/v1", body, between=between))
            await until(lambda: len(running.asked) == 1)
            first = running.asked[0]
            await at_rest(lambda: first.chunks_sent)
            name, other = ("a", "b") if first in running.engines[0].streams else ("b", "a")
            await drain(running, name)
            await until(lambda: len(running.asked) == 2)
            await at_rest(lambda: running.asked[0].chunks_sent + running.asked[1].chunks_sent)
            await drain(running, other)
            gate.set()
            reply = await asyncio.wait_for(reading, WAIT_S)
            undisturbed = seen_of(b"".join(model.chunks({**body, "stream": True})))
            assert (reply.errors, reply.done) == ([], True)
            assert (reply.text, reply.ids) == (undisturbed.text, undisturbed.ids)

    asyncio.run(go())
