"""Every way in which a backend fails, and what the client then gets: a whole reply, or one that says that it is cut."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.relay.fake_engine import FakeEngine, Fault, FaultKind
from support.relay.fake_model import FakeModel
from support.relay.rig import Rig, rig

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 40,
    "ignore_eos": True,
    "stream_options": {"include_usage": True},
    "messages": [{"role": "user", "content": "tell me"}],
}
NOT_ELIGIBLE = {**CHAT, "min_tokens": 3}
"""It counts over the output of one request, so no other backend can go on exactly."""
BREAKS: tuple[FaultKind, ...] = ("reset", "end", "abort", "error")


def engines(**more: Any) -> tuple[FakeEngine, FakeEngine]:
    return FakeEngine(**more), FakeEngine(**more)


def check_whole(reply: Any, undisturbed: Any) -> None:
    assert reply.errors == []
    assert reply.done
    assert reply.content() == undisturbed.content()
    assert len(reply.heads) == 1


async def rows(running: Rig) -> list[tuple[str, int]]:
    """Stop nothing, but wait for the end of every stream; return outcome and tokens of each."""
    found = (await running.get("/v1/streams"))["recent"]
    return [(row["outcome"], row["tokens"]) for row in found]


@pytest.mark.parametrize("body", [CHAT, NOT_ELIGIBLE], ids=["eligible", "not"])
@pytest.mark.parametrize(
    "fault",
    [
        Fault("refuse"), *(Fault("status", status=status) for status in (429, 500, 502, 503, 504)), Fault("reset"),
        Fault("end", after=1), Fault("abort", after=1), Fault("error", after=1), Fault("reset", after=1),
        Fault("empty"), Fault("lying_length"),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status if fault.kind == 'status' else fault.after}",
)  # fmt: skip
def test_before_the_first_token_the_request_is_sent_elsewhere(
    tmp_path: Path, fault: Fault, body: dict[str, Any]
) -> None:
    async def go() -> None:
        async with rig(tmp_path, *engines()) as running:
            undisturbed = await running.direct(body)
            running.fail_first(fault)
            check_whole(await running.read(body), undisturbed)
            assert await rows(running) == [("completed", 40)]
            samples = await running.metrics()
            assert sum(v for k, v in samples.items() if k.startswith("otel_llm_relay_requests_total")) == 1
            assert sum(v for k, v in samples.items() if k.startswith("otel_llm_relay_failovers_total")) == 1

    asyncio.run(go())


def test_a_reply_to_a_long_prompt_goes_on_elsewhere(tmp_path: Path) -> None:
    """The ids of the prompt, which the relay asked for, are a line of more than 1 MiB: their client never gets it."""

    async def go() -> None:
        model = FakeModel(max_model_len=2**20)
        body = {**CHAT, "stream": True, "messages": [{"role": "user", "content": "word " * 80_000}]}
        async with rig(tmp_path, FakeEngine(model), FakeEngine(model)) as running:
            undisturbed = await running.direct(body)
            running.fail_first(Fault("reset", after=7))
            async with running.session.post(running.url + "/v1/chat/completions", json=body) as response:
                assert b"token_ids" not in await response.read()
            running.fail_first(Fault("reset", after=7))
            check_whole(await running.read(body), undisturbed)
            assert await rows(running) == [("completed", 40)] * 2
            assert len(running.asked) == 5

    asyncio.run(go())


@pytest.mark.parametrize("after", [2, 7, 38])
@pytest.mark.parametrize("kind", BREAKS)
def test_behind_the_first_token_the_reply_goes_on_elsewhere(tmp_path: Path, kind: FaultKind, after: int) -> None:
    async def go() -> None:
        async with rig(tmp_path, *engines()) as running:
            undisturbed = await running.direct(CHAT)
            running.fail_first(Fault(kind, after=after))
            check_whole(await running.read(CHAT), undisturbed)
            assert await rows(running) == [("completed", 40)]
            assert undisturbed.usage is not None
        (request,) = running.recorded.requests()
        assert [event.name for event in request.events] == ["otel_llm.migrated"]
        assert request.attributes is not None
        assert request.attributes["otel_llm.relay.migrations"] == 1
        assert request.attributes["gen_ai.usage.input_tokens"] == undisturbed.usage["prompt_tokens"]
        assert request.attributes["gen_ai.usage.output_tokens"] == 40

    asyncio.run(go())


@pytest.mark.parametrize("kind", BREAKS)
def test_a_cut_reply_that_cannot_go_on_says_so(tmp_path: Path, kind: FaultKind) -> None:
    async def go() -> None:
        async with rig(tmp_path, *engines()) as running:
            undisturbed = await running.direct(NOT_ELIGIBLE)
            running.fail_first(Fault(kind, after=9))
            reply = await running.read(NOT_ELIGIBLE)
            assert undisturbed.text.startswith(reply.text)
            assert not reply.done
            assert reply.finish is None
            assert [error["type"] for error in reply.errors] == ["upstream_error"]
            ((outcome, _),) = await rows(running)
            assert outcome == "error"

    asyncio.run(go())


@pytest.mark.parametrize("kind", ["malformed", "long_line", "two_finishes"])
def test_what_is_odd_is_passed_on(tmp_path: Path, kind: FaultKind) -> None:
    async def go() -> None:
        async with rig(tmp_path, *engines()) as running:
            body = {**CHAT, "return_token_ids": True}
            running.fail_first(Fault(kind, after=5), Fault(kind, after=5))
            straight, relayed = await running.direct(body), await running.read(body)
            assert relayed.content() == straight.content()
            assert relayed.broken == straight.broken
            assert relayed.done

    asyncio.run(go())


@pytest.mark.parametrize(("fault", "status"), [(Fault("html"), 200), (Fault("redirect"), 307)])
def test_an_answer_that_is_no_stream_is_passed_on(tmp_path: Path, fault: Fault, status: int) -> None:
    async def go() -> None:
        async with rig(tmp_path, *engines()) as running:
            running.fail_first(fault)
            path = running.url + "/v1/chat/completions"
            async with running.session.post(path, json={"stream": True, **CHAT}, allow_redirects=False) as response:
                assert response.status == status
                if status == 200:
                    assert await response.text() == "<html><script>alert(1)</script></html>"
                else:
                    assert response.headers["Location"] == fault.location

    asyncio.run(go())


def test_all_dead(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, *engines()) as running:
            running.fail_first(*(Fault("reset") for _ in range(9)))
            reply = await running.read(CHAT)
            assert reply.status == 502
            assert len(running.asked) == 3
            assert await rows(running) == [("error", 0)]

    asyncio.run(go())


def test_the_last_answer_is_passed_on_where_nobody_serves(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, *engines()) as running:
            running.fail_first(Fault("status", status=500), Fault("status", status=429))
            path = running.url + "/v1/chat/completions"
            async with running.session.post(path, json={"stream": True, **CHAT}) as response:
                assert response.status == 429
                assert response.headers["Retry-After"] == "1"

    asyncio.run(go())
