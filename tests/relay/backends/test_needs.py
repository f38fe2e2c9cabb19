"""Which backends can serve a request: by the models that they list, and by their lengths."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.fake_model import FakeModel
from support.relay.rig import Rig, rig

from otel_llm.relay.backends.backend import Backend, Needs
from otel_llm.relay.backends.backends import Backends
from otel_llm.relay.streams.lifecycle import State

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 12,
    "ignore_eos": True,
    "messages": [{"role": "user", "content": "x"}],
}


@pytest.mark.parametrize(
    ("needs", "able"),
    [
        (Needs("m", 100), "abd"),
        (Needs("m", 101), "bd"),
        (Needs("m", 1001), "d"),
        (Needs("n", 10**9), "cd"),
        (Needs("", 10**9), "abcd"),
        (Needs("other"), "d"),
    ],
)
def test_a_backend_lists_the_model_or_none_and_holds_the_request(needs: Needs, able: str) -> None:
    """`c` states no length, and `d` lists nothing, as one of kind openai."""
    listed: dict[str, dict[str, int | None]] = {"a": {"m": 100}, "b": {"m": 1000}, "c": {"n": None}, "d": {}}
    backends = Backends([Backend(name, "http://h", models=models) for name, models in listed.items()], lambda: 0.0)
    assert "".join(one.name for one in backends.open_to(needs=needs)) == able
    for name in able:
        backends.drain(name)
    assert backends.open_to(needs=needs) == [], "no other one is asked instead"


@pytest.mark.parametrize(("needs", "able"), [(Needs("m", 1001), "ab"), (Needs("other", 5), "abc")])
def test_if_none_can_serve_it_those_are_asked_that_say_why(needs: Needs, able: str) -> None:
    listed: dict[str, dict[str, int | None]] = {"a": {"m": 100}, "b": {"m": 1000}, "c": {"n": None}}
    backends = Backends([Backend(name, "http://h", models=models) for name, models in listed.items()], lambda: 0.0)
    assert "".join(one.name for one in backends.open_to(needs=needs)) == able


def of(name: str, length: int = 4096) -> FakeEngine:
    return FakeEngine(FakeModel(name=name, max_model_len=length))


def asked(running: Rig) -> list[int]:
    return [len(engine.streams) for engine in running.engines]


@pytest.mark.parametrize("settings", ["", "queue: {in_flight: 9}\n"], ids=["direct", "queue"])
@pytest.mark.parametrize("stream", [True, False])
def test_several_models_behind_one_relay(tmp_path: Path, settings: str, *, stream: bool) -> None:
    async def go() -> None:
        async with rig(tmp_path, of("one"), of("two"), settings=settings) as running:
            for count in range(1, 4):
                for model in ("one", "two"):
                    body = {**CHAT, "model": model, "stream": stream}
                    async with running.session.post(running.url + "/v1/chat/completions", json=body) as response:
                        assert response.status == 200
                        await response.read()
                assert asked(running) == [count, count]

    asyncio.run(go())


LARGE = "x" * (5 << 16)


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": "two", "input": "x"}), ("/v1/embeddings", {"model": "two", "input": LARGE}),
        ("/v1/embeddings", {"input": "x" * 60_000, "model": "two", "user": LARGE}),
        ("/v1/chat/completions", {"messages": [], "user": LARGE, "model": "two"}),
    ],
    ids=["short", "first", "within what is read", "received"],
)  # fmt: skip
def test_a_request_that_is_not_owned_goes_where_its_model_is(
    tmp_path: Path, path: str, body: dict[str, Any], *, chunked: bool
) -> None:
    data = json.dumps(body).encode()

    async def parts() -> AsyncIterator[bytes]:
        yield data

    async def go() -> None:
        async with rig(tmp_path, of("one"), of("two"), of("one")) as running:
            for _ in range(3):
                async with running.session.post(running.url + path, data=parts() if chunked else data) as response:
                    await response.read()
            got = [[one.body for one in engine.asked if one.path == path] for engine in running.engines]
            assert got == [[], [data] * 3, []]

    asyncio.run(go())


@pytest.mark.parametrize(
    "body",
    [
        b'{"input":"' + LARGE.encode() + b'","model":"two"}',
        b'{"model":"tw',
        b'{"model":2}',
        b"\xff" * 99_999,
        b"",
    ],
    ids=["behind it", "cut", "no name", "no text", "empty"],
)
def test_a_body_whose_model_is_not_read_passes_whole(tmp_path: Path, body: bytes) -> None:
    async def go() -> None:
        async with rig(tmp_path, of("one"), of("two")) as running:
            async with running.session.post(running.url + "/v1/embeddings", data=body) as response:
                await response.read()
            assert [one.body for engine in running.engines for one in engine.asked if one.method == "POST"] == [body]

    asyncio.run(go())


def test_no_request_goes_on_where_its_model_is_not(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, of("one"), of("two"), of("one")) as running:
            running.fail_first(Fault("status", status=500))
            assert (await running.read({**CHAT, "model": "one"})).done
            assert asked(running) == [1, 0, 1]
            running.fail_first(*(Fault("status", status=500) for _ in range(9)))
            assert (await running.read({**CHAT, "model": "two"})).status == 500
            assert asked(running) == [1, 1, 1]
            async with running.session.post(f"{running.web}/v1/backends/b/drain", json={}):
                pass
            assert (await running.read({**CHAT, "model": "two"})).status == 503

    asyncio.run(go())


def test_a_long_request_goes_where_it_can_be_held(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, of("fake", 64), of("fake", 4096)) as running:
            for _ in range(4):
                assert (await running.read({**CHAT, "max_tokens": 300})).done
            assert asked(running) == [0, 4]
            for _ in range(4):
                assert (await running.read(CHAT)).done
            assert asked(running) == [2, 6]
            assert (await running.read({**CHAT, "max_tokens": 5000})).status == 400

    asyncio.run(go())


def test_a_prompt_that_is_longer_than_expected_goes_where_it_can_be_held(tmp_path: Path) -> None:
    """Its tokens are a byte each, four times as many as expected."""
    long = {**CHAT, "messages": [{"role": "user", "content": "x" * 100}]}

    async def go() -> None:
        async with rig(tmp_path, of("fake", 110), of("fake", 4096)) as running:
            running.engines[1].next_fault(Fault("slow_prefill"))
            reading = asyncio.create_task(running.read({**CHAT, "max_tokens": 300}))
            await running.engines[1].wait_for(lambda: bool(running.engines[1].streams))
            assert (await running.read(long)).done
            assert asked(running) == [1, 2]
            assert (await running.read({**long, "prompt": [1], "max_tokens": 5000})).status == 400
            reading.cancel()

    asyncio.run(go())


def test_a_request_that_waits_for_its_model_holds_up_no_other(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, of("one"), of("two"), settings="queue: {in_flight: 1}\n") as running:
            stalls = Fault("stall", after=3)
            running.engines[0].next_fault(stalls)
            first = asyncio.create_task(running.read({**CHAT, "model": "one"}))
            await stalls.reached.wait()
            second = asyncio.create_task(running.read({**CHAT, "model": "one"}))
            assert running.service.owned is not None
            while not any(session.state is State.QUEUED for session in running.service.owned.sessions.values()):
                await asyncio.sleep(0.005)
            assert (await running.read({**CHAT, "model": "two"})).done
            assert asked(running) == [1, 1]
            stalls.released.set()
            assert (await first).done
            assert (await second).done

    asyncio.run(go())
