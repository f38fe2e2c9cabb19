"""Replies of other servers than vLLM: their ends, errors, content and coding, as the client and the rows have them."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine
from support.relay.rig import Rig, rig
from support.relay.scripted_engine import SSE, ScriptedEngine

from otel_llm.relay.deciding.command import Command

BODY: dict[str, Any] = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "tell me"}]}
DONE = b"data: [DONE]\n\n"
CLIENTS = {"message": "context length exceeded", "type": "invalid_request_error", "code": 400}
SERVERS = {"message": "EngineCore <b>died</b>", "type": "InternalServerError", "code": 500}


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(text: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
    return event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})


WORDS = [chunk("a "), chunk("b "), chunk("c ")]
WHOLE = [*WORDS, chunk(None, "stop"), DONE]


async def request(running: Rig, headers: Mapping[str, str] = {}, data: bytes | None = None) -> tuple[Any, bytes, bool]:
    """Return the response, the bytes of its body, and whether that is whole."""
    got, whole = b"", True
    url, sent = running.url + "/v1/chat/completions", json.dumps(BODY).encode() if data is None else data
    async with asyncio.timeout(WAIT_S):
        async with running.session.post(url, data=sent, headers=dict(headers), auto_decompress=False) as response:
            try:
                async for part in response.content.iter_any():
                    got += part
            except Exception:  # noqa: BLE001
                whole = False
    return response, got, whole


async def rows(running: Rig) -> list[tuple[str, int]]:
    found = (await running.get("/v1/streams"))["recent"]
    return [(row["outcome"], row["tokens"]) for row in found]


async def open_backends(running: Rig) -> list[bool]:
    return [row["open"] for row in (await running.get("/v1/backends"))["backends"]]


def run(path: Path, engines: list[FakeEngine], check: Any) -> None:
    async def go() -> None:
        async with rig(path, *engines) as running:
            await check(running)

    asyncio.run(go())


# How a reply ends.


@pytest.mark.parametrize("none", [None, "", "null"])
def test_done_without_a_reason_is_a_whole_reply_of_kind_openai(tmp_path: Path, none: str | None) -> None:
    parts = [*(chunk(word, none) for word in "abc"), DONE]

    async def check(running: Rig) -> None:
        for _ in range(4):
            _, got, whole = await request(running)
            assert (got, whole) == (b"".join(parts), True)
        assert await rows(running) == [("completed", 3)] * 4
        assert await open_backends(running) == [True]

    run(tmp_path, [ScriptedEngine(*parts)], check)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_done_without_a_reason_is_a_break_of_other_kinds(tmp_path: Path, kind: str) -> None:
    async def check(running: Rig) -> None:
        _, got, _ = await request(running)
        assert b"upstream_error" in got
        assert DONE not in got
        assert await rows(running) == [("error", 3)]

    run(tmp_path, [ScriptedEngine(*WORDS, DONE, kind=kind)], check)


@pytest.mark.parametrize("end", [(), (None,)], ids=["end", "reset"])
@pytest.mark.parametrize("none", ["", "null"])
def test_an_end_behind_reasons_that_are_none_is_a_break(tmp_path: Path, none: str, end: tuple[None, ...]) -> None:
    async def check(running: Rig) -> None:
        _, got, _ = await request(running)
        assert b"upstream_error" in got
        assert await rows(running) == [("error", 3)]

    run(tmp_path, [ScriptedEngine(*(chunk(word, none) for word in "abc"), *end)], check)


def test_text_behind_a_reason_is_recorded(tmp_path: Path) -> None:
    parts = [chunk("a", "stop"), chunk("b", "stop"), chunk("c", "stop"), DONE]

    async def check(running: Rig) -> None:
        _, got, _ = await request(running)
        assert got == b"".join(parts)
        assert await rows(running) == [("completed", 3)]

    run(tmp_path, [ScriptedEngine(*parts)], check)


def test_a_break_behind_text_that_follows_a_reason_is_one(tmp_path: Path) -> None:
    async def check(running: Rig) -> None:
        _, got, _ = await request(running)
        assert b"upstream_error" in got
        assert await rows(running) == [("error", 2)]

    run(tmp_path, [ScriptedEngine(chunk("a", "stop"), chunk("b"), None)], check)


# Errors.


@pytest.mark.parametrize(
    "error",
    [
        event({"error": CLIENTS}), event({"object": "error", "message": "m", "type": "BadRequestError", "code": 400}),
        chunk(None, "stop", error=CLIENTS), chunk(None, "error", error=CLIENTS),
    ],
    ids=["event", "vllm", "with a reason", "with a failed reason"],
)  # fmt: skip
@pytest.mark.parametrize("words", [0, 2])
@pytest.mark.parametrize("rest", [(DONE,), (), (None,)], ids=["done", "end", "reset"])
def test_a_clients_error_is_passed_on_and_ejects_nobody(
    tmp_path: Path, error: bytes, words: int, rest: tuple[bytes | None, ...]
) -> None:
    parts = [*WORDS[:words], error, *rest]

    async def check(running: Rig) -> None:
        for _ in range(6):
            _, got, whole = await request(running)
            assert got == b"".join(part for part in parts if part is not None)
            assert whole
        assert len(running.asked) == 6
        assert await rows(running) == [("error", words)] * 6
        assert await open_backends(running) == [True, True]
        assert not any(name.startswith("otel_llm_relay_failovers") for name in await running.metrics())

    run(tmp_path, [ScriptedEngine(*parts), ScriptedEngine(*parts)], check)


def test_a_clients_error_ends_a_move_that_is_under_way(tmp_path: Path) -> None:
    async def go() -> None:
        fails, ends, goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
        role, error = chunk(""), event({"error": CLIENTS})
        source, other = ScriptedEngine(role, fails, error, ends), ScriptedEngine(goes_on, *WHOLE)
        completed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        async with rig(tmp_path, source, other) as running, asyncio.timeout(WAIT_S):
            owned = running.service.owned
            assert owned is not None
            async with running.session.post(running.url + "/v1/chat/completions", json=BODY) as response:
                assert await response.content.readexactly(len(role)) == role
                (key,) = owned.sessions
                command = Command("act_1", "migrate", 0, "R", request=key, arguments={"to": "least_load"})
                owned.migrate(command, lambda outcome, _detail, _facts: completed.set_result(outcome))
                await other.wait_for(lambda: len(other.streams) > 0)
                fails.set()
                assert await response.content.readexactly(len(error)) == error
                assert await completed == "refuted"
                goes_on.set()
                ends.set()
                assert await response.content.read() == b""
            assert await rows(running) == [("error", 0)]

    asyncio.run(go())


@pytest.mark.parametrize(
    ("error", "reason"),
    [(event({"error": SERVERS}), "error_event"), (chunk(None, "stop", error=SERVERS), "error_event")],
)
@pytest.mark.parametrize("words", [0, 2])
def test_a_servers_own_message_is_kept_where_no_other_serves(
    tmp_path: Path, error: bytes, reason: str, words: int
) -> None:
    async def check(running: Rig) -> None:
        _, got, _ = await request(running)
        (reported,) = [json.loads(line[6:])["error"] for line in got.splitlines() if b'"error"' in line]
        assert reported == {"message": SERVERS["message"], "type": "upstream_error", "code": reason}
        assert DONE not in got
        assert await rows(running) == [("error", words)]

    run(tmp_path, [ScriptedEngine(*WORDS[:words], error, DONE)], check)


@pytest.mark.parametrize("reason", ["abort", "error", "timeout"])
def test_a_failed_reason_is_a_break(tmp_path: Path, reason: str) -> None:
    failing, serving = ScriptedEngine(chunk(None, reason), DONE), ScriptedEngine(*WHOLE)

    async def check(running: Rig) -> None:
        for _ in range(2):
            assert (await request(running))[1] == b"".join(WHOLE)
        assert await rows(running) == [("completed", 3)] * 2
        assert [len(engine.streams) for engine in running.engines] in ([1, 2], [2, 2])

    run(tmp_path, [failing, serving], check)


# Content.


@pytest.mark.parametrize(
    "headers",
    [
        {**SSE, "Content-Encoding": "none"}, {**SSE, "Content-Encoding": ""}, {**SSE, "Content-Encoding": "Identity"},
        {"Content-Type": "text/plain; charset=utf-8"}, {}, {"Content-Type": "application/octet-stream"},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("begins", [b"", b"\xef\xbb\xbf", b"\r\n", b": ping\n\n"])
def test_a_stream_is_told_by_its_content(tmp_path: Path, headers: dict[str, str], begins: bytes) -> None:
    body = begins + b"".join(WHOLE)
    parts = [body[:1], body[1:2], body[2:9], body[9:]]

    async def check(running: Rig) -> None:
        response, got, whole = await request(running)
        assert (got, whole) == (body, True)
        for name in ("Content-Type", "Content-Encoding"):
            assert response.headers.get(name) == headers.get(name)
        assert await rows(running) == [("completed", 3)]

    run(tmp_path, [ScriptedEngine(*parts, headers=headers)], check)


def test_the_first_bytes_of_an_untyped_stream_wait_for_no_more(tmp_path: Path) -> None:
    async def go() -> None:
        later = asyncio.Event()
        async with rig(tmp_path, ScriptedEngine(chunk("a"), later, *WHOLE, headers={})) as running:
            async with asyncio.timeout(WAIT_S):
                url = running.url + "/v1/chat/completions"
                async with running.session.post(url, json=BODY) as response:
                    assert await response.content.readexactly(len(chunk("a"))) == chunk("a")
                    later.set()
                    assert await response.content.read() == b"".join(WHOLE)

    asyncio.run(go())


MESSAGE = {"role": "assistant", "content": "hello you"}
REPLY = {"id": "c", "model": "fake", "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]}
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("headers", [JSON, {}, SSE], ids=str)
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    ("value", "outcome"),
    [({"error": CLIENTS}, "error"), ({"error": SERVERS}, "error"), (REPLY, "completed")],
    ids=["clients", "servers", "whole"],
)
def test_a_json_body_is_passed_on_and_told_by_its_content(
    tmp_path: Path, headers: dict[str, str], indent: int | None, value: Any, outcome: str
) -> None:
    body = json.dumps(value, indent=indent).encode()

    async def check(running: Rig) -> None:
        for _ in range(4):
            response, got, whole = await request(running)
            assert (response.status, got, whole) == (200, body, True)
        assert len(running.asked) == 4
        found = await rows(running)
        assert [row[0] for row in found] == [outcome] * 4
        assert all((row[1] > 0) is (outcome == "completed") for row in found)
        assert await open_backends(running) == [True]

    run(tmp_path, [ScriptedEngine(body[:9], body[9:], headers=headers)], check)


@pytest.mark.parametrize("body", [b"<html></html>", b"", b"da", b"database"])
def test_what_is_no_reply_is_passed_on(tmp_path: Path, body: bytes) -> None:
    async def check(running: Rig) -> None:
        _, got, whole = await request(running)
        assert (got, whole) == (body, True)
        assert await rows(running) == [("error", 0)]

    run(tmp_path, [ScriptedEngine(*([body] if body else []), headers={"Content-Type": "text/plain"})], check)


def test_a_compressed_reply_is_passed_on_and_is_no_error(tmp_path: Path) -> None:
    packed = gzip.compress(b"".join(WHOLE))

    async def check(running: Rig) -> None:
        response, got, whole = await request(running)
        assert (response.headers["Content-Encoding"], got, whole) == ("gzip", packed, True)
        assert await rows(running) == [("completed", 0)]

    run(tmp_path, [ScriptedEngine(packed, headers={**SSE, "Content-Encoding": "gzip"})], check)


def test_a_passed_answer_that_breaks_off_is_an_error(tmp_path: Path) -> None:
    async def check(running: Rig) -> None:
        assert not (await request(running))[2]
        assert await rows(running) == [("error", 0)]

    packed = gzip.compress(b"".join(WHOLE))
    run(tmp_path, [ScriptedEngine(packed[:20], None, headers={**SSE, "Content-Encoding": "gzip"})], check)


def test_an_answer_that_is_too_long_to_read_is_no_error(tmp_path: Path) -> None:
    body = json.dumps({"choices": [], "x": "y" * (1 << 21)}).encode()

    async def check(running: Rig) -> None:
        assert (await request(running))[1:] == (body, True)
        assert await rows(running) == [("completed", 0)]

    run(tmp_path, [ScriptedEngine(body, headers=JSON)], check)


# Compressed requests.


@pytest.mark.parametrize("kind", ["openai", "vllm"])
def test_a_compressed_request_is_owned_and_sent_as_it_came_unless_it_must_change(tmp_path: Path, kind: str) -> None:
    sent = gzip.compress(json.dumps(BODY).encode())

    async def check(running: Rig) -> None:
        _, got, _ = await request(running, {"Content-Encoding": "gzip", "Content-Type": "application/json"}, sent)
        assert got == b"".join(WHOLE)
        assert await rows(running) == [("completed", 3)]
        (asked,) = running.asked
        if kind == "openai":
            assert (asked.headers["Content-Encoding"], asked.body) == ("gzip", sent)
        else:
            assert "Content-Encoding" not in asked.headers
            assert asked.json == {**BODY, "return_token_ids": True}

    run(tmp_path, [ScriptedEngine(*WHOLE, kind=kind)], check)


@pytest.mark.parametrize(
    "sent",
    [b"no gzip", *(gzip.compress(b" " * size + json.dumps(BODY).encode(), mtime=0) for size in (1 << 18, 1 << 20))],
)
def test_a_request_that_cannot_be_unpacked_is_refused(tmp_path: Path, sent: bytes) -> None:
    async def go() -> None:
        async with rig(tmp_path, ScriptedEngine(*WHOLE), settings="limits: {body_bytes: 524288}\n") as running:
            response, _, _ = await request(running, {"Content-Encoding": "gzip"}, sent)
            assert response.status == 400
            assert await rows(running) == []
            assert running.asked == []

    asyncio.run(go())
