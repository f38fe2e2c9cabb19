"""Which backends are asked, and what the others are spared: health paths, refused connections, failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.patience import WAIT_S
from support.ports import free_ports
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.fake_sglang import FakeSglangEngine
from support.relay.rig import Rig, rig
from support.relay.silent import silent

from otel_llm.relay.answers import NONE_OPEN
from otel_llm.relay.backends.backend import EJECTS, MISSES
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
LONG = "eject: {for: 1h}\n"


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.005)


async def row(running: Rig, name: str) -> dict[str, Any]:
    found = {one["name"]: one for one in (await running.get("/v1/backends"))["backends"]}
    one: dict[str, Any] = found[name]
    return one


async def reaches(running: Rig, name: str, key: str, value: object) -> None:
    async with asyncio.timeout(WAIT_S):
        while (await row(running, name))[key] is not value:
            await asyncio.sleep(0.005)


def test_a_failing_health_path_closes_a_backend_until_it_answers_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=SOON) as running:
            a, b = running.engines
            a.healthy = False
            await reaches(running, "a", "healthy", False)
            for _ in range(4):
                assert (await running.read(CHAT)).done
            assert (len(a.streams), len(b.streams)) == (0, 4)
            a.healthy = True
            await reaches(running, "a", "healthy", True)
            assert (await running.read(CHAT)).done
            assert len(a.streams) == 1

    asyncio.run(go())


def test_with_none_healthy_requests_are_served_and_the_relay_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=SOON) as running:
            assert (await running.metrics())["otel_llm_relay_panic"] == 0
            for name, engine in zip("ab", running.engines, strict=True):
                engine.healthy = False
                await reaches(running, name, "healthy", False)
            assert (await running.metrics())["otel_llm_relay_panic"] == 1
            async with running.session.get(running.web + "/readyz") as response:
                assert response.status == 200
            async with running.session.post(running.url + "/v1/chat/completions", json=CHAT) as response:
                assert response.status == 200
            for _ in range(4):
                assert (await running.read(CHAT)).done
            for name in "ab":
                async with running.session.post(f"{running.web}/v1/backends/{name}/drain", json={}):
                    pass
            async with running.session.get(running.web + "/readyz") as response:
                assert (response.status, await response.text()) == (503, f"{NONE_OPEN}\n")
            for body in (CHAT, {**CHAT, "stream": True}):
                async with running.session.post(running.url + "/v1/chat/completions", json=body) as response:
                    assert (response.status, response.headers["Retry-After"]) == (503, "1")
                    assert (await response.json())["error"]["message"] == NONE_OPEN

    asyncio.run(go())
    assert [one for one in caplog.messages if "least bad" in one] == [
        "no backend is healthy: requests go to the least bad"
    ]


def test_a_backend_that_is_streaming_is_alive_though_its_health_path_fails(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(stepping=True), FakeEngine(), settings=SOON) as running:
            a, b = running.engines
            async with running.session.post(f"{running.web}/v1/backends/b/drain", json={}):
                pass
            reading = asyncio.create_task(running.read({**CHAT, "max_tokens": 4000}))
            await a.wait_for(lambda: bool(a.streams))
            await a.step(2)
            a.healthy = b.healthy = False
            while (await row(running, "b"))["healthy"]:
                await a.step(1)
            probes = a.probes
            while a.probes <= probes + 2 * MISSES:
                await a.step(1)
                await asyncio.sleep(0.005)
            assert not reading.done()
            assert (await row(running, "a"))["healthy"] is True
            a.stepping = False
            await a.step(1)
            assert (await reading).done

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
            async with asyncio.timeout(WAIT_S):
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
            for _ in range(4):
                async with running.session.post(running.url + "/v1/chat/completions", json=CHAT) as response:
                    assert response.status == 502
            assert (await row(running, "z"))["open"] is True, "the last one is never ejected"

    asyncio.run(go())


async def asked_of_a(running: Rig, body: dict[str, Any], times: int = 1) -> None:
    """Send requests until the first backend has had so many more; each is served in the end."""
    a = running.engines[0]
    target = len(a.streams) + times
    while len(a.streams) < target:
        assert (await running.read(body)).done


@pytest.mark.parametrize(
    ("fault", "body"),
    [
        (Fault("refuse"), NOT_ELIGIBLE), (Fault("status", status=500), NOT_ELIGIBLE),
        (Fault("reset", after=6), CHAT), (Fault("error", after=6), CHAT),
    ],
    ids=lambda value: f"{value.kind}-{value.after}" if isinstance(value, Fault) else "",
)  # fmt: skip
def test_failures_eject_once_the_requests_are_served_elsewhere(
    tmp_path: Path, fault: Fault, body: dict[str, Any]
) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=LONG) as running:
            a = running.engines[0]
            a.fault_of = lambda _asked: fault
            for count in range(EJECTS):
                assert (await row(running, "a"))["ejected"] is False, count
                await asked_of_a(running, body)
            assert (await row(running, "a"))["ejected"] is True
            asked = len(a.streams)
            for _ in range(4):
                assert (await running.read(body)).done
            assert len(a.streams) == asked

    asyncio.run(go())


@pytest.mark.parametrize(
    "fault",
    [Fault("refuse"), Fault("status", status=500), Fault("reset", after=6), Fault("error", after=6), Fault("reset")],
    ids=lambda fault: f"{fault.kind}-{fault.after}",
)
def test_a_request_that_fails_everywhere_ejects_nobody(tmp_path: Path, fault: Fault) -> None:
    """Else three requests that hit a bug of the engine would stop the fleet, for each of its clients."""

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), FakeEngine(), settings=LONG) as running:
            stalls = Fault("stall", after=5)
            running.fail_first(stalls)
            reading = asyncio.create_task(running.read(CHAT))
            await stalls.reached.wait()
            for engine in running.engines:
                engine.fault_of = lambda asked: fault if b"poison" in asked.body else None
            poison = {**NOT_ELIGIBLE, "messages": [{"role": "user", "content": "poison"}]}
            for _ in range(2 * EJECTS):
                assert not (await running.read(poison)).done
            (shown,) = (await running.get("/v1/streams"))["streams"]
            assert shown["exact_resume"] is True
            assert [(await row(running, name))["open"] for name in "abc"] == [True] * 3
            assert (await running.read(CHAT)).done
            stalls.released.set()
            assert (await reading).done

    asyncio.run(go())


def test_a_request_that_broke_two_backends_has_one_more_try_and_counts_against_none(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, *(FakeEngine() for _ in range(4)), settings=LONG) as running:
            for count in range(1, 5):
                running.fail_first(Fault("reset"), Fault("reset"))
                assert (await running.read(CHAT)).done
                assert len(running.asked) == 3 * count
            assert all(one["open"] for one in (await running.get("/v1/backends"))["backends"])
            running.fail_first(*(Fault("reset") for _ in range(4)))
            assert (await running.read(CHAT)).status == 502
            assert len(running.asked) == 15

    asyncio.run(go())


def test_the_last_try_goes_to_the_backend_with_the_fewest_recent_failures(tmp_path: Path) -> None:
    """Of three others that could go on, two have failed lately, if only with requests that failed everywhere."""

    async def go() -> None:
        async with rig(tmp_path, *(FakeEngine() for _ in range(4)), settings=LONG) as running:
            assert running.service.pool is not None
            backends = running.service.pool.backends
            for name in "abc":
                backends.seen_to_fail(backends.get(name))
            for name, engine in zip("abcd", running.engines, strict=True):
                if name != "d":
                    engine.fault_of = lambda _asked: Fault("reset", after=4)
            for _ in range(6):
                assert (await running.read(CHAT)).done

    asyncio.run(go())


def test_a_reply_that_broke_goes_on_where_it_was_if_the_other_backend_fails(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=LONG) as running:
            undisturbed = await running.direct(CHAT)
            for engine in running.engines:
                engine.asked.clear()
            running.fail_first(Fault("reset", after=4), Fault("reset"))
            assert (await running.read(CHAT)).text == undisturbed.text
            assert len(running.asked) == 3

    asyncio.run(go())


def test_a_backend_that_is_full_is_not_ejected(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=LONG) as running:
            running.engines[0].fault_of = lambda _asked: Fault("status", status=429)
            await asked_of_a(running, CHAT, 2 * EJECTS)
            assert (await row(running, "a"))["ejected"] is False

    asyncio.run(go())


@pytest.mark.parametrize("served", ["whole", "refused by its backend", "not owned"])
def test_each_request_that_is_served_makes_up_for_a_failure(tmp_path: Path, served: str) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=LONG) as running:
            a = running.engines[0]
            for _ in range(2 * EJECTS):
                a.fault_of = lambda _asked: Fault("status", status=500)
                await asked_of_a(running, CHAT)
                a.fault_of = lambda _asked: None
                target = len(a.streams) + 1
                while len(a.streams) < target:
                    if served == "whole":
                        assert (await running.read(CHAT)).done
                    elif served == "refused by its backend":
                        assert (await running.read({**CHAT, "max_tokens": -1})).status == 400
                    else:
                        async with running.session.post(running.url + "/v1/chat/completions", json=CHAT) as response:
                            assert response.status == 200
            assert (await row(running, "a"))["ejected"] is False

    asyncio.run(go())


def test_what_is_not_owned_and_not_sent_again_counts_against_nobody(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=LONG) as running:
            running.fail_first(*(Fault("status", status=500) for _ in range(9)))
            for _ in range(9):
                async with running.session.post(running.url + "/v1/chat/completions", json=CHAT) as response:
                    assert response.status == 500
            assert [(await row(running, name))["open"] for name in "ab"] == [True, True]

    asyncio.run(go())


def test_a_stream_goes_on_at_a_backend_that_is_ejected_if_there_is_no_other(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine(), settings=LONG) as running:
            undisturbed = await running.direct(CHAT)
            a, b = running.engines
            a.fault_of = lambda _asked: Fault("status", status=500)
            await asked_of_a(running, CHAT, EJECTS)
            assert (await row(running, "a"))["ejected"] is True
            a.fault_of = lambda _asked: None
            b.next_fault(Fault("reset", after=4), Fault("status", status=500))
            assert [(await running.read(CHAT)).text for _ in range(2)] == [undisturbed.text] * 2
            assert len(a.streams) == EJECTS + 2 + 1

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
