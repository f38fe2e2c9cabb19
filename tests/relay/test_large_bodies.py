"""Large bodies: read as small ones are, in a thread, without an object for what they hold; received within a budget."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.rig import Rig, rig

from otel_llm.relay.splice.eligibility import static_reason
from otel_llm.relay.splice.large_body import LARGE_BYTES, UNREAD
from otel_llm.relay.splice.request import OwnedRequest, RequestError

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
CHAT: dict[str, Any] = {
    "model": "fake",
    "stream": True,
    "max_tokens": 4,
    "messages": [{"role": "user", "content": "x"}],
}
LARGE = LARGE_BYTES + 1
PART = st.fixed_dictionaries(
    {},
    optional={"type": st.sampled_from(["text", "refusal", "image_url", "x"]), "uuid": st.just("u"), "text": st.text()},
)
MESSAGE = st.fixed_dictionaries({"content": st.none() | st.text() | st.lists(PART | st.text(), max_size=3)})
BODY = st.fixed_dictionaries(
    {"stream": st.sampled_from([True, True, True, False, 1])},
    optional={
        "messages": st.lists(MESSAGE | st.none(), max_size=3) | st.none(),
        "prompt": st.text() | st.lists(st.integers(0, 9), max_size=5) | st.lists(st.text(), max_size=3),
        "n": st.integers(0, 9), "best_of": st.integers(1, 3), "model": st.text(max_size=3), "max_tokens": st.integers(),
        "stream_options": st.dictionaries(st.sampled_from(["include_usage", "x"]), st.booleans()) | st.none(),
        "return_token_ids": st.booleans(), "Stream": st.booleans(), "stop": st.lists(st.text(), max_size=2),
    },
)  # fmt: skip


def read(path: str, body: bytes) -> Any:
    """Return all that is read of a body but itself, or why it is refused."""
    try:
        found = OwnedRequest.parse(path, body)
    except RequestError as problem:
        return str(problem), problem.param
    if found is None:
        return None
    facts = {name: getattr(found, name) for name in OwnedRequest.__dataclass_fields__ if name not in ("body", "raw")}
    return facts, dict(found.raw), b"".join(found.body_with_ids()).strip()


@pytest.mark.parametrize("endpoint", PATHS)
@given(body=BODY, twice=st.booleans())
def test_a_large_body_is_read_as_a_small_one(endpoint: str, body: dict[str, Any], twice: bool) -> None:
    text = json.dumps(body).encode()
    if twice:
        text = text[:-1] + b',"stream":true}'
    assert read(PATHS[endpoint], text + b" " * LARGE) == read(PATHS[endpoint], text)


def large(**more: Any) -> bytes:
    return json.dumps({**CHAT, **more}).encode()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (large(messages=[{"content": "x" * LARGE}]), None),
        (large(messages=[{"content": [{"type": "text", "text": "x" * LARGE}]}]), None),
        (large(messages=[{"content": [{"type": "image_url", "image_url": "x" * LARGE}]}]), "multimodal content"),
        (large(messages=[{"content": [{"image_url": "x" * LARGE}]}]), "multimodal content"),
        (large(messages=[{"content": "x"}] * 9000), None),
        (large(messages=[[]] * 99_999), "multimodal content"),
        (large(tools=["x" * LARGE], tool_choice="none"), None), (large(tools=["x" * LARGE]), "tools"),
        (large(stop=["x" * LARGE]), "'stop' does not carry over"), (large(user="x" * LARGE), None),
        (large(stream_options={"x" * LARGE: 1}), "'stream_options' is too large to be read"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else str(value),
)  # fmt: skip
def test_what_is_too_large_to_be_read_is_taken_for_the_worst(body: bytes, reason: str | None) -> None:
    request = OwnedRequest.parse(PATHS["chat"], body)
    assert request is not None
    assert static_reason(request, "vllm") == reason
    assert all(value is UNREAD for key, value in request.values.items() if key in ("tools", "stop", "user"))


@pytest.mark.parametrize("number", range(7))
def test_a_large_body_is_refused_as_a_small_one(number: int) -> None:
    whole = large(x="x" * LARGE)
    body = (
        whole.replace(b'"stream": true', b'"stream": 1'),
        whole[:-1],
        whole[:-1] + b',"stream":true}',
        large(**{str(key): 1 for key in range(20_000)}),
        b"[" + whole + b"]",
        whole.decode().encode("utf-16"),
        whole + b"{}",
    )[number]
    with pytest.raises(RequestError):
        OwnedRequest.parse(PATHS["chat"], body)


def test_a_prompt_of_ids_is_counted(tmp_path: Path) -> None:
    body = json.dumps({"stream": True, "prompt": list(range(260_000))}).encode()
    request = OwnedRequest.parse(PATHS["completions"], body)
    assert request is not None
    assert (request.prompt_tokens, request.choices) == (260_000, 1)


def test_a_large_body_is_parsed_in_a_thread_and_arrives_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's thread is that of this test."""
    by = list[tuple[int, bool]]()
    parse = OwnedRequest.parse

    def noted(path: str, body: bytes, *more: int) -> OwnedRequest | None:
        by.append((len(body), threading.current_thread() is threading.main_thread()))
        return parse(path, body, *more)

    monkeypatch.setattr(OwnedRequest, "parse", noted)

    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            for size in (1, LARGE, 8 << 20):
                content = "x" * size
                for stream in (True, False):
                    body = {**CHAT, "stream": stream, "user": content}
                    sent = io.BytesIO(json.dumps(body).encode())
                    async with running.session.post(running.url + PATHS["chat"], data=sent) as response:
                        assert response.status == 200
                        await response.read()
                    assert running.asked[-1].json["user"] == content
            assert [main for size, main in by if size <= LARGE_BYTES] == [True] * 2
            assert [main for size, main in by if size > LARGE_BYTES] == [False] * 4

    asyncio.run(go())


