"""Rules on the relay's own streams: decided at exact flips, done by an actor, completed once, recorded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actions.orders import order
from support.patience import WAIT_S
from support.relay.decision_rig import (
    CLASSES,
    MIGRATE,
    MOVED,
    MS,
    Relay,
    Scripted,
    completed,
    outcomes,
    rules,
)

from otel_llm.actions.execute.open_actions import Completion
from otel_llm.actions.settings import (
    ActionSettings,
    Engine,
    Receiver,
    ServiceSettings,
)
from otel_llm.live.selection import Filter, Selection
from otel_llm.relay.deciding.own_actions import OwnActions
from otel_llm.shared.clock import FakeClock, MonotonicClock


def test_a_rule_is_evaluated_at_its_flip_and_nothing_polls(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE))
    relay.actor.answers = [("done", "", MOVED)]

    async def script() -> None:
        stream = relay.begin()
        await asyncio.sleep(0.2)
        relay.token(stream)
        await asyncio.sleep(60)
        relay.end(stream)

    records = relay.play(script)
    flip_ms = 500
    assert relay.asked_ms() == [(flip_ms, "migrate")]
    assert len(relay.evaluations) <= 8, "a minute of silence wakes no rule"
    assert outcomes(records) == [("migrate", "done"), (None, "ended")]
    first = records[0]
    assert first["flip_unix_nano"] - relay.began_ns == flip_ms * MS + 1
    assert {name: first[name] for name in MOVED} == MOVED
    assert first["trace_id"] == f"{1:032x}"
    assert relay.actor.asked[0][2] == ((1).to_bytes(16, "big"), (1).to_bytes(8, "big"), "default")
    assert any(line.startswith("RULE    R: migrate: done") for line in relay.reported)
    assert any("completed" in line for line in relay.reported)


def test_bytes_without_tokens_end_a_silence_and_no_gap(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE, when="silence_seconds > 0.3 && gap_seconds > 0.3"))
    relay.actor.answers = [("done", "", MOVED)]

    async def script() -> None:
        stream = relay.begin()
        for _ in range(10):
            await asyncio.sleep(0.25)
            relay.loop.first_hand.heard(stream, relay.clock.at_ns)
            relay.loop.rearm()
        await asyncio.sleep(60)
        relay.end(stream)

    records = relay.play(script)
    assert relay.asked_ms() == [(2_800, "migrate")]
    assert outcomes(records) == [("migrate", "done"), (None, "ended")]
    assert records[0]["flip_unix_nano"] - relay.began_ns == 2_800 * MS + 1


def test_tokens_do_not_set_the_timer_anew(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE))
    set_at: list[float] = []

    async def script() -> None:
        loop = asyncio.get_running_loop()
        call_at = loop.call_at

        def noted(when: float, *rest: Any, **more: Any) -> asyncio.TimerHandle:
            set_at.append(when)
            return call_at(when, *rest, **more)

        loop.call_at = noted  # type: ignore[method-assign,assignment]
        stream = relay.begin()
        for _ in range(100):
            relay.clock.pass_s(0.001)
            relay.token(stream)
        loop.call_at = call_at  # type: ignore[method-assign]
        relay.end(stream)

    relay.play(script)
    assert 1 <= len(set_at) <= 4


def test_a_completion_counts_once(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE))

    async def script() -> None:
        relay.begin()
        await asyncio.sleep(1)
        relay.actor.completes[0]("done", "moved", MOVED)
        relay.actor.completes[0]("failed", "again", {})

    records = relay.play(script)
    assert outcomes(records) == [("migrate", "done")]
    assert records[0]["detail"] == "moved"
    assert relay.loop.counts()["actions.done"] == 1
    assert relay.loop.counts()["actions_open"] == 0


def test_what_could_not_begin_within_its_time_to_live_is_not_begun(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, "abort: {}; ttl: 400ms"))

    async def script() -> None:
        relay.begin()
        relay.clock.pass_s(0.8)  # the process stood still
        await asyncio.sleep(0.1)

    records = relay.play(script)
    assert relay.actor.asked == []
    assert outcomes(records) == [("abort", "expired")]
    assert "from" not in records[0]


def test_the_kill_switch_is_looked_at_before_each_action(tmp_path: Path) -> None:
    switch = tmp_path / "off"
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE), ServiceSettings(actions=ActionSettings(kill_switch=switch)))
    relay.actor.answers = [("done", "", MOVED)]

    async def script() -> None:
        relay.begin(1)
        await asyncio.sleep(1)
        switch.touch()
        relay.begin(2)
        await asyncio.sleep(1)

    records = relay.play(script)
    assert outcomes(records) == [("migrate", "done"), ("migrate", "shadow")]
    assert records[1]["detail"] == "the kill switch is there"
    assert len(relay.actor.asked) == 1


def test_a_kill_switch_that_cannot_be_looked_at_counts_as_there(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    switch = ServiceSettings(actions=ActionSettings(kill_switch=tmp_path / "loop"))
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE), switch)

    async def script() -> None:
        relay.begin()
        await asyncio.sleep(1)

    assert outcomes(relay.play(script)) == [("migrate", "shadow")]
    assert relay.actor.asked == []


def test_a_disk_that_does_not_answer_holds_up_nothing_but_actions(tmp_path: Path) -> None:
    go, clock = threading.Event(), MonotonicClock()

    class Hanging(type(tmp_path)):  # type: ignore[misc]
        def stat(self, **_: Any) -> Any:
            go.wait(WAIT_S)
            raise FileNotFoundError

    async def main() -> list[Completion]:
        found: list[Completion] = []
        actor = Scripted(FakeClock())
        actions = OwnActions(actor, clock, kill_switch=Hanging(tmp_path), disk_timeout_s=0.01)
        actions.take(order(action="migrate", now_ns=clock.now_ns(), ttl_ns=10**11), found.append)
        while not found:
            await asyncio.sleep(0.001)
        go.set()
        await actions.stop(1.0)
        assert actor.asked == []
        return found

    completed = asyncio.run(main())
    assert [one.outcome for one in completed] == ["shadow"]
    assert "does not answer" in completed[0].detail


def test_budgets_bound_migrations_of_an_instance(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, f"{MIGRATE}; budget: {{per_instance: 2 in 10s}}"))

    async def script() -> None:
        for number in range(1, 4):
            relay.begin(number)
        await asyncio.sleep(1)
        for complete in relay.actor.completes:
            complete("done", "", MOVED)

    records = relay.play(script)
    assert outcomes(records) == [("migrate", "budget"), ("migrate", "done"), ("migrate", "done")]
    assert records[0]["budget"] == {"per_instance": False}


def test_a_refuted_migration_is_attempted_again_when_the_condition_holds_again(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, f"{MIGRATE}; budget: {{per_request: 1}}", more=["keep_firing_for: 60s"]))

    async def script() -> None:
        stream = relay.begin()
        await asyncio.sleep(0.35)
        relay.actor.completes[0]("refuted", "the source went on first", {"from": "a", "to": "b"})
        relay.token(stream)
        await asyncio.sleep(1)
        relay.actor.completes[1]("done", "", MOVED)
        relay.token(stream)
        await asyncio.sleep(1)

    records = relay.play(script)
    assert relay.asked_ms() == [
        (300.0, "migrate"),
        (650.0, "migrate"),
    ]
    assert outcomes(records) == [("migrate", "refuted"), ("migrate", "done"), ("migrate", "budget")]
    assert [one["attempt"] for one in records] == [1, 2, 3]
    assert [one["budget"] for one in records] == [{"per_request": held} for held in (True, True, False)]
    assert len({one["flip_unix_nano"] for one in records}) == 1, "all belong to one firing"


def test_one_action_of_a_request_is_open_at_a_time(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE))

    async def script() -> None:
        relay.begin(1, choice=0)
        relay.begin(1, choice=1)
        await asyncio.sleep(1)
        relay.actor.completes[0]("done", "", MOVED)

    records = relay.play(script)
    assert len(relay.actor.asked) == 1
    assert outcomes(records) == [("migrate", "budget"), ("migrate", "done")]
    assert records[0]["budget"] == {"confirmation": False}


def test_one_abort_or_drain_of_an_instance_is_open_at_a_time(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, "abort: {}"))

    async def script() -> None:
        relay.begin(1)
        relay.begin(2)
        relay.begin(3, instance="b")
        await asyncio.sleep(1)
        for complete in relay.actor.completes:
            complete("done", "", {})
        relay.begin(4)
        await asyncio.sleep(1)

    relay.play(script)
    assert [about for _, _, about in relay.actor.asked] == [
        (number.to_bytes(16, "big"), number.to_bytes(8, "big"), "default") for number in (1, 3, 4)
    ]


def test_a_drain_goes_to_the_actor_by_the_name_of_the_backend(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, "drain: {}"))
    relay.actor.answers = [("done", "", {})]

    async def script() -> None:
        relay.begin(instance="b")
        await asyncio.sleep(1)

    assert outcomes(relay.play(script)) == [("drain", "done")]
    assert relay.actor.asked[0][1:] == ("drain", "b")


def test_what_the_relay_does_not_do_goes_to_those_of_the_settings(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("whsec_" + "A" * 44)
    # Time passes in the loop while a thread tries in real time: the tries are over long before the actions expire.
    nowhere = Receiver(name="gateway", url="http://127.0.0.1:1/", secret_file=secret, timeout_s=3600.0, kind="action")
    actions = ("webhook: {to: gateway}; ttl: 1m", "scale: {by: 1}; ttl: 1m")
    relay = Relay(tmp_path, rules(tmp_path, *actions), ServiceSettings(receivers={"gateway": nowhere}))

    async def script() -> None:
        relay.begin()
        await asyncio.sleep(0.4)
        await completed(relay)

    records = relay.play(script)
    assert {record["action"]: record["outcome"] for record in records} == {
        "webhook": "failed",
        "scale": "failed",
    }
    assert relay.actor.asked == []


def test_a_router_that_the_settings_name_drains_instead_of_the_relay(tmp_path: Path) -> None:
    router = Engine(name="front", kind="sglang_router", instances={"a": "http://127.0.0.1:2"}, url="http://127.0.0.1:1")
    settings = ServiceSettings(actions=ActionSettings(engines={"front": router}))
    relay = Relay(tmp_path, rules(tmp_path, "drain: {}; ttl: 1m"), settings)  # as above

    async def script() -> None:
        relay.begin(1, instance="a")
        relay.begin(2, instance="b")
        await asyncio.sleep(0.4)
        relay.actor.completes[0]("done", "", {})
        await completed(relay)

    records = relay.play(script)
    assert [about for _, _, about in relay.actor.asked] == ["b"]
    assert sorted(record["outcome"] for record in records) == ["done", "failed"]


def test_an_action_in_shadow_is_recorded_and_not_done(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, f"{MIGRATE}; mode: shadow", "alert: {name: A}; mode: enforce"))

    async def script() -> None:
        relay.begin()
        await asyncio.sleep(1)

    assert outcomes(relay.play(script)) == [("migrate", "shadow"), ("alert", "done")]
    assert relay.actor.asked == []


def test_what_has_not_begun_is_withdrawn_with_its_stream(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE))

    async def script() -> None:
        stream = relay.begin()
        relay.clock.pass_s(0.3001)
        relay.token(stream)  # decides, between two steps of the loop
        relay.end(stream)
        await asyncio.sleep(1)

    records = relay.play(script)
    assert relay.actor.asked == []
    assert [outcome for action, outcome in outcomes(records) if action == "migrate"] in (["ended"], ["refuted"])


def test_a_reload_changes_rules_and_goes_on(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE, when="gap_seconds > 5.0"))

    async def script() -> None:
        relay.begin()
        await asyncio.sleep(0.1)
        relay.loop.reload(CLASSES, rules(tmp_path, "abort: {}"))
        await asyncio.sleep(1)

    relay.play(script)
    assert relay.asked_ms() == [(300.0, "abort")]


def test_a_bug_of_the_actor_stops_nothing(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE))
    relay.actor.answers = [
        RuntimeError("bug"),
        ("done", "", {"from": "a", "candidates": [{"nonsense": 1}]}),
        ("done", "", MOVED),
        ("done", "", MOVED),
    ]

    async def script() -> None:
        for number in (1, 2, 3):
            relay.begin(number)
            await asyncio.sleep(0.4)

    records = relay.play(script)
    assert [outcome for _, outcome in outcomes(records)] == ["unconfirmed", "done", "done", "done"]
    assert relay.loop.counts()["actions_open"] == 0


def test_an_actor_that_never_completes_is_given_up_behind_the_stream(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE))

    async def script() -> None:
        stream = relay.begin()
        await asyncio.sleep(0.5)
        relay.end(stream)
        await asyncio.sleep(11)
        assert relay.loop.counts()["actions_open"] == 0

    assert ("migrate", "unconfirmed") in outcomes(relay.play(script))


class FullDisk:
    def write(self, record: Mapping[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        pass


def test_a_full_disk_stops_nothing(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE))
    relay.actor.answers = [("done", "", MOVED), ("done", "", MOVED)]

    async def script() -> None:
        for number in (1, 2):
            relay.begin(number)
            await asyncio.sleep(0.4)

    relay.play(script, FullDisk())
    assert len(relay.actor.asked) == 2
    assert len(relay.loop.sinks.recent_decisions.of()) == 2


def test_a_bug_in_the_evaluation_is_counted_and_its_timer_rests(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE))

    async def script() -> None:
        def broken(now_ns: int) -> None:
            raise RuntimeError("bug")

        relay.begin()
        relay.loop.first_hand.advance = broken  # type: ignore[method-assign]
        await asyncio.sleep(5)

    relay.play(script)
    assert 1 <= relay.loop.internal_errors <= 6


def test_what_is_open_at_the_stop_is_completed(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE))

    async def script() -> None:
        relay.begin()
        await asyncio.sleep(0.4)

    records = relay.play(script)
    assert outcomes(records) == [("migrate", "unconfirmed")]
    assert records[0]["detail"] == "the relay stopped"


def test_the_web_port_is_shown_streams_and_metrics(tmp_path: Path) -> None:
    relay = Relay(tmp_path, rules(tmp_path, MIGRATE))
    relay.actor.answers = [("done", "", MOVED)] * 2
    seen: dict[str, Any] = {}

    async def script() -> None:
        relay.end(relay.begin(3, tokens=4))
        relay.begin(1, tokens=50)
        relay.begin(2, tokens=1)
        await asyncio.sleep(1)
        more = {((1).to_bytes(16, "big"), (1).to_bytes(8, "big"), "default"): {"exact_resume": True}}
        seen.update(relay.loop.streams(relay.clock.at_ns, lambda key: more.get(key, {})))
        most_first = Selection(Filter(sort="tokens"), (*next(iter(more)), 0))
        seen["by tokens"] = relay.loop.streams(relay.clock.at_ns, lambda key: more.get(key, {}), most_first)
        for family in relay.loop.families(relay.clock.at_ns):
            for sample in family.samples:
                seen[sample.name] = seen.get(sample.name, 0) + sample.value
                if sample.value and "runway" in sample.labels:
                    seen[sample.labels["runway"]] = sample.value

    relay.play(script)
    assert [int(row["trace_id"], 16) for row in seen["streams"]] == [2, 1]
    assert [row.get("exact_resume") for row in seen["streams"]] == [None, True]
    assert [row["tokens"] for row in seen["by tokens"]["streams"]] == [50, 1]
    followed = seen["by tokens"]["followed"]
    assert (followed["row"]["tokens"], followed["row"]["exact_resume"], followed["curve"]["n"][-1]) == (50, True, 50)
    assert (seen["in_flight"], seen["starving"], seen["judged"]) == (2, 1, 1)
    assert [row["outcome"] for row in seen["recent"]] == ["completed"]
    assert [one["outcome"] for one in seen["decisions"]] == ["done", "done"]
    assert seen["otel_llm_streams_in_flight"] == 2
    assert seen["otel_llm_streams_starving"] == 1
    assert (seen["waiting"], seen["3-10s"], seen["otel_llm_streams_by_runway"]) == (1, 1, 2)
    assert seen["otel_llm_requests_total"] == 1
    assert seen["otel_llm_idle_seconds_total"] > 0.5
    assert seen["otel_llm_relay_actions_total"] == 2
    assert seen["otel_llm_relay_decisions_total"] == 2
