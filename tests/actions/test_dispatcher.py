"""The dispatcher: each action settled once, one open for an instance, withdrawn or wedged; on a fake clock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from actions.orders import INSTANCE, MS, NOW_NS, Scripted, Ticking, decision, order
from support.commands import wait_until

from otel_llm.actions.execute.dispatcher import ActionDispatcher, Settled, settled_decision
from otel_llm.actions.execute.executor import Reply
from otel_llm.shared.clock import FakeClock


class Rig:
    """A dispatcher with one executor for everything, and what was settled, by the order's number."""

    def __init__(self, executor: Any, clock: FakeClock | None = None, **more: Any) -> None:
        self.clock = FakeClock(NOW_NS) if clock is None else clock
        self.executor = executor
        self.dispatcher = ActionDispatcher(self.clock.now_ns, lambda order: executor, **more)
        self.settled: dict[int, list[Settled]] = {}

    def take(self, number: int = 1, **of: Any) -> None:
        self.settled.setdefault(number, [])
        self.dispatcher.take(order(number, **of), self.settled[number].append)

    def outcomes(self, number: int = 1) -> list[str]:
        return [settled.outcome for settled in self.settled[number]]

    def wait(self, number: int = 1) -> str:
        wait_until(f"order {number} is settled", lambda: self.settled[number])
        (outcome,) = self.outcomes(number)
        return outcome


@pytest.fixture
def rigs() -> Iterator[Any]:
    made: list[Rig] = []

    def rig(executor: Any, *, start: bool = True, **more: Any) -> Rig:
        made.append(Rig(executor, **more))
        if start:
            made[-1].dispatcher.start()
        return made[-1]

    yield rig
    for one in made:
        one.dispatcher.stop(0.0)


@pytest.mark.parametrize(
    ("replies", "outcome"),
    [
        ([Reply("accepted")], "sent"),
        ([Reply("done")], "done"),
        ([Reply("refused", "x")], "failed"),
        ([Reply("again", "x"), Reply("again", "x")], "failed"),
        ([Reply("again", "x", maybe_sent=True), Reply("refused", "y")], "failed"),
    ],
)
def test_a_reply_settles_what_nobody_can_look_at(rigs: Any, replies: list[Reply], outcome: str) -> None:
    rig = rigs(Scripted([*replies]), clock=Ticking())
    rig.take(ttl_ns=10_000 * MS)
    assert rig.wait() == outcome
    assert rig.dispatcher.counts()[f"actions.{outcome}"] == 1
    assert rig.dispatcher.counts()["actions_open"] == 0


def test_what_may_have_arrived_is_unconfirmed(rigs: Any) -> None:
    rig = rigs(Scripted([Reply("again", "x", maybe_sent=True), Reply("again", "x")]), clock=Ticking())
    rig.take(ttl_ns=10_000 * MS)
    assert rig.wait() == "unconfirmed"


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ("cancelled", "done"),
        ("error", "done"),
        ("disconnected", "done"),
        ("abandoned", "done"),
        ("completed", "unconfirmed"),
        ("lost", "unconfirmed"),
    ],
)
def test_an_abort_is_done_when_its_stream_is_seen_to_end_so(rigs: Any, end: str, outcome: str) -> None:
    rig = rigs(Scripted(in_stream=True, exclusive=True))
    rig.take(action="abort")
    wait_until("asked", lambda: rig.executor.asked)
    wait_until("accepted", lambda: rig.dispatcher.awaited() == 1)
    assert rig.outcomes() == []
    other = decision(2).stream
    mine = decision(1).stream
    assert other is not None
    assert mine is not None
    rig.dispatcher.ended(other, "cancelled")
    assert rig.outcomes() == []
    rig.dispatcher.ended(mine, end)
    rig.dispatcher.ended(mine, end)
    assert rig.outcomes() == [outcome]


def test_an_instance_has_one_open_action_until_it_is_confirmed_or_wedged(rigs: Any) -> None:
    rig = rigs(Scripted(in_stream=True, exclusive=True), wedge_timeout_s=10.0)
    rig.take(1, action="abort")
    rig.take(2, action="abort")
    rig.take(3, action="abort", instance="b")
    assert rig.outcomes(2) == ["budget"]
    assert rig.settled[2][0].open_elsewhere
    wait_until("both are accepted", lambda: rig.dispatcher.awaited() == 2)
    stream = decision(3).stream
    assert stream is not None
    rig.dispatcher.ended(stream, "cancelled")
    assert rig.outcomes(3) == ["done"]
    rig.take(4, action="abort", instance="b")
    assert rig.outcomes(4) == []
    rig.dispatcher.tick(NOW_NS + 10_000 * MS - 1)
    assert rig.outcomes(1) == []
    rig.dispatcher.tick(NOW_NS + 10_000 * MS)
    assert rig.outcomes(1) == ["unconfirmed"]
    rig.take(5, action="abort")
    assert rig.outcomes(5) == []


def test_what_is_refused_for_another_that_is_open_says_so_in_its_budget() -> None:
    made = settled_decision(replace(decision(), budget={"in_flight": True}), Settled("budget", open_elsewhere=True))
    assert (made.outcome, made.budget) == ("budget", {"in_flight": True, "confirmation": False})
    assert settled_decision(decision(), Settled("done")).budget == {}


