"""The queue alone: it gives slots in order, and takes back a slot whose client has left. No sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest
from support.relay.fake_loop import run
from support.scheduling.profiles import SMALL_ENGINE

from otel_llm.relay.backends.backend import Backend
from otel_llm.relay.backends.backends import COMING_S, Backends
from otel_llm.relay.metrics import RelayMetrics
from otel_llm.relay.queueing.request_queue import Entry, NotQueuedError, RequestQueue
from otel_llm.relay.settings import Queue
from otel_llm.scheduling.placement import Demand
from otel_llm.scheduling.profiles.profile import LinearProfile, Terms
from otel_llm.shared.clock import FakeClock
from otel_llm.slo.classes import Deadline, SloClass

MS = 1_000_000
SLOW = LinearProfile(name="slow", terms=Terms(base=Fraction(100 * MS)), **SMALL_ENGINE)
QUICK, PATIENT = (SloClass(name, deadline=Deadline("dslo", wait, MS)) for name, wait in (("q", MS), ("p", 10**12)))


@dataclass
class Rig:
    """A queue before backends of one place each, under a clock that passes only while nothing is left to do."""

    settings: Queue
    names: str = "a"
    clock: FakeClock = field(default_factory=FakeClock)
    got: list[tuple[int, str]] = field(default_factory=list)
    """The slots in order: number of the request, and backend or reason."""
    asking: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        found = [Backend(name, f"http://{name}", profile=SLOW) for name in self.names]
        self.backends = Backends(found, lambda: self.clock.now_ns() / 1e9, eject_s=5.0)
        self.metrics = RelayMetrics()

    async def start(self) -> None:
        self.queue = RequestQueue(self.settings, "least_load", self.backends, self.metrics, self.clock.now_ns)
        self.backends.watched_by(lambda: None, self.queue.release)

    async def request(self, slo: SloClass = QUICK, output: int = 1) -> asyncio.Task[None]:
        """Let a request come, and everything happen that happens at once."""
        entry = self.queue.entry(slo, self.clock.now_ns(), 1, output, Demand(1))
        asking = asyncio.create_task(self._place(entry))
        self.asking.append(asking)
        await complete()
        return asking

    async def _place(self, entry: Entry) -> None:
        try:
            backend = await self.queue.place(entry)
            self.backends.begin(backend, 1)
            self.got.append((entry.request.number, backend.name))
        except NotQueuedError as refused:
            self.got.append((entry.request.number, refused.reason))

    async def end(self, name: str = "a") -> None:
        self.backends.end(self.backends.get(name), 1)
        await complete()

    def values(self) -> dict[str, float]:
        families = self.metrics.families(self.backends, 0, len(self.queue))
        return {
            sample.name + "".join(sample.labels.values()): sample.value for one in families for sample in one.samples
        }


async def complete() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def go(rig: Rig, test: Coroutine[Any, Any, None]) -> None:
    async def main() -> None:
        await rig.start()
        await test
        for asking in rig.asking:
            asking.cancel()
        await complete()
        rig.queue.close()

    run(rig.clock, main())


def test_a_place_is_given_at_once_and_the_rest_wait_by_arrival() -> None:
    rig = Rig(Queue(in_flight=2))

    async def test() -> None:
        for _ in range(4):
            await rig.request()
        assert rig.got == [(1, "a"), (2, "a")]
        assert len(rig.queue) == 2
        await rig.end()
        assert rig.got == [(1, "a"), (2, "a"), (3, "a")]
        await rig.end()
        await rig.end()
        assert rig.got[3:] == [(4, "a")]
        assert len(rig.queue) == 0

    go(rig, test())


def test_a_place_is_taken_before_its_request_begins() -> None:
    """Placed at one instant, before any of them begins: one a place, and no more."""
    rig = Rig(Queue(in_flight=1), "ab")

    async def test() -> None:
        entries = [rig.queue.entry(QUICK, 0, 1, 1, Demand(1)) for _ in range(3)]
        asking = [asyncio.create_task(rig.queue.place(entry)) for entry in entries]
        await complete()
        assert [one.done() for one in asking] == [True, True, False]
        assert {one.result().name for one in asking[:2]} == {"a", "b"}
        asking[2].cancel()

    go(rig, test())


def test_the_order_is_that_of_the_settings() -> None:
    rig = Rig(Queue(in_flight=1, order="edf"))

    async def test() -> None:
        await rig.request(PATIENT)
        await rig.request(PATIENT)
        await rig.request(QUICK)
        await rig.end()
        await rig.end()
        assert [number for number, _ in rig.got] == [1, 3, 2]

    go(rig, test())


def test_shortest_first_by_the_expected_output() -> None:
    rig = Rig(Queue(in_flight=1, order="sjf"))

    async def test() -> None:
        for output in (1, 9, 3, 5):
            await rig.request(output=output)
        for _ in range(3):
            await rig.end()
        assert [number for number, _ in rig.got] == [1, 3, 4, 2]

    go(rig, test())


def test_the_annealed_order_is_planned_while_requests_wait() -> None:
    """100 ms an iteration: the second is past its deadline, the third can be met."""
    rig = Rig(Queue(in_flight=1, order="anneal"))
    near = SloClass("near", deadline=Deadline("dslo", 150 * MS, 10**9))

    async def test() -> None:
        for slo in (QUICK, QUICK, near):
            await rig.request(slo)
        await asyncio.sleep(0.02)
        await rig.end()
        assert rig.got == [(1, "a"), (3, "a")]

    go(rig, test())


def test_a_newcomer_is_behind_the_plan_until_the_next_one() -> None:
    rig = Rig(Queue(in_flight=2, order="anneal"))

    async def test() -> None:
        for _ in range(4):
            await rig.request()
        await asyncio.sleep(0.02)
        entry = rig.queue.entry(QUICK, rig.clock.now_ns(), 1, 1, Demand(1))
        asking = asyncio.create_task(rig.queue.place(entry))
        await asyncio.sleep(0)  # it is in the queue, and no plan has it yet
        for _ in range(2):
            rig.backends.end(rig.backends.get("a"), 1)
        await complete()
        assert {number for number, _ in rig.got} == {1, 2, 3, 4}
        asking.cancel()

    go(rig, test())


def test_beyond_max_waiting_a_request_is_refused_at_once() -> None:
    rig = Rig(Queue(in_flight=1, max_waiting=1))

    async def test() -> None:
        for _ in range(3):
            await rig.request()
        assert rig.got == [(1, "a"), (3, "queue_full")]
        values = rig.values()
        assert values["otel_llm_relay_queue"] == 1
        assert values["otel_llm_relay_queue_refused_totalqueue_full"] == 1
        await rig.end()
        assert rig.got[-1] == (2, "a"), "those who wait stay"

    go(rig, test())


def test_none_may_wait_where_max_waiting_is_0() -> None:
    rig = Rig(Queue(in_flight=1, max_waiting=0))

    async def test() -> None:
        await rig.request()
        await rig.request()
        assert rig.got == [(1, "a"), (2, "queue_full")]

    go(rig, test())


def test_beyond_max_wait_a_request_is_refused_and_its_wait_is_no_place() -> None:
    rig = Rig(Queue(in_flight=1, max_wait_s=2.0))

    async def test() -> None:
        await rig.request()
        await rig.request()
        await asyncio.sleep(1.9)
        assert len(rig.got) == 1
        await asyncio.sleep(0.2)
        assert rig.got[1:] == [(2, "queue_timeout")]
        assert rig.values()["otel_llm_relay_queue_refused_totalqueue_timeout"] == 1
        await rig.end()
        await rig.request()
        assert rig.got[2:] == [(3, "a")]

    go(rig, test())


def test_the_wait_of_those_who_got_a_place_is_measured() -> None:
    rig = Rig(Queue(in_flight=1))

    async def test() -> None:
        await rig.request()
        await rig.request()
        await asyncio.sleep(3.0)
        await rig.end()
        values = rig.values()
        assert values["otel_llm_relay_queue_seconds_count"] == 2
        assert values["otel_llm_relay_queue_seconds_sum"] == pytest.approx(3.0, abs=0.1)

    go(rig, test())


def test_a_client_that_leaves_gives_up_its_turn() -> None:
    rig = Rig(Queue(in_flight=1, max_waiting=1))

    async def test() -> None:
        await rig.request()
        waiting = await rig.request()
        waiting.cancel()
        await complete()
        await rig.request()
        await rig.end()
        assert rig.got == [(1, "a"), (3, "a")]

    go(rig, test())


def test_a_client_that_leaves_in_the_instant_of_its_place_gives_it_to_the_next() -> None:
    rig = Rig(Queue(in_flight=1))

    async def test() -> None:
        await rig.request()
        leaving, _ = await rig.request(), await rig.request()
        rig.backends.end(rig.backends.get("a"), 1)  # the place is the second's, who has not been woken yet
        leaving.cancel()
        await complete()
        assert rig.got == [(1, "a"), (3, "a")]
        assert rig.backends.in_flight(rig.backends.get("a")) == 1

    go(rig, test())


def test_only_backends_that_take_requests_have_slots() -> None:
    rig = Rig(Queue(in_flight=1), "ab")

    async def test() -> None:
        rig.backends.drain("a")
        await rig.request()
        await rig.request()
        assert rig.got == [(1, "b")]
        rig.backends.drain("b")
        await rig.end("b")
        await rig.request()
        assert rig.got[1:] == [(3, "unavailable")], "a new request has no backend to wait for"
        rig.backends.drain("a", draining=False)
        await complete()
        assert rig.got[2:] == [(2, "a")], "one that waits is served by the backend that came back"

    go(rig, test())


def test_those_who_wait_for_a_backend_that_stays_away_are_told_so() -> None:
    rig = Rig(Queue(in_flight=1, max_wait_s=2.0))

    async def test() -> None:
        await rig.request()
        await rig.request()
        rig.backends.drain("a")
        await asyncio.sleep(2.1)
        assert rig.got[1:] == [(2, "unavailable")]

    go(rig, test())


def test_the_end_of_an_ejection_frees_a_backend_without_an_event() -> None:
    rig = Rig(Queue(in_flight=1), "ab")

    async def test() -> None:
        await rig.request()
        first = rig.got[0][1]
        other = "b" if first == "a" else "a"
        for _ in range(3):
            rig.backends.failed(rig.backends.get(other), client="one")
        await rig.request()
        assert len(rig.got) == 1
        await asyncio.sleep(6.0)
        assert rig.got[1:] == [(2, other)]

    go(rig, test())


def test_a_place_that_no_request_takes_up_is_free_again() -> None:
    """A migration that chose a backend, and then did not begin there."""
    rig = Rig(Queue(in_flight=1))

    async def test() -> None:
        rig.backends.choose("least_load", ())
        await rig.request()
        assert rig.got == []
        await asyncio.sleep(COMING_S + 1.0)
        assert rig.got == [(1, "a")]

    go(rig, test())
