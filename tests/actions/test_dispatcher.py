"""The dispatcher: each action completed once, one open for an instance, withdrawn or wedged; on a fake clock."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from actions.orders import INSTANCE, MS, NOW_NS, Scripted, Ticking, decision, order
from support.commands import wait_until
from support.patience import WAIT_S

from otel_llm.actions.execute.circuit_breaker import FIRST_OPEN_S, HANGS
from otel_llm.actions.execute.dispatcher import MOST_WAITING, ActionDispatcher
from otel_llm.actions.execute.executor import Reply
from otel_llm.actions.execute.lanes import AT_ONCE, AT_ONE_RECEIVER
from otel_llm.actions.execute.open_actions import Completion, completed_decision
from otel_llm.shared.clock import FakeClock


class Rig:
    """A dispatcher with one executor for everything, and what was completed, by the order's number.

    `others`: the executors of some instances.
    """

    def __init__(
        self, executor: Any, clock: FakeClock | None = None, others: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        self.clock = FakeClock(NOW_NS) if clock is None else clock
        self.executor = executor
        by_instance = others or {}
        self.dispatcher = ActionDispatcher(
            self.clock.now_ns, lambda order: by_instance.get(order.instance, executor), **more
        )
        self.completed: dict[int, list[Completion]] = {}

    def take(self, number: int = 1, **of: Any) -> None:
        self.completed.setdefault(number, [])
        self.dispatcher.take(order(number, **of), self.completed[number].append)

    def outcomes(self, number: int = 1) -> list[str]:
        return [completed.outcome for completed in self.completed[number]]

    def wait(self, number: int = 1) -> str:
        wait_until(f"order {number} is completed", lambda: self.completed[number])
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
def test_a_reply_completes_what_nobody_can_look_at(rigs: Any, replies: list[Reply], outcome: str) -> None:
    rig = rigs(Scripted([*replies]), clock=Ticking())
    rig.take(ttl_ns=10_000 * MS)
    assert rig.wait() == outcome
    assert rig.dispatcher.counts()[f"actions.{outcome}"] == 1
    assert rig.dispatcher.counts()["actions_open"] == 0


def test_a_tenants_open_actions_leave_room_for_anothers(rigs: Any) -> None:
    rig = rigs(Scripted([]), start=False)

    def take(number: int, tenant: str) -> list[str]:
        one = order(number)
        assert one.decision.stream is not None
        stream = (*one.decision.stream[:2], tenant, 0)
        completed: list[Completion] = []
        rig.dispatcher.take(replace(one, decision=replace(one.decision, stream=stream)), completed.append)
        return [f"{one.outcome}: {one.detail}" for one in completed]

    mine = MOST_WAITING - MOST_WAITING // 8
    refused = [reported for number in range(1, MOST_WAITING + 1) for reported in take(number, "flood")]
    assert set(refused) == {f"failed: too many are open: {mine} of this tenant, {mine} of {MOST_WAITING} in all"}
    assert len(refused) == MOST_WAITING // 8
    assert take(MOST_WAITING + 1, "shop") == []
    rig.dispatcher.stop(0.0)
    assert rig.dispatcher.is_idle()


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
    assert rig.completed[2][0].open_elsewhere
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
    made = completed_decision(
        replace(decision(), budget={"in_flight": True}), Completion("budget", open_elsewhere=True)
    )
    assert (made.outcome, made.budget) == ("budget", {"in_flight": True, "confirmation": False})
    assert completed_decision(decision(), Completion("done")).budget == {}


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
            go_on.wait(WAIT_S)
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
    assert "cannot be read" in rig.completed[1][0].detail


def test_an_order_that_nobody_does_fails_at_once(rigs: Any) -> None:
    rig = rigs("no engine is configured")
    rig.take()
    assert rig.completed[1] == [Completion("failed", "no engine is configured")]


def test_stopping_completes_everything_once(rigs: Any) -> None:
    go_on = threading.Event()

    class Hangs(Scripted):
        def attempt(self, order: Any, now_ns: int, timeout_s: float) -> Reply:
            super().attempt(order, now_ns, timeout_s)
            go_on.wait(WAIT_S)
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

    completed: list[Completion] = []
    ActionDispatcher(FakeClock().now_ns, broken).take(order(instance=INSTANCE), completed.append)
    assert [one.outcome for one in completed] == ["failed"]


class Hanging(Scripted):
    """An executor that does not reply until the test says so."""

    def __init__(self, target: str, **more: Any) -> None:
        super().__init__(target=target, timeout_s=3600.0, **more)
        self.go_on = threading.Event()

    def attempt(self, order: Any, now_ns: int, timeout_s: float) -> Reply:
        super().attempt(order, now_ns, timeout_s)
        self.go_on.wait(WAIT_S)
        return Reply("done")


def test_receivers_that_hang_take_no_thread_of_others(rigs: Any) -> None:
    hanging = [Hanging(f"receiver:{at}") for at in range(AT_ONCE // AT_ONE_RECEIVER + 3)]
    good = Scripted(target="receiver:good")
    rig = rigs(good, others={one.target: one for one in hanging})
    for number in range(len(hanging) * 30):
        rig.take(number, instance=hanging[number % len(hanging)].target, ttl_ns=3_600_000 * MS)
    wait_until("they hang", lambda: sum(len(set(one.asked)) for one in hanging) >= AT_ONCE)
    for number in range(1000, 1010):
        rig.take(number, ttl_ns=3_600_000 * MS)
        assert rig.wait(number) == "sent"
    asked = [len(set(one.asked)) for one in hanging]
    assert max(asked) <= AT_ONE_RECEIVER
    assert min(asked) >= 1
    assert sum(asked) < AT_ONCE + len(hanging)
    for one in hanging:
        one.go_on.set()
    for number in range(len(hanging) * 30):
        assert rig.wait(number) == "done"


def test_a_look_that_hangs_keeps_nothing_else_from_being_seen(rigs: Any) -> None:
    class Blind(Scripted):
        go_on = threading.Event()

        def check(self, timeout_s: float) -> bool | None:
            if self.asked and threading.current_thread().name == "otel-llm-look":
                self.go_on.wait(WAIT_S)
            return False

    blind = Blind(target="engine:blind", exclusive=True)
    rig = rigs(Scripted(exclusive=True, seen=False), others={"blind": blind}, wedge_timeout_s=10.0)
    rig.take(1, action="drain", instance="blind")
    rig.take(2, action="drain", instance="b")
    rig.take(3, action="drain", instance="c")
    wait_until("accepted", lambda: rig.dispatcher.awaited() == 3)
    rig.dispatcher.tick(NOW_NS)
    rig.executor.seen = True
    assert (rig.wait(2), rig.wait(3)) == ("done", "done")
    rig.dispatcher.tick(NOW_NS + 11_000 * MS)
    assert rig.wait(1) == "unconfirmed"
    blind.go_on.set()


HUNG = Reply("again", "no answer in time", maybe_sent=True, late=True)


def hang_five(rig: Any) -> None:
    for number in range(HANGS):
        rig.take(number, ttl_ns=10_000 * MS, now_ns=rig.clock.at_ns)
        assert rig.wait(number) == "unconfirmed"


def test_nothing_is_sent_to_a_receiver_that_hangs_until_it_answers_again(rigs: Any) -> None:
    scripted = Scripted([*[HUNG] * 2 * HANGS])
    rig = rigs(scripted, clock=Ticking())
    shown = "action_circuit_open.receiver:scripted"
    assert rig.dispatcher.notes() == []
    hang_five(rig)
    assert rig.dispatcher.counts()[shown] == 1
    (note,) = rig.dispatcher.notes()
    assert note.startswith("no actions are sent to receiver:scripted: circuit open: 5 actions in a row")
    asked = len(scripted.asked)
    rig.take(10, ttl_ns=10_000 * MS, now_ns=rig.clock.at_ns)
    assert rig.outcomes(10) == ["failed"]
    assert rig.completed[10][0].detail.startswith("not sent to receiver:scripted: circuit open")
    assert len(scripted.asked) == asked
    rig.clock.pass_s(FIRST_OPEN_S)
    scripted.replies = [HUNG, HUNG]
    rig.take(11, ttl_ns=10_000 * MS, now_ns=rig.clock.at_ns)
    assert rig.wait(11) == "unconfirmed"
    rig.clock.pass_s(FIRST_OPEN_S)
    rig.take(12, ttl_ns=10_000 * MS, now_ns=rig.clock.at_ns)
    assert rig.wait(12) == "failed"  # open for twice as long
    rig.clock.pass_s(FIRST_OPEN_S)
    rig.take(13, ttl_ns=10_000 * MS, now_ns=rig.clock.at_ns)
    assert rig.wait(13) == "sent"
    assert rig.dispatcher.counts()[shown] == 0
    assert rig.dispatcher.notes() == []


def test_what_waits_behind_actions_that_hang_is_not_sent_either(rigs: Any) -> None:
    scripted = Scripted([HUNG] * 100)
    rig = rigs(scripted, clock=Ticking(), start=False)
    for number in range(300):
        rig.take(number, ttl_ns=3_600_000 * MS)
    rig.dispatcher.start()
    outcomes = [rig.wait(number) for number in range(300)]
    assert outcomes.count("failed") >= 300 - AT_ONE_RECEIVER - HANGS
    assert {outcome for outcome in outcomes if outcome != "failed"} == {"unconfirmed"}


@pytest.mark.parametrize(
    "reply", [Reply("again", "HTTP 503"), Reply("refused", "HTTP 400"), Reply("again", "no connection")]
)
def test_an_error_that_comes_at_once_opens_no_circuit(rigs: Any, reply: Reply) -> None:
    scripted = Scripted([reply] * 100)
    rig = rigs(scripted, clock=Ticking())
    for number in range(3 * HANGS):
        rig.take(number, ttl_ns=10_000 * MS, now_ns=rig.clock.at_ns)
        assert rig.wait(number) == "failed"
    assert rig.dispatcher.counts()["action_circuit_open.receiver:scripted"] == 0


def test_a_ttl_too_short_for_an_answer_says_nothing_of_the_receiver(rigs: Any) -> None:
    rig = rigs(Scripted([HUNG] * 100), clock=Ticking())
    for number in range(3 * HANGS):
        rig.take(number, ttl_ns=400 * MS, now_ns=rig.clock.at_ns)
        assert rig.wait(number) in ("unconfirmed", "expired")
    assert rig.dispatcher.counts()["action_circuit_open.receiver:scripted"] == 0


def test_two_thousand_at_once_are_completed_once_each(rigs: Any) -> None:
    rig = rigs(Scripted())
    for number in range(2000):
        rig.take(number, ttl_ns=3_600_000 * MS)
    wait_until("all are completed", lambda: all(rig.completed.values()))
    assert {outcome for number in range(2000) for outcome in rig.outcomes(number)} == {"sent"}
    assert sum(len(found) for found in rig.completed.values()) == 2000
    assert len(set(rig.executor.asked)) == 2000
    assert rig.dispatcher.counts()["actions_open"] == 0
    assert rig.dispatcher.is_idle()