@pytest.mark.parametrize(("seen", "outcome"), [(True, "done"), (False, None), (None, "sent")])
def test_a_drain_is_looked_for(rigs: Any, seen: bool | None, outcome: str | None) -> None:
    rig = rigs(Scripted(exclusive=True, seen=seen))
    rig.take(action="drain")
    if outcome is not None:
        assert rig.wait() == outcome
        return
    wait_until("accepted", lambda: rig.dispatcher.awaited() == 1)
    rig.dispatcher.tick(NOW_NS)
    assert rig.outcomes() == []
    rig.executor.seen = True
    rig.dispatcher.tick(NOW_NS + 1)
    assert rig.wait() == "done"


@pytest.mark.parametrize("end", ["refuted", "resolved", "ended"])
def test_a_firing_that_ends_withdraws_what_nobody_has_sent(rigs: Any, end: str) -> None:
    rig = rigs(Scripted(), start=False)
    rig.take(1)
    rig.take(2)
    rig.take(3, rule_hash="f" * 16)
    rig.dispatcher.withdraw(decision(1, action=None, outcome=end, flip_ns=NOW_NS + 5))
    assert (rig.outcomes(1), rig.outcomes(2), rig.outcomes(3)) == ([end], [], [])
    rig.dispatcher.start()
    assert (rig.wait(2), rig.wait(3)) == ("sent", "sent")
    assert len(rig.executor.asked) == 2
    rig.dispatcher.withdraw(decision(2, action=None, outcome=end))
    assert rig.outcomes(2) == ["sent"]


def test_what_is_being_sent_is_not_withdrawn(rigs: Any) -> None:
    go_on = threading.Event()

    class Hangs(Scripted):
        def attempt(self, order: Any, now_ns: int, timeout_s: float) -> Reply:
            super().attempt(order, now_ns, timeout_s)
            go_on.wait(60)
            return Reply("accepted")

    rig = rigs(Hangs())
    rig.take()
    wait_until("asked", lambda: rig.executor.asked)
    rig.dispatcher.withdraw(decision(action=None, outcome="resolved"))
    assert rig.outcomes() == []
    go_on.set()
    assert rig.wait() == "sent"


def test_a_stream_that_ends_before_its_abort_is_sent_withdraws_it(rigs: Any) -> None:
    rig = rigs(Scripted(in_stream=True, exclusive=True), start=False)
    rig.take(action="abort")
    stream = decision().stream
    assert stream is not None
    rig.dispatcher.ended(stream, "completed")
    assert rig.outcomes() == ["ended"]
    rig.take(2, action="abort")
    assert rig.outcomes(2) == []  # the instance is free again


def test_what_expires_while_it_waits_is_never_sent(rigs: Any) -> None:
    rig = rigs(Scripted(), start=False)
    rig.take(ttl_ns=400 * MS)
    rig.clock.pass_s(0.4)
    rig.dispatcher.start()
    assert rig.wait() == "expired"
    assert rig.executor.asked == []


def test_the_kill_switch_holds_what_waits_too_and_lets_go_again(rigs: Any, tmp_path: Path) -> None:
    rig = rigs(Scripted(), start=False, kill_switch=tmp_path / "off")
    rig.take(1)
    (tmp_path / "off").write_text("")
    rig.take(2)
    rig.dispatcher.start()
    assert (rig.wait(1), rig.wait(2)) == ("shadow", "shadow")
    (tmp_path / "off").unlink()
    rig.take(3)
    assert rig.wait(3) == "sent"
    assert len(rig.executor.asked) == 1


def test_a_kill_switch_that_cannot_be_looked_at_is_there(rigs: Any, tmp_path: Path) -> None:
    rig = rigs(Scripted(), kill_switch=tmp_path / ("x" * 300))
    rig.take()
    assert rig.wait() == "shadow"
    assert "cannot be looked at" in rig.settled[1][0].detail


def test_an_order_that_nobody_does_fails_at_once(rigs: Any) -> None:
    rig = rigs("no engine is configured")
    rig.take()
    assert rig.settled[1] == [Settled("failed", "no engine is configured")]


def test_stopping_settles_everything_once(rigs: Any) -> None:
    go_on = threading.Event()

    class Hangs(Scripted):
        def attempt(self, order: Any, now_ns: int, timeout_s: float) -> Reply:
            super().attempt(order, now_ns, timeout_s)
            go_on.wait(60)
            return Reply("done")

    rig = rigs(Hangs())
    rig.take(1)
    wait_until("asked", lambda: rig.executor.asked)
    rig.dispatcher.stop(0.0)
    rig.take(2)
    go_on.set()
    assert (rig.outcomes(1), rig.outcomes(2)) == (["unconfirmed"], ["expired"])


def test_a_bug_while_finding_is_a_failure_of_the_action_alone() -> None:
    def broken(order: Any) -> Any:
        raise RuntimeError("x")

    settled: list[Settled] = []
    ActionDispatcher(FakeClock().now_ns, broken).take(order(instance=INSTANCE), settled.append)
    assert [one.outcome for one in settled] == ["failed"]


def test_two_thousand_at_once_are_settled_once_each(rigs: Any) -> None:
    rig = rigs(Scripted())
    for number in range(2000):
        rig.take(number, ttl_ns=3_600_000 * MS)
    wait_until("all are settled", lambda: all(rig.settled.values()))
    assert {outcome for number in range(2000) for outcome in rig.outcomes(number)} == {"sent"}
    assert sum(len(found) for found in rig.settled.values()) == 2000
    assert len(set(rig.executor.asked)) == 2000
    assert rig.dispatcher.counts()["actions_open"] == 0
    assert rig.dispatcher.is_idle()
