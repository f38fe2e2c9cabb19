"""A relay before two SGLang, or one of each kind: what they are asked, what is continued, what says that it is cut."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine, Fault, FaultKind
from support.relay.fake_sglang import FakeSglangEngine, FakeSglangModel
from support.relay.readers import Reply
from support.relay.rig import Rig, rig

from otel_llm.relay.settings import Preempt

PROMPT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 40,
    "ignore_eos": True,
    "stream_options": {"include_usage": True},
    "prompt": "tell me",
}
CHAT = {**PROMPT, "messages": [{"role": "user", "content": PROMPT["prompt"]}]}
del CHAT["prompt"]
BREAKS: tuple[FaultKind, ...] = ("reset", "end", "abort", "error")


def engines(**model: Any) -> tuple[FakeEngine, FakeEngine]:
    return FakeSglangEngine(FakeSglangModel(prefix="a", **model)), FakeSglangEngine(
        FakeSglangModel(prefix="b", **model)
    )


def check_whole(reply: Reply, undisturbed: Reply) -> None:
    """Compare with the undisturbed reply; the number of reasoning tokens is left out behind a splice."""
    usage = {key: value for key, value in (undisturbed.usage or {}).items() if key != "reasoning_tokens"}
    assert reply.errors == []
    assert reply.done
    assert (reply.text, reply.ids, reply.finish) == (undisturbed.text, undisturbed.ids, undisturbed.finish)
    assert {key: value for key, value in (reply.usage or {}).items() if key != "reasoning_tokens"} == usage
    assert len(reply.heads) == 1


async def body_of(running: Rig, base: str, body: dict[str, Any]) -> bytes:
    """Return the bytes of a reply, its id and instant of creation replaced."""
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    async with running.session.post(base + path, json={"stream": True, **body}) as response:
        data = await response.read()
    head = json.loads(data.split(b"\n\n")[0][6:])["id"]
    return data.replace(head.encode(), b"ID")


@pytest.mark.parametrize("body", [PROMPT, {**PROMPT, "return_token_ids": True}, CHAT], ids=["plain", "ids", "chat"])
def test_a_reply_passes_as_its_backend_sends_it(tmp_path: Path, body: dict[str, Any]) -> None:
    async def go() -> None:
        async with rig(tmp_path, *engines()) as running:
            straight = await body_of(running, running.engines[0].url, body)
            assert await body_of(running, running.url, body) == straight
            asked = running.asked[-1].json
            assert asked.pop("return_token_ids", False) is ("prompt" in body)
            assert asked == {key: value for key, value in {"stream": True, **body}.items() if key != "return_token_ids"}

    asyncio.run(go())


@pytest.mark.parametrize("kind", BREAKS)
def test_a_broken_completion_goes_on_at_another_sglang(tmp_path: Path, kind: FaultKind) -> None:
    async def go() -> None:
        async with rig(tmp_path, *engines()) as running:
            undisturbed = await running.direct(PROMPT)
            running.fail_first(Fault(kind, after=9))
            check_whole(await running.read(PROMPT), undisturbed)
            (resumed,) = [one for one in running.asked if isinstance(one.json["prompt"], list)]
            ids = running.engines[0].model.prompt_ids(PROMPT)
            assert resumed.path == "/v1/completions"
            assert resumed.json["prompt"][: len(ids)] == ids
            carried = len(resumed.json["prompt"]) - len(ids)
            assert 0 < carried <= 9
            assert resumed.json["max_tokens"] == 40 - carried
            asked = [one for engine in running.engines for one in engine.asked if one.path == "/detokenize"]
            assert asked
            assert {tuple(one.json) for one in asked} == {("model", "tokens")}
        (request,) = running.recorded.requests()
        assert request.attributes is not None
        assert request.attributes["gen_ai.usage.output_tokens"] == 40

    asyncio.run(go())


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    after=st.integers(0, 40),
    per_chunk=st.integers(1, 5),
    ids=st.booleans(),
    kind=st.sampled_from(BREAKS),
    skip_special=st.booleans(),
)
def test_wherever_a_completion_breaks(
    tmp_path_factory: pytest.TempPathFactory, after: int, per_chunk: int, ids: bool, kind: FaultKind, skip_special: bool
) -> None:
    """Break it off anywhere: it is the undisturbed one, or says that it ends within a character."""

    async def go() -> None:
        body = {**PROMPT, "return_token_ids": ids, "skip_special_tokens": skip_special}
        async with rig(tmp_path_factory.mktemp("broken"), *engines(stream_interval=per_chunk)) as running:
            undisturbed = await running.direct(body)
            chunks = 1 + -(-39 // per_chunk)  # the first token comes at once; the last chunk has the finish
            running.fail_first(Fault(kind, after=after % chunks))
            reply = await running.read(body)
            if reply.errors:
                assert undisturbed.text.startswith(reply.text)
                assert (reply.finish, reply.done) == (None, False)
                samples = await running.metrics()
                assert samples['otel_llm_relay_failovers_total{reason="unfinished character"}'] == 1
            else:
                check_whole(reply, undisturbed)

    asyncio.run(go())


@pytest.mark.parametrize("kind", BREAKS)
def test_a_broken_chat_says_that_it_is_cut(tmp_path: Path, kind: FaultKind) -> None:
    async def go() -> None:
        async with rig(tmp_path, *engines()) as running:
            undisturbed = await running.direct(CHAT)
            running.fail_first(Fault(kind, after=9))
            reply = await running.read(CHAT)
            assert undisturbed.text.startswith(reply.text)
            assert (reply.finish, reply.done, len(running.asked)) == (None, False, 2)
            assert [error["type"] for error in reply.errors] == ["upstream_error"]

    asyncio.run(go())


def test_why_a_chat_cannot_be_resumed_is_shown(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, *engines()) as running:
            stalls = Fault("stall", after=9)
            running.fail_first(stalls)
            reading = asyncio.create_task(running.read(CHAT))
            await asyncio.wait_for(stalls.reached.wait(), WAIT_S)
            await running.caught_up()
            (row,) = (await running.get("/v1/streams"))["streams"]
            assert row["exact_resume"] is False
            reason = "a backend of kind sglang returns no token ids while a chat streams"
            assert row["exact_resume_reason"] == reason
            stalls.released.set()
            assert (await reading).done

    asyncio.run(go())


@pytest.mark.parametrize("body", [PROMPT, CHAT], ids=["completion", "chat"])
def test_before_its_first_token_any_request_is_sent_again_to_either_kind(tmp_path: Path, body: dict[str, Any]) -> None:
    async def go() -> None:
        for kinds in ((FakeSglangEngine(), FakeEngine()), (FakeEngine(), FakeSglangEngine())):
            async with rig(tmp_path, *kinds) as running:
                running.fail_first(Fault("reset", after=1 if "messages" in body else 0))
                reply = await running.read(body)
                assert (reply.errors, reply.done, len(running.asked)) == ([], True, 2)
                assert len(reply.heads) == 1

    asyncio.run(go())


def test_one_kind_does_not_continue_the_other(tmp_path: Path) -> None:
    """Break a completion of each kind if the only other backend, of the same model and length, is of the other."""

    async def go() -> None:
        async with rig(tmp_path, FakeSglangEngine(), FakeEngine()) as running:
            for source in (0, 1):
                other, fault = running.engines[1 - source], Fault("reset", after=9)
                running.engines[source].next_fault(fault)
                while not fault.reached.is_set():  # until that one has been chosen
                    before = len(other.streams)
                    reply = await running.read(PROMPT)
                assert [error["type"] for error in reply.errors] == ["upstream_error"]
                assert (reply.done, reply.text != "") == (False, True)
                assert len(other.streams) == before

    asyncio.run(go())


@pytest.mark.parametrize(("body", "outcome"), [(PROMPT, "done"), (CHAT, "failed")], ids=["completion", "chat"])
def test_a_completion_can_be_paused_and_a_chat_cannot(tmp_path: Path, body: dict[str, Any], outcome: str) -> None:
    preempt = Preempt(resume_runway_s=-3600.0, calm_s=0.02, spare_s=0.0, again_s=0.0)

    async def go() -> None:
        async with rig(tmp_path, FakeSglangEngine(stepping=True), preempt=preempt) as running:
            (engine,) = running.engines
            reading = asyncio.create_task(running.read(body))
            await engine.wait_for(lambda: len(engine.streams) == 1)
            await engine.step(9)
            async with asyncio.timeout(WAIT_S):
                while not any(row["tokens"] > 5 for row in (await running.get("/v1/streams"))["streams"]):
                    await asyncio.sleep(0.005)
            assert (await running.preempt("a"))[0] == outcome
            engine.stepping = False
            while not reading.done():
                await engine.step()
                await asyncio.sleep(0.005)
            check_whole(await reading, await running.direct(body))
            assert len(engine.streams) == (3 if outcome == "done" else 2)

    asyncio.run(go())
