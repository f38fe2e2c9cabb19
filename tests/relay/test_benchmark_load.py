"""The load of the relay's benchmarks: a reply that lost something is never whole; the simulated engine's arithmetic."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.patience import WAIT_S

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from relay_load import engine
from relay_load.load import Load, measure
from relay_load.replica import Chat, Costs, Replica

TOKENS = 5
Damage = Callable[[list[bytes]], list[bytes]]


def events() -> list[bytes]:
    """Return the events of a whole reply: its role, five tokens, its end."""
    return [
        engine.role_event(None),
        *(engine.token_event(number, ids=False) for number in range(TOKENS)),
        engine.last_events(ids=False),
    ]


def replied(body: list[bytes], *, ended: bool = True, head: bytes = engine.HEAD) -> engine.Reply:
    """Return what a client makes of a reply whose body comes in these chunks, from a real server."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        for chunk in body:
            writer.write(engine.framed(chunk))
            await writer.drain()
        if ended:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        writer.close()

    async def run() -> engine.Reply:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(WAIT_S):
            port = server.sockets[0].getsockname()[1]
            return await engine.read(port, engine.chat(TOKENS, "a prompt"), TOKENS)

    return asyncio.run(run())


def test_a_reply_with_every_token_and_its_end_is_whole() -> None:
    reply = replied(events())
    assert reply.whole
    assert not reply.trouble
    assert all(sent <= read for sent, read in zip(reply.sent_ns, reply.read_ns, strict=True))


@pytest.mark.parametrize("length", [1, 7, 100, 10_000])
def test_a_proxy_may_frame_the_events_as_it_likes(length: int) -> None:
    text = b"".join(events())
    assert replied([text[begin : begin + length] for begin in range(0, len(text), length)]).whole


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda all_: all_[:3] + all_[4:], id="a token is missing"),
        pytest.param(lambda all_: [*all_[:3], all_[2], *all_[3:]], id="a token came twice"),
        pytest.param(lambda all_: [*all_[:2], all_[3], all_[2], *all_[4:]], id="two changed places"),
        pytest.param(lambda all_: all_[:-1], id="the end is missing"),
        pytest.param(lambda all_: [], id="nothing came"),
    ],
)
def test_a_reply_that_is_damaged_is_not_whole(damage: Damage) -> None:
    assert not replied(damage(events())).whole


def test_a_connection_that_breaks_before_the_message_ends_is_told() -> None:
    reply = replied(events(), ended=False)
    assert not reply.whole
    assert reply.trouble == "the connection ended"


def test_another_status_is_told_with_what_was_said() -> None:
    reply = replied([b"too much"], head=b"HTTP/1.1 429 Too Many Requests\r\ntransfer-encoding: chunked\r\n\r\n")
    assert not reply.whole
    assert reply.trouble == "429 too much"


def test_nobody_who_listens_is_a_reply_that_is_not_whole() -> None:
    reply = asyncio.run(engine.read(1, engine.chat(TOKENS, "a prompt"), TOKENS))
    assert not reply.whole
    assert reply.trouble


def test_every_stream_of_a_load_is_counted_straight_at_the_backend() -> None:
    troubles: Counter[str] = Counter()

    async def run() -> dict[str, float]:
        async with await asyncio.start_server(engine.serve, "127.0.0.1", 0) as server:
            return await measure(server.sockets[0].getsockname()[1], None, Load(3, 40, 0.0), troubles)

    found = asyncio.run(run())
    assert (found["streams"], found["whole"]) == (3, 3)
    assert not troubles


def chat(prompt: int, output: int = 10, left: int | None = None) -> Chat:
    writer: Any = None  # no test here writes
    return Chat(prompt, output, False, writer, asyncio.Event(), left=prompt if left is None else left)


def test_an_iteration_takes_what_its_batch_contexts_and_prompts_cost() -> None:
    costs = Costs(base=0.01, per_decode=0.001, per_kv_token=0.00001, per_chunk_token=0.0001)
    assert costs.iteration_s(0, 0, 0) == pytest.approx(0.01)
    assert costs.iteration_s(3, 200, 50) == pytest.approx(0.01 + 0.003 + 0.002 + 0.005)


def test_prompts_share_what_an_iteration_has_left_in_the_order_of_arrival() -> None:
    replica = Replica(1.0, Costs())
    begun, first, second, third = chat(500, left=100), chat(300), chat(800), chat(5)
    replica.running, replica.waiting = [begun], replica.waiting.__class__([first, second, third])
    assert replica.parts(1000) == [(begun, 100), (first, 300), (second, 600)]
    assert replica.running == [begun, first, second]
    assert list(replica.waiting) == [third]  # it would get nothing in this iteration


def test_a_served_chat_has_its_ids_where_they_are_asked_for_and_its_tokens() -> None:
    async def run(*, ids: bool) -> tuple[list[Any], dict[str, int]]:
        replica = Replica(0.01, Costs())
        iterating = asyncio.create_task(replica.iterate())
        async with await asyncio.start_server(replica.serve, "127.0.0.1", 0) as server, asyncio.timeout(WAIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
            asked = {"max_tokens": 3, "messages": [{"role": "user", "content": "x" * 40}], "return_token_ids": ids}
            body = json.dumps(asked).encode()
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            text = await reader.readuntil(b"0\r\n\r\n")
            writer.close()
        iterating.cancel()
        lines = [line.removeprefix(b"data: ") for line in text.splitlines() if line.startswith(b"data: {")]
        return [json.loads(line) for line in lines], replica.served

    for ids in (False, True):
        chunks, served = asyncio.run(run(ids=ids))
        assert chunks[0]["prompt_token_ids"] == ([7] * 10 if ids else None)
        reported = [chunk["choices"][0] for chunk in chunks[1:]]
        assert [choice["token_ids"] is not None for choice in reported] == [ids] * 4
        assert [choice["finish_reason"] for choice in reported] == [None, None, None, "stop"]
        assert (served["requests"], served["tokens"]) == (1, 13)
