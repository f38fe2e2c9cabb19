"""Migrations that stand until they are done: attempted by the state of things, not by the instant of a decision."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from support.relay.decision_rig import CLASSES, MIGRATE, MOVED, Relay, Scripted, outcomes, rules
from support.relay.fake_loop import run

from otel_llm.actions.settings import ActionSettings, ServiceSettings
from otel_llm.formats.records import RequestKey
from otel_llm.relay.deciding.command import Command
from otel_llm.relay.deciding.own_actions import OwnActions
from otel_llm.shared.clock import FakeClock

FAILED: Any = ("failed", "b: 503", {"from": "a", "to": "b"})
DONE: Any = ("done", "", MOVED)


def attempts(records: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(one["outcome"], one["attempt"]) for one in records if one["action"] == "migrate"]


def test_what_failed_is_attempted_again_with_growing_pauses(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE))
    relay.actor.answers = [FAILED] * 9 + [DONE]

    async def script() -> None:
        relay.begin()
        await asyncio.sleep(10)

    records = relay.play(script)
    assert attempts(records) == [("failed", number) for number in range(1, 10)] + [("done", 10)]
    times = [ms for ms, _ in relay.asked_ms()]
    pauses = [after - before for before, after in pairwise(times)]
    usual = [50.0 * 2**number for number in range(5)] + [1000.0] * 4
    assert all(0.74 * one < pause < 1.27 * one for one, pause in zip(usual, pauses, strict=True)), pauses


def test_streams_that_wait_for_a_place_go_on_when_there_is_one_worst_off_first(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, f"{MIGRATE}; budget: {{in_flight: 1}}"))

    async def script() -> None:
        streams = [relay.begin(number) for number in (1, 2, 3)]
        await asyncio.sleep(0.05)
        for number, stream in enumerate(streams):
            for _ in range(1 + 5 * (2 - number)):  # the first has the most text, the last the least
                relay.token(stream)
        await asyncio.sleep(0.5)
        for number in range(3):
            assert len(relay.actor.asked) == number + 1
            relay.actor.completes[number](*DONE)
            await asyncio.sleep(0.001)

    records = relay.play(script)
    assert [cast("RequestKey", key)[0][-1] for _, _, key in relay.actor.asked] == [3, 2, 1]
    assert sorted(outcomes(records)) == [("migrate", "budget")] * 2 + [("migrate", "done")] * 3


def test_a_window_with_room_again_is_used(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, f"{MIGRATE}; budget: {{per_instance: 2 in 3s}}"))
    relay.actor.answers = [DONE] * 6

    async def script() -> None:
        for number in range(1, 7):
            relay.begin(number)
        await asyncio.sleep(10)

    relay.play(script)
    assert [round(ms) for ms, _ in relay.asked_ms()] == [300, 300, 3300, 3300, 6300, 6300]


def test_a_condition_that_did_not_hold_at_the_flip_is_looked_at_again(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, "migrate: {to: least_load, only_if: 'exact_resume'}"))
    relay.actor.answers = [DONE]

    async def script() -> None:
        stream = relay.begin()
        await asyncio.sleep(1)
        assert relay.actor.asked == []
        relay.loop.first_hand.identify(stream, exact_resume=True, now_ns=relay.clock.now_ns())
        await asyncio.sleep(0.1)

    assert attempts(relay.play(script)) == [("only_if", 1), ("done", 1)]


def test_a_lifted_kill_switch_lets_it_go_on(tmp_path: Path) -> None:
    switch = tmp_path / "off"
    switch.touch()
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE), ServiceSettings(actions=ActionSettings(kill_switch=switch)))
    relay.actor.answers = [DONE]

    async def script() -> None:
        relay.begin()
        await asyncio.sleep(3)
        assert relay.actor.asked == []
        switch.unlink()
        await asyncio.sleep(2)

    assert attempts(relay.play(script)) == [("shadow", 1), ("done", 1)]


def test_a_lifted_shadow_lets_it_go_on(tmp_path: Path) -> None:
    found = rules(tmp_path, MIGRATE)
    relay = Relay(tmp_path, found.in_shadow())
    relay.actor.answers = [DONE]

    async def script() -> None:
        relay.begin()
        await asyncio.sleep(1)
        relay.loop.reload(CLASSES, found)
        await asyncio.sleep(0.01)

    assert attempts(relay.play(script)) == [("shadow", 1), ("done", 1)]


def test_behind_a_move_that_was_done_the_condition_must_have_been_false(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE))
    relay.actor.answers = [DONE, DONE]

    async def script() -> None:
        relay.begin()
        await asyncio.sleep(10)  # no text came of it, so the condition holds on

    assert attempts(relay.play(script)) == [("done", 1)]


def test_nothing_is_attempted_behind_the_end_of_a_firing(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE))
    relay.actor.answers = [FAILED] * 20

    async def script() -> None:
        stream = relay.begin()
        await asyncio.sleep(0.4)
        relay.token(stream)
        asked = len(relay.actor.asked)
        await asyncio.sleep(0.25)
        assert len(relay.actor.asked) == asked
        relay.end(stream)

    relay.play(script)


@pytest.mark.parametrize("done", [True, False])
def test_only_open_and_done_attempts_count_for_a_request(tmp_path: Path, done: bool) -> None:
    relay = Relay(tmp_path, rules(tmp_path, f"{MIGRATE}; budget: {{per_request: 1}}", more=["keep_firing_for: 60s"]))
    relay.actor.answers = [DONE if done else FAILED, DONE]

    async def script() -> None:
        stream = relay.begin()
        await asyncio.sleep(0.301)
        relay.token(stream)
        await asyncio.sleep(1)

    assert attempts(relay.play(script)) == ([("done", 1), ("budget", 2)] if done else [("failed", 1), ("done", 2)])


def test_a_process_that_stood_still_reads_what_came_before_it_acts(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE))

    async def script() -> None:
        stream, loop = relay.begin(), asyncio.get_running_loop()
        await asyncio.sleep(0.1)
        relay.clock.pass_s(0.8)
        loop.call_soon(loop.call_soon, loop.call_soon, relay.token, stream)  # its bytes are read a few steps later
        await asyncio.sleep(0.1)

    relay.play(script)
    assert relay.actor.asked == []


@pytest.mark.parametrize(("ttl_s", "outcome"), [(10.0, "done"), (0.1, "failed")])
def test_a_collectors_migration_is_attempted_until_it_expires(ttl_s: float, outcome: str) -> None:
    clock = FakeClock()
    actor = Scripted(clock, answers=[("refuted", "", {}), FAILED, DONE])
    reported: list[str] = []

    async def go() -> None:
        actions = OwnActions(actor, clock)
        expires_ns = clock.now_ns() + int(ttl_s * 1e9)
        command = Command("act_1", "migrate", expires_ns, "R", {"to": "spread"}, (bytes(16), bytes(8), "default"))
        actions.do(command, lambda how: reported.append(how.outcome))
        await asyncio.sleep(5)

    run(clock, go())
    assert reported == [outcome]
