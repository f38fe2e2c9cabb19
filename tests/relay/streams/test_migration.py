"""A rule moves a stream whose backend stalls; its reader gets every token once, whichever backend goes on first."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.fake_model import FakeModel
from support.relay.rig import Rig, at_rest, rig

from otel_llm.relay.attempts.run import Run

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 40,
    "ignore_eos": True,
    "return_token_ids": True,
    "stream_options": {"include_usage": True},
    "messages": [{"role": "user", "content": "tell me"}],
}
RULES = """\
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: Stalled
    when: 'tokens_read > 0 && gap_seconds > 0.03'
    actions:
    - migrate: {to: least_load, only_if: 'exact_resume'}
      mode: enforce
      ttl: 5s
      budget: {per_request: 1}
"""
AT_THE_STALL = RULES.replace("tokens_read > 0", "tokens == 8")
"""Behind nine chunks, the role and eight tokens: on a busy machine there are gaps between others, too."""


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.005)


def moves(running: Rig) -> list[tuple[str, str, str]]:
    found = [one for one in running.decisions() if one["action"] == "migrate"]
    return [(one["outcome"], one.get("from", ""), one.get("to", "")) for one in found]


def other(name: str) -> str:
    return "b" if name == "a" else "a"


def test_a_stalled_stream_is_moved(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), rules=AT_THE_STALL) as running:
            undisturbed = await running.direct(CHAT)
            fault = Fault("stall", after=9)
            running.fail_first(fault)
            reply = await running.read(CHAT)
            assert reply.content() == undisturbed.content()
            assert reply.done
            assert len(reply.heads) == 1
            source = next(asked for asked in running.asked if asked.fault is fault)
            await until(lambda: source.closed_by_client)
            name = "a" if source in running.engines[0].streams else "b"
            await until(lambda: moves(running) == [("done", name, other(name))])
            (record,) = [one for one in running.decisions() if one["action"] == "migrate"]
            assert record["tokens_carried"] == 8
            assert record["gap_seconds"] > 0.03
            assert {one["instance"] for one in record["candidates"]} == {other(name)}
        (request,) = running.recorded.requests()
        (event,) = request.events
        assert event.attributes is not None
        assert (event.attributes["from"], event.attributes["to"], event.attributes["rule"]) == (
            name,
            other(name),
            "Stalled",
        )

    asyncio.run(go())


def test_a_source_that_goes_on_first_refutes_the_move_and_may_be_moved_later(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), rules=AT_THE_STALL) as running:
            undisturbed = await running.direct(CHAT)
            stalls, slow = Fault("stall", after=9), Fault("slow_prefill")
            running.fail_first(stalls, slow)
            reading = asyncio.create_task(running.read(CHAT))
            await until(slow.reached.is_set)
            stalls.released.set()
            reply = await reading
            assert reply.content() == undisturbed.content()
            await until(lambda: len(moves(running)) == 1)
            assert moves(running)[0][0] == "refuted"
            (record,) = [one for one in running.decisions() if one["action"] == "migrate"]
            assert (record["tokens_carried"], record["gap_seconds"]) == (None, None), "the destination did not begin"
            destination = next(asked for asked in running.asked if asked.fault is slow)
            await until(lambda: destination.closed_by_client)

    asyncio.run(go())


def test_without_another_backend_the_stream_stays_where_it_is(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), rules=AT_THE_STALL.replace(", only_if: 'exact_resume'", "")) as running:
            undisturbed = await running.direct(CHAT)
            stalls = Fault("stall", after=9)
            running.fail_first(stalls)
            reading = asyncio.create_task(running.read(CHAT))
            await until(lambda: len(moves(running)) == 1)
            assert moves(running)[0][0] == "failed"
            stalls.released.set()
            assert (await reading).content() == undisturbed.content()

    asyncio.run(go())


def test_nothing_is_kept_of_a_stream_that_was_moved_or_cut(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), rules=RULES) as running:
            for kind in ("stall", "reset", "end"):
                running.fail_first(Fault(kind, after=9))
                assert (await running.read(CHAT)).done
            await at_rest(lambda: len(asyncio.all_tasks()))
            gc.collect()
            assert [kept for kept in gc.get_objects() if type(kept) is Run] == []

    asyncio.run(go())


def test_a_client_that_leaves_in_a_race_closes_both(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), rules=AT_THE_STALL) as running:
            stalls, slow = Fault("stall", after=9), Fault("slow_prefill")
            running.fail_first(stalls, slow)
            reading = asyncio.create_task(running.read(CHAT))
            await until(slow.reached.is_set)
            reading.cancel()
            await asyncio.wait({reading})
            await until(lambda: all(asked.closed_by_client for asked in running.asked))
            await until(lambda: len(moves(running)) == 1)
            (row,) = (await running.get("/v1/streams"))["recent"]
            assert row["outcome"] == "cancelled"

    asyncio.run(go())


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    after=st.integers(0, 40),
    per_chunk=st.integers(1, 4),
    release_s=st.floats(0.0, 0.08),
    slow_s=st.floats(0.0, 0.05),
    chat=st.booleans(),
    ids=st.booleans(),
)
def test_whichever_backend_is_first_the_reply_is_the_undisturbed_one(
    tmp_path_factory: pytest.TempPathFactory,
    after: int,
    per_chunk: int,
    release_s: float,
    slow_s: float,
    chat: bool,
    ids: bool,
) -> None:
    async def go() -> None:
        models = [FakeModel(stream_interval=per_chunk) for _ in range(2)]
        found = [FakeEngine(model) for model in models]
        body = {**CHAT, "return_token_ids": ids}
        if not chat:
            body["prompt"] = body.pop("messages")[0]["content"]
        async with rig(tmp_path_factory.mktemp("race"), *found, rules=RULES) as running:
            undisturbed = await running.direct(body)
            stalls, slow = Fault("stall", after=after), Fault("slow_prefill")
            running.fail_first(stalls, slow)
            reading = asyncio.create_task(running.read(body))
            waiting = asyncio.create_task(stalls.reached.wait())
            await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
            loop = asyncio.get_running_loop()
            loop.call_later(slow_s + 0.03, slow.released.set)
            loop.call_later(release_s, stalls.released.set)
            reply = await reading
            waiting.cancel()
            assert reply.errors == []
            assert reply.content() == undisturbed.content()
            assert reply.done
            assert len(reply.heads) == 1

    asyncio.run(go())
