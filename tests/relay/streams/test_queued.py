"""Requests that wait in the queue of a running relay. Fake engines, real sockets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.queued_clients import QueuedClients
from support.relay.readers import Reply
from support.relay.rig import Rig, rig

from otel_llm.relay.queueing.annealed_order import AnnealedOrder
from otel_llm.relay.settings import Failover, Preempt

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 40,
    "ignore_eos": True,
    "messages": [{"role": "user", "content": "tell me"}],
}
ONE = "queue: {in_flight: 1, max_wait: 10m}\n"
SLO = """\
version: 1
default: patient
classes:
  patient: {reading_speed: 5, deadline: {policy: dslo, ttft: 60s, tpot: 1s}}
  quick: {reading_speed: 5, deadline: {policy: dslo, ttft: 200ms, tpot: 1s}}
"""
ABORT = """\
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: TooLate
    when: 'slo_class == "batch" && tokens_read == 0 && age_seconds > 0.4'
    actions:
    - abort: {}
      mode: enforce
      ttl: 5s
"""


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.005)


def spans_of(running: Rig) -> list[dict[str, Any]]:
    """Return the attributes of the request spans."""
    return [dict(request.attributes or {}) for request in running.recorded.requests()]


def first_segments(running: Rig) -> int:
    """Return how many segments 0 were sent."""
    spans = running.exporter.get_finished_spans()
    return sum((span.attributes or {}).get("otel_llm.segment.seq") == 0 for span in spans)


class Fleet(QueuedClients):
    """A relay before engines that send a chunk of each stream on command, and clients that read."""

    async def request(self, slo: str = "patient", body: dict[str, Any] = CHAT) -> asyncio.Task[Reply]:
        """Send a request, and wait until an engine has it or it is in the queue."""
        before = len(self.rig.asked), await self.waiting()
        self.send(slo, body)
        async with asyncio.timeout(WAIT_S):
            while before == (len(self.rig.asked), await self.waiting()) and not self.reading[-1].done():
                await asyncio.sleep(0.005)
        return self.reading[-1]


def stepping(count: int = 1) -> list[FakeEngine]:
    return [FakeEngine(stepping=True) for _ in range(count)]


async def post(running: Rig, body: dict[str, Any] = CHAT, **headers: str) -> tuple[int, dict[str, Any], str | None]:
    """Return status, error and Retry-After of an answer that is no stream."""
    url = f"{running.url}/v1/chat/completions"
    async with running.session.post(url, json={"stream": True, **body}, headers=headers) as response:
        return response.status, (await response.json())["error"], response.headers.get("Retry-After")


def test_a_request_waits_for_its_place_and_its_wait_is_recorded(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, *stepping(), settings=ONE) as running:
            fleet, began_s = Fleet(running), time.monotonic()
            await fleet.request()
            asked_s = time.monotonic() - began_s
            await fleet.request()
            assert len(running.asked) == 1
            waits = asyncio.create_task(asyncio.sleep(0.4))
            await until(lambda: first_segments(running) == 2)  # that of the second is sent before it has a backend
            await waits
            replies = await fleet.finish()
            assert [reply.done for reply in replies] == [True, True]
            assert len(running.asked) == 2
        queue_s = [request["gen_ai.latency.time_in_queue"] for request in spans_of(running)]
        assert min(queue_s) <= asked_s
        assert max(queue_s) >= 0.4
        segments = [dict(span.attributes or {}) for span in running.exporter.get_finished_spans()]
        reported = [one for one in segments if "otel_llm.segment.seq" in one and "gen_ai.latency.time_in_queue" in one]
        assert [one["otel_llm.segment.seq"] == 0 for one in reported] == [True, False], (
            "the second's is known behind it"
        )
        assert reported[1]["gen_ai.latency.time_in_queue"] == max(queue_s)

    asyncio.run(go())


def test_without_a_queue_no_wait_is_recorded(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            assert (await running.read(CHAT)).done
        (request,) = spans_of(running)
        assert "gen_ai.latency.time_in_queue" not in request

    asyncio.run(go())


def test_the_deadline_of_the_class_decides_who_is_next(tmp_path: Path) -> None:
    (tmp_path / "slo.yaml").write_text(SLO)
    settings = "queue: {in_flight: 1, order: edf}\n"

    async def go() -> None:
        async with rig(tmp_path, *stepping(), settings=settings, slo=tmp_path / "slo.yaml") as running:
            fleet = Fleet(running)
            for slo, tokens in (("patient", 5), ("patient", 6), ("quick", 7)):
                await fleet.request(slo, {**CHAT, "max_tokens": tokens})
            await fleet.finish()
            assert [asked.json["max_tokens"] for asked in running.asked] == [5, 7, 6]

    asyncio.run(go())


def test_the_shortest_is_first_where_replies_are_of_known_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = "queue: {in_flight: 1, order: ORDER}\n"
    planned: list[int] = []
    make = AnnealedOrder.__init__

    def noted(self: AnnealedOrder, predictor: Any, slots: Any, waiting: Any, apply: Any, now_ns: Any) -> None:
        def applied(order: list[int]) -> None:
            apply(order)
            planned.append(len(order))

        make(self, predictor, slots, waiting, applied, now_ns)

    monkeypatch.setattr(AnnealedOrder, "__init__", noted)

    async def go(order: str) -> list[int]:
        backends = "backends: {f: {url: 'URL', profile: h200-paper-era}}\n"
        engine = FakeEngine(stepping=True)
        await engine.start()
        text = backends.replace("URL", engine.url) + settings.replace("ORDER", order)
        (tmp_path / "slo.yaml").write_text(SLO)
        async with rig(tmp_path, settings=text, slo=tmp_path / "slo.yaml") as running:
            running.engines = [engine]
            fleet = Fleet(running)
            for tokens in (5, 40, 10, 20):
                await fleet.request(body={**CHAT, "max_tokens": tokens})
            if order == "anneal":
                await until(lambda: 3 in planned)  # those that wait
            await fleet.finish()
        await engine.stop()
        return [asked.json["max_tokens"] for asked in running.asked]

    assert asyncio.run(go("sjf")) == [5, 10, 20, 40]
    assert asyncio.run(go("anneal")) == [5, 10, 20, 40], "all are met, so the sum of the latencies decides"


def test_a_full_queue_answers_429_in_the_shape_of_the_api(tmp_path: Path) -> None:
    async def go() -> None:
        settings = "queue: {in_flight: 1, max_waiting: 1}\n"
        async with rig(tmp_path, *stepping(), settings=settings) as running:
            fleet = Fleet(running)
            await fleet.request()
            await fleet.request()
            status, error, retry = await post(running)
            assert (status, retry) == (429, "1")
            assert error == {
                "message": "too many requests wait: try again",
                "type": "rate_limit_error",
                "param": None,
                "code": "queue_full",
            }
            metrics = await running.metrics()
            assert metrics['otel_llm_relay_requests_total{code="429",instance=""}'] == 1
            assert metrics['otel_llm_relay_queue_refused_total{reason="queue_full"}'] == 1
            assert all(reply.done for reply in await fleet.finish())
        assert [one.get("error.type") for one in spans_of(running) if one["otel_llm.outcome"] == "error"] == ["429"]

    asyncio.run(go())


def test_a_request_that_waits_too_long_is_answered_429(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, *stepping(), settings="queue: {in_flight: 1, max_wait: 300ms}\n") as running:
            fleet = Fleet(running)
            await fleet.request()
            status, error, retry = await post(running)
            assert (status, error["code"], retry) == (429, "queue_timeout", "1")
            assert len(running.asked) == 1
            assert [reply.done for reply in await fleet.finish()] == [True]
        waits = [request["gen_ai.latency.time_in_queue"] for request in spans_of(running)]
        assert max(waits) >= 0.3

    asyncio.run(go())


def test_a_client_that_leaves_the_queue_is_asked_for_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, *stepping(), settings=ONE) as running:
            fleet = Fleet(running)
            await fleet.request()
            leaving = await fleet.request()
            leaving.cancel()
            await until(lambda: leaving.done())
            async with asyncio.timeout(WAIT_S):
                while await fleet.waiting():
                    await asyncio.sleep(0.005)
            fleet.reading.remove(leaving)
            await fleet.request()
            assert all(reply.done for reply in await fleet.finish())
            assert len(running.asked) == 2
            assert (await running.metrics())['otel_llm_relay_requests_total{code="499",instance=""}'] == 1

    asyncio.run(go())


def test_what_waits_is_shown(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, *stepping(), settings=ONE) as running:
            fleet = Fleet(running)
            await fleet.request()
            await fleet.request()
            rows: list[dict[str, Any]] = []
            async with asyncio.timeout(WAIT_S):
                while len(rows) < 2:
                    await asyncio.sleep(0.02)
                    rows = (await running.get("/v1/streams"))["streams"]
            assert sorted((row["queued"], row["instance"]) for row in rows) == [(False, "a"), (True, "")]
            async with running.session.get(running.web + "/v1/events") as response:
                while (await response.content.readline()) != b"event: page\n":
                    pass
                shown = json.loads((await response.content.readline()).removeprefix(b"data: "))
            assert sorted(row["queued"] for row in shown["streams"]) == [False, True]
            await fleet.finish()

    asyncio.run(go())


def test_a_drained_backend_gets_none_of_those_who_wait(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, *stepping(2), settings=ONE) as running:
            fleet = Fleet(running)
            for _ in range(4):
                await fleet.request()
            async with running.session.post(f"{running.web}/v1/backends/a/drain", json={}) as response:
                assert response.status == 200
            assert all(reply.done for reply in await fleet.finish())
            assert [len(engine.streams) for engine in running.engines] == [1, 3]

    asyncio.run(go())


def test_a_failover_does_not_queue_again(tmp_path: Path) -> None:
    """Both slots are taken and a third request waits; the one whose backend breaks goes on at the other at once."""

    async def go() -> None:
        async with rig(tmp_path, *stepping(2), settings=ONE) as running:
            fleet = Fleet(running)
            await fleet.request(body={**CHAT, "max_tokens": 5})
            busy = next(engine for engine in running.engines if engine.streams)
            broken = next(engine for engine in running.engines if engine is not busy)
            broken.next_fault(Fault("reset", after=1))
            await fleet.request(body={**CHAT, "max_tokens": 6})
            await fleet.request(body={**CHAT, "max_tokens": 7})
            assert await fleet.waiting() == 1
            await broken.step(1)
            await until(lambda: len(running.asked) == 4)
            assert [asked.json["max_tokens"] for asked in busy.streams] == [5, 6]
            assert [asked.json["max_tokens"] for asked in broken.streams] == [6, 7], "the third has the place left"
            assert all(reply.done for reply in await fleet.finish())

    asyncio.run(go())


def test_a_pause_gives_its_place_to_one_that_waits(tmp_path: Path) -> None:
    async def go() -> None:
        pause = Preempt(calm_s=3600.0)
        async with rig(tmp_path, *stepping(), settings=ONE, preempt=pause) as running:
            fleet = Fleet(running)
            await fleet.request()
            await running.engines[0].step(30)
            async with asyncio.timeout(WAIT_S):
                while not any(row["tokens"] >= 28 for row in (await running.get("/v1/streams"))["streams"]):
                    await asyncio.sleep(0.005)
            await fleet.request()
            assert await fleet.waiting() == 1
            assert (await running.preempt("a"))[0] == "done"
            await until(lambda: len(running.asked) == 2)
            assert all(reply.done for reply in await fleet.finish())

    asyncio.run(go())


def test_a_rule_can_abort_one_that_waits(tmp_path: Path) -> None:
    async def go() -> None:
        engine = FakeEngine()
        holds = Fault("stall", after=20)
        engine.next_fault(holds)
        async with rig(tmp_path, engine, settings=ONE, rules=ABORT) as running:
            fleet = Fleet(running)
            await fleet.request()
            status, error, retry = await asyncio.wait_for(post(running, CHAT, **{"x-slo-class": "batch"}), WAIT_S)
            assert (status, error["type"], error["code"], retry) == (503, "aborted", "aborted", None)
            holds.released.set()
            assert all(reply.done for reply in await fleet.finish())
        done = [one for one in running.decisions() if one["outcome"] == "done"]
        assert [(one["rule"], one["action"]) for one in done] == [("TooLate", "abort")]
        assert sorted(str(one.get("error.type")) for one in spans_of(running)) == ["None", "aborted"]

    asyncio.run(go())


@pytest.mark.parametrize("ends", [True, False], ids=["served in time", "cut"])
def test_those_who_wait_at_the_stop_are_served_within_the_drain_time_or_told(tmp_path: Path, ends: bool) -> None:
    async def go() -> None:
        settings = f"{ONE}limits: {{drain_seconds: {10 if ends else 0.3}}}\n"
        answers: list[tuple[int, dict[str, Any], str | None]] = []
        async with rig(tmp_path, *stepping(), settings=settings) as running:
            fleet = Fleet(running)
            await fleet.request()
            if ends:
                await fleet.request()
                running.service.stop.set()
                assert all(reply.done for reply in await fleet.finish())
                return
            asking = asyncio.create_task(post(running))
            async with asyncio.timeout(WAIT_S):
                while not await fleet.waiting():
                    await asyncio.sleep(0.005)
            running.service.stop.set()
            answers.append(await asking)
            assert len((await fleet.reading[0]).errors) == 1
        ((status, error, retry),) = answers
        assert (status, error["code"], retry) == (503, "shutting_down", "1")
        assert not running.service.clean

    asyncio.run(go())


def test_what_is_not_owned_does_not_wait_and_takes_a_place(tmp_path: Path) -> None:
    async def go() -> None:
        held = Fault("silent")
        engine = FakeEngine()
        async with rig(tmp_path, engine, settings=ONE, failover=Failover(first_byte_s=60.0)) as running:
            engine.next_fault(held)
            whole = asyncio.create_task(
                running.session.post(f"{running.url}/v1/chat/completions", data=json.dumps(CHAT))
            )
            await asyncio.wait_for(held.reached.wait(), WAIT_S)
            fleet = Fleet(running)
            await fleet.request()
            assert await fleet.waiting() == 1
            held.released.set()
            (await whole).close()
            assert [reply.done for reply in await fleet.finish()] == [True]

    asyncio.run(go())
