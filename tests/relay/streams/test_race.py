"""The walk through the destinations of one move, with destinations that answer when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from support.relay.fake_loop import run

from otel_llm.relay.answers import NO_BACKEND
from otel_llm.relay.attempts.race import SLOW, Race
from otel_llm.relay.backends.upstream import UpstreamError
from otel_llm.relay.streams.session import Wait
from otel_llm.shared.clock import FakeClock

START_S = 1.0


def loop_time() -> float:
    return asyncio.get_running_loop().time()


class Answer:
    """The stream of a destination."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Destinations:
    """An opening whose destinations fail, or answer after a while; `answers`: seconds, or the reason of a failure."""

    def __init__(self, **answers: float | str) -> None:
        self.answers = answers
        self.asked: list[tuple[str, float]] = []
        self.left: list[str] = []
        self.failures: list[tuple[str, str]] = []
        self.streams: list[Answer] = []
        self.gives_up = False

    async def destination(self, name: str, _reply: object) -> Answer:
        self.asked.append((name, asyncio.get_running_loop().time()))
        answer = self.answers[name]
        if isinstance(answer, str):
            raise UpstreamError(answer)
        try:
            await asyncio.sleep(answer)
        except asyncio.CancelledError:
            self.left.append(name)
            raise
        self.streams.append(Answer(name))
        return self.streams[-1]

    def start_s(self, _name: str, _reply: object) -> float:
        return START_S

    def failed(self, name: str, reason: str) -> None:
        self.failures.append((name, reason))


def walk(
    found: Destinations, *, dry: bool | None = False, until: Callable[[Race], Awaitable[Any]] | None = None
) -> tuple[str, Race]:
    """Return who has won, or the reason why nobody has; `dry` None: a hedge."""
    race = Race(cast("Any", found), cast("Any", None), list(found.answers), None if dry is None else lambda: bool(dry))

    async def go() -> str:
        try:
            won = await (race.run() if until is None else until(race))
        except UpstreamError as problem:
            return problem.reason
        await asyncio.sleep(0)
        return cast("Answer", won).name

    return run(FakeClock(), go()), race


def test_one_that_fails_gives_way_at_once() -> None:
    found = Destinations(a="503", b="broken", c=0.5)
    won, race = walk(found)
    assert (won, race.to) == ("c", "c")
    assert found.asked == [("a", 0.0), ("b", 0.0), ("c", 0.0)]
    assert race.failures == found.failures == [("a", "503"), ("b", "broken")]


def test_a_slow_one_gives_way_to_the_next() -> None:
    found = Destinations(a=5.0, b=0.5)
    won, race = walk(found)
    assert won == "b"
    assert found.asked == [("a", 0.0), ("b", 1.0)]
    assert found.left == ["a"]
    assert race.failures == [("a", SLOW)]
    assert found.failures == [], "to be slow is no failure of a backend"


def test_a_slow_one_goes_on_beside_the_next_while_the_reader_has_no_text() -> None:
    found = Destinations(a=1.4, b=9.0, c=9.0)
    won, _ = walk(found, dry=True)
    assert won == "a"
    assert found.left == ["b"]


def test_two_prefill_at_most() -> None:
    found = Destinations(a=50.0, b=50.0, c=50.0, d=0.1)
    won, _ = walk(found, dry=True)
    assert won == "d"
    assert found.asked == [("a", 0.0), ("b", 1.0), ("c", 2.0), ("d", 3.0)]
    assert found.left == ["a", "b", "c"]


@pytest.mark.parametrize("dry", [True, False])
def test_the_last_one_is_said_to_be_late_once(dry: bool) -> None:
    found, late = Destinations(a=5.0, b=9.0), list[float]()
    race = Race(cast("Any", found), cast("Any", None), ["a", "b"], lambda: dry, late=lambda: late.append(loop_time()))

    async def go() -> None:
        await race.run()

    run(FakeClock(), go())
    assert late == [2.0]


def test_a_hedge_asks_the_next_where_one_fails_and_not_where_one_is_slow() -> None:
    found = Destinations(a="503", b="broken", c=50.0, d=0.1)
    assert walk(found, dry=None)[0] == "c"
    assert found.asked == [("a", 0.0), ("b", 0.0), ("c", 0.0)]
    assert found.left == []


def test_a_hedge_asks_nobody_behind_one_that_is_silent() -> None:
    found = Destinations(a="503", b="silent", c=0.1)
    assert walk(found, dry=None)[0] == "silent"
    assert [name for name, _ in found.asked] == ["a", "b"]


def test_the_last_one_has_time() -> None:
    assert walk(Destinations(a="429", b=30.0))[0] == "b"


def test_all_fail() -> None:
    found = Destinations(a="503", b="silent")
    won, race = walk(found)
    assert won == "silent"
    assert race.failures == [("a", "503"), ("b", "silent")]
    assert walk(Destinations())[0] == NO_BACKEND


def test_two_that_answer_at_one_instant_are_not_both_kept() -> None:
    found = Destinations(a=1.5, b=0.5)
    won, _ = walk(found, dry=True)
    assert won in ("a", "b")
    assert {one.name for one in found.streams if not one.closed} == {won}


def test_a_walk_that_is_given_up_leaves_nobody_open() -> None:
    async def give_up(race: Race) -> Any:
        task = asyncio.create_task(race.run())
        await asyncio.sleep(0.5)  # the destination answers in the same step
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        raise UpstreamError("given up")

    found = Destinations(a=0.5)
    assert walk(found, until=give_up)[0] == "given up"
    assert all(one.closed for one in found.streams)


# The wait of the task that reads.


async def soon(wait: Wait, end: Callable[[], object]) -> None:
    await asyncio.sleep(0.01)
    end()


def test_a_wait_is_ended_by_another_task() -> None:
    async def go() -> None:
        wait = Wait()
        wait.end()  # nobody waits: no effect
        ending = asyncio.create_task(soon(wait, wait.end))
        assert await wait.on(asyncio.sleep(10, "slept")) is None
        assert await wait.on(asyncio.sleep(0.01, "slept")) == "slept"
        await ending
        own = asyncio.current_task()
        assert own is not None
        assert own.cancelling() == 0

    run(FakeClock(), go())


@pytest.mark.parametrize("both", [False, True])
def test_a_cancellation_of_the_task_is_none_of_the_wait(both: bool) -> None:
    async def go() -> None:
        wait = Wait()
        task = asyncio.create_task(wait.on(asyncio.sleep(10)))
        await asyncio.sleep(0.01)
        if both:
            wait.end()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(FakeClock(), go())
