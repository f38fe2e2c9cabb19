"""Which backends are asked, and what the others are spared: health paths, refused connections, failures in a row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.ports import free_ports
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.fake_sglang import FakeSglangEngine
from support.relay.rig import Rig, rig
from support.relay.silent import silent

from otel_llm.relay.answers import NONE_OPEN
from otel_llm.relay.backends.health import models_of

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 12,
    "ignore_eos": True,
    "messages": [{"role": "user", "content": "x"}],
}
NOT_ELIGIBLE = {**CHAT, "min_tokens": 3}
SOON = "health: {interval: 20ms}\n"


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not true():
            await asyncio.sleep(0.005)


async def row(running: Rig, name: str) -> dict[str, Any]:
    found = {one["name"]: one for one in (await running.get("/v1/backends"))["backends"]}
    one: dict[str, Any] = found[name]
    return one


async def reaches(running: Rig, name: str, key: str, value: object) -> None:
    async with asyncio.timeout(15):
        while (await row(running, name))[key] is not value:
            await asyncio.sleep(0.005)


def test_a_failing_health_path_closes_a_backend_until_it_answers_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings=SOON) as running:
            (engine,) = running.engines
            engine.healthy = False
            await reaches(running, "a", "healthy", False)
            async with running.session.get(running.web + "/readyz") as response:
                assert (response.status, await response.text()) == (503, f"{NONE_OPEN}\n")
            for body in (CHAT, {**CHAT, "stream": True}):
                async with running.session.post(running.url + "/v1/chat/completions", json=body) as response:
                    assert response.status == 503
                    assert response.headers["Retry-After"] == "1"
                    assert (await response.json())["error"]["message"] == NONE_OPEN
            assert running.asked == []
            engine.healthy = True
            await reaches(running, "a", "healthy", True)
            assert (await running.read(CHAT)).done

    asyncio.run(go())


def test_a_backend_that_refuses_connections_is_unhealthy_and_comes_back_with_its_models(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings=SOON) as running:
            (engine,) = running.engines
            assert (await row(running, "a"))["models"] == {"fake": engine.model.max_model_len}
            port = engine.port
            await engine.stop()
            await reaches(running, "a", "healthy", False)
            engine.model.max_model_len += 1
            await engine.start(port)
            await reaches(running, "a", "open", True)
            async with asyncio.timeout(15):
                while (await row(running, "a"))["models"] != {"fake": engine.model.max_model_len}:
                    await asyncio.sleep(0.005)

    asyncio.run(go())


@pytest.mark.parametrize(("status", "healthy"), [(204, True), (302, False), (401, False), (503, False)])
def test_any_success_of_the_health_path_will_do(tmp_path: Path, status: int, healthy: bool) -> None:
    async def go() -> None:
        async def answer(_request: web.Request) -> web.Response:
            return web.Response(status=status, headers={"Location": "/"})

        app = web.Application()
        app.router.add_get("/up", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        backend = f"backends: {{z: {{url: 'http://127.0.0.1:{runner.addresses[0][1]}'}}}}\n"
        try:
            async with rig(tmp_path, settings=backend + "health: {path: /up}\n") as running:
                assert (await row(running, "z"))["healthy"] is healthy
        finally:
            await runner.cleanup()

    asyncio.run(go())


def test_a_health_path_that_never_answers_fails_in_its_time(tmp_path: Path) -> None:
    async def go() -> None:
        async with silent() as url:
            backend = f"backends: {{z: {{url: '{url}'}}}}\nhealth: {{timeout: 20ms}}\n"
            async with rig(tmp_path, settings=backend) as running:
                assert (await row(running, "z"))["healthy"] is False

    asyncio.run(go())


def test_sglangs_health_path_takes_a_second(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeSglangEngine(health_s=1.0), settings="health: {timeout: 1s}\n") as running:
            await reaches(running, "a", "healthy", True)
            assert (await running.read({"model": "fake", "prompt": "x"})).done

    asyncio.run(go())


def test_a_backend_of_kind_openai_is_not_probed(tmp_path: Path) -> None:
    async def go() -> None:
        port = free_ports(1)[0]
        backend = f"backends: {{z: {{url: 'http://127.0.0.1:{port}', kind: openai}}}}\n"
        async with rig(tmp_path, settings=SOON + backend) as running:
            await asyncio.sleep(0.1)
            assert (await row(running, "z"))["open"] is True
            for status in (502, 502, 502, 503):  # refused: after three in a row it is not asked
                async with running.session.post(running.url + "/v1/chat/completions", json=CHAT) as response:
                    assert response.status == status

    asyncio.run(go())


@pytest.mark.parametrize(
    "fault",
    [Fault("refuse"), Fault("status", status=500), Fault("reset", after=6), Fault("error", after=6)],
    ids=lambda fault: f"{fault.kind}-{fault.after}",
)
def test_three_failures_in_a_row_eject(tmp_path: Path, fault: Fault) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings="eject: 1h\n") as running:
            (engine,) = running.engines
            for count in range(3):
                assert (await row(running, "a"))["ejected"] is False, count
                engine.next_fault(fault)
                assert not (await running.read(NOT_ELIGIBLE)).done
            assert (await row(running, "a"))["ejected"] is True
            assert (await running.read(NOT_ELIGIBLE)).status == 503
            assert len(engine.streams) == 3

    asyncio.run(go())


def test_a_backend_that_is_full_is_not_ejected(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings="eject: 1h\n") as running:
            (engine,) = running.engines
            engine.next_fault(*(Fault("status", status=429) for _ in range(5)))
            assert [(await running.read(CHAT)).status for _ in range(5)] == [429] * 5
            assert (await row(running, "a"))["ejected"] is False
            assert (await running.read(CHAT)).done

    asyncio.run(go())


@pytest.mark.parametrize("served", ["whole", "refused by its backend", "not owned"])
def test_what_is_served_in_between_begins_a_new_row(tmp_path: Path, served: str) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings="eject: 1h\n") as running:
            (engine,) = running.engines
            for _ in range(4):
                engine.next_fault(Fault("reset", after=6))
                assert not (await running.read(NOT_ELIGIBLE)).done
                if served == "whole":
                    assert (await running.read(CHAT)).done
                elif served == "refused by its backend":
                    assert (await running.read({**CHAT, "max_tokens": -1})).status == 400
                else:
                    async with running.session.get(running.url + "/v1/models") as response:
                        assert response.status == 200
            assert (await row(running, "a"))["ejected"] is False

    asyncio.run(go())


def test_an_answer_of_failure_that_is_not_owned_ends_no_row(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings="eject: 1h\n") as running:
            (engine,) = running.engines
            engine.next_fault(*(Fault("status", status=500) for _ in range(5)))
            for stream in (True, False, True, False, True):
                body = {**CHAT, "stream": stream}
                async with running.session.post(running.url + "/v1/chat/completions", json=body) as response:
                    assert response.status == 500
            assert (await row(running, "a"))["ejected"] is True

    asyncio.run(go())


def test_streams_are_resumable_again_when_an_ejection_has_ended(tmp_path: Path) -> None:
    """The fact that rules see, not only what the web port computes."""
    rules = (
        "version: 1\ngroups:\n- name: g\n  scope: stream\n  rules:\n"
        "  - {rule: Back, when: 'tokens > 0 && exact_resume', actions: [alert: {name: back}]}\n"
    )

    async def go() -> None:
        settings = SOON + "eject: 300ms\n"
        async with rig(tmp_path, FakeEngine(), FakeEngine(), rules=rules, settings=settings) as running:
            stalls = Fault("stall", after=5)
            running.fail_first(stalls)
            reading = asyncio.create_task(running.read(CHAT))
            await stalls.reached.wait()
            source = "a" if running.engines[0].streams else "b"
            async with running.session.post(f"{running.web}/v1/backends/{source}/drain", json={}):
                pass
            running.fail_first(*(Fault("status", status=500) for _ in range(3)))
            for _ in range(3):
                assert (await running.read(CHAT)).status == 500
            await until(lambda: [one["state"] for one in running.decisions()] == ["firing", "resolved", "firing"])
            stalls.released.set()
            assert (await reading).done

    asyncio.run(go())


@pytest.mark.parametrize(
    ("body", "models"),
    [
        (b'{"data": [{"id": "m", "max_model_len": 8}, {"id": "n"}]}', {"m": 8, "n": None}),
        (b'{"data": [{"id": "m", "max_model_len": true}, {"id": "n", "max_model_len": -1}]}', {"m": None, "n": None}),
        (b'{"data": [{"id": "lora", "parent": "m", "max_model_len": 8}]}', {"lora": None}),
        (b'{"data": [{"id": 3}, "m", null, []]}', {}),
        (b'{"data": {"id": "m"}}', {}),
        (b"<html>", {}),
        (b"", {}),
        (b"\xff", {}),
        (b"[" * 100_000, {}),
        (b"[1]", {}),
    ],
)
def test_what_models_lists(body: bytes, models: dict[str, int | None]) -> None:
    assert models_of(body) == models