BUDGET = "limits: {receiving_bytes: 80000, body_bytes: 70000}\n"


async def begin(running: Rig, sent: int, promised: int = 69_000) -> asyncio.StreamWriter:
    """Send a part of a body that does not end."""
    _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(running.url).port)
    head = f"POST {PATHS['chat']} HTTP/1.1\r\nHost: h\r\nContent-Length: {promised}\r\n\r\n".encode()
    writer.write(head + b" " * sent)
    await writer.drain()
    return writer


async def until_held(running: Rig, amount: int) -> None:
    """Wait until so many bytes of bodies are in memory."""
    async with asyncio.timeout(WAIT_S):
        while running.service.body_bytes != amount:
            await asyncio.sleep(0.005)


def test_bodies_in_memory_have_one_budget_and_leave_room_to_others(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings=BUDGET) as running:
            first = await begin(running, 60_000)
            await until_held(running, 60_000)
            body = json.dumps({**CHAT, "user": "x" * 12_000}).encode()
            async with running.session.post(running.url + PATHS["chat"], data=body) as response:
                assert response.status == 429
                assert response.headers["Retry-After"] == "1"
            assert (await running.read(CHAT)).done
            first.close()
            await until_held(running, 0)
            async with running.session.post(running.url + PATHS["chat"], data=body) as response:
                assert response.status == 200

    asyncio.run(go())


def test_a_body_waits_for_room_and_counts_as_long_as_its_stream(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings=BUDGET) as running:
            stalls = Fault("stall", after=2)
            running.fail_first(stalls)
            body = {**CHAT, "user": "x" * 40_000}
            one = asyncio.create_task(running.read(body))
            await stalls.reached.wait()
            assert running.service.body_bytes == len(json.dumps(body))
            two = asyncio.create_task(running.read(body))
            await asyncio.sleep(0.05)  # it is being read; nothing shows that it waits
            assert len(running.asked) == 1
            stalls.released.set()
            assert (await one).done
            assert (await two).done
            await until_held(running, 0)

    asyncio.run(go())


def test_a_body_that_drips_is_given_up(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings="limits: {body_seconds: 0.3}\n") as running:
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(running.url).port)
            writer.write(f"POST {PATHS['chat']} HTTP/1.1\r\nHost: h\r\nContent-Length: 9999\r\n\r\n".encode())
            reading = asyncio.create_task(reader.readline())
            while not reading.done():
                writer.write(b" ")
                await asyncio.sleep(0.01)
            assert (await reading).split(b" ")[1] == b"408"
            assert running.service.body_bytes == 0
            writer.close()

    asyncio.run(go())
