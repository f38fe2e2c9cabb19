"""Who does what, by the settings alone: kinds of engine, instances, and what is not even asked for."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from actions.orders import MS, NOW_NS, order
from support.actions.action_receiver import Came, Receiver, Say, receiving
from support.commands import wait_until
from support.patience import WAIT_S

from otel_llm.actions.execute.dispatcher import ActionDispatcher
from otel_llm.actions.execute.engines import VllmAbort
from otel_llm.actions.execute.events import Candidate
from otel_llm.actions.execute.executors import Executors
from otel_llm.actions.execute.open_actions import Completion
from otel_llm.actions.execute.webhook import Webhook
from otel_llm.actions.settings import ActionSettings, Engine, ServiceSettings
from otel_llm.rules.decisions.decision_records import Outcome
from otel_llm.shared.clock import FakeClock

VICTIM = Candidate((bytes(15) + b"\x09", bytes(7) + b"\x09", "default", 0), "batch", -1, 3.5)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "relay.secret"
    file.write_text("whsec_" + base64.b64encode(bytes(range(32))).decode() + "\n")
    return file


def found(*engines: Engine) -> Executors:
    actions = ActionSettings(engines={engine.name: engine for engine in engines})
    return Executors(ServiceSettings(actions=actions), "/here", "agent", lambda *_: True)


def relay(secret: Path, **instances: str) -> Engine:
    named = {name.replace("any", "*"): url for name, url in instances.items()}
    return Engine(name="r", kind="relay", instances=named, secret_file=secret)


@pytest.mark.parametrize(
    ("verb", "exclusive"), [("migrate", False), ("preempt", False), ("abort", True), ("drain", True)]
)
def test_a_relay_is_asked_at_one_path_for_four_verbs(secret: Path, verb: Any, exclusive: bool) -> None:
    asked = found(relay(secret, a="http://one:1/under", any="http://two:2")).find
    for instance, url in (("a", "http://one:1/under/v1/actions"), ("b", "http://two:2/v1/actions")):
        who = asked(order(action=verb, instance=instance, candidates=(VICTIM,)))
        assert isinstance(who, Webhook)
        assert (who.url, who.exclusive, who.in_stream) == (url, exclusive, False)


def test_what_is_asked_at_one_url_is_one_target(secret: Path) -> None:
    find = found(relay(secret, a="http://one:1", b="http://one:1", c="http://two:2")).find
    names = {}
    for verb, instance in (("migrate", "a"), ("abort", "b"), ("abort", "c")):
        who = find(order(action=verb, instance=instance))
        assert isinstance(who, Webhook)
        names[verb, instance] = who.target
    assert names == {("migrate", "a"): "engine:r/a", ("abort", "b"): "engine:r/a", ("abort", "c"): "engine:r/c"}


def test_a_router_is_one_target() -> None:
    router = Engine(name="s", kind="sglang_router", instances={"a": "http://w1", "b": "http://w2"}, url="http://router")
    asked = [found(router).find(order(action="drain", instance=name)) for name in "ab"]
    assert [one if isinstance(one, str) else one.target for one in asked] == ["engine:s", "engine:s"]


def test_a_relay_is_not_asked_for_more(secret: Path) -> None:
    assert found(relay(secret, any="http://a")).find(order(action="scale")) == (
        "no engine is configured that does `scale` for instance 'a'"
    )


def test_an_entry_for_the_instance_goes_before_the_one_for_any(secret: Path) -> None:
    vllm = Engine(name="v", kind="vllm", instances={"a": "http://a:1"})
    for engines in ((vllm, relay(secret, any="http://r")), (relay(secret, any="http://r"), vllm)):
        asked = found(*engines).find
        assert isinstance(asked(order(action="abort", instance="a")), VllmAbort)
        assert isinstance(asked(order(action="abort", instance="b")), Webhook)
        assert isinstance(asked(order(action="drain", instance="a")), Webhook)


def test_nobody_is_asked_to_preempt_where_there_is_nobody_to_take(secret: Path) -> None:
    asked = found(relay(secret, any="http://a")).find
    assert asked(order(action="preempt")) == "no candidate: no other stream is known on the instance"
    assert isinstance(asked(order(action="preempt", candidates=(VICTIM,))), Webhook)


@pytest.mark.parametrize(
    ("body", "outcome", "detail"),
    [
        (b'{"result":"done","detail":"moved to b"}', "done", "moved to b"),
        (b'{"result":"accepted","detail":"begun"}', "sent", "begun"),
        (b'{"result":"refused","detail":"the kill switch is there"}', "failed", "refused: the kill switch is there"),
        (b'{"result":"unknown_request","detail":""}', "failed", "unknown_request"),
    ],
)
@pytest.mark.parametrize("verb", ["migrate", "abort"])
def test_what_a_relay_answers_is_what_becomes_of_it(
    secret: Path, verb: Any, body: bytes, outcome: Outcome, detail: str
) -> None:
    with receiving(Receiver(lambda came, before: Say(body=body))) as receiver:
        dispatcher = ActionDispatcher(FakeClock(NOW_NS).now_ns, found(relay(secret, any=receiver.url)).find)
        assert completed(dispatcher, order(action=verb, ttl_ns=60_000 * MS)) == [Completion(outcome, detail)]
    assert [came.path for came in receiver.came] == ["/v1/actions"]


def test_migrations_are_not_held_back_by_each_other_and_drains_are(secret: Path) -> None:
    reported: list[str] = []

    def inner(came: Came, before: int) -> Say:
        if not reported:  # while the first is open
            reported.append("")
            for number, verb in ((2, "migrate"), (3, "drain"), (4, "abort")):
                dispatcher.take(
                    order(number, action=verb, ttl_ns=60_000 * MS), lambda how: reported.append(how.outcome)
                )
        return Say(body=b'{"result":"done","detail":""}')

    with receiving(Receiver(inner)) as receiver:
        dispatcher = ActionDispatcher(FakeClock(NOW_NS).now_ns, found(relay(secret, any=receiver.url)).find)
        assert [how.outcome for how in completed(dispatcher, order(action="drain", ttl_ns=60_000 * MS), more=1)] == [
            "done"
        ]
    assert sorted(reported[1:]) == ["budget", "budget", "done"]


def completed_count(dispatcher: ActionDispatcher) -> int:
    return sum(count for name, count in dispatcher.counts().items() if name.startswith("actions."))


def completed(dispatcher: ActionDispatcher, one: Any, more: int = 0) -> list[Completion]:
    """Do an order, and wait until it and `more` others are completed."""
    how: list[Completion] = []
    dispatcher.start()
    try:
        dispatcher.take(one, how.append)
        wait_until("it is completed", lambda: completed_count(dispatcher) >= 1 + 3 * bool(more))
    finally:
        dispatcher.stop(0.0)
    return how


@pytest.mark.parametrize("engines", ["Engine(name='v', kind='vllm', instances={'*': 'http://one:1'})", ""])
def test_the_first_action_does_not_wait_for_an_import(engines: str) -> None:
    code = (
        "import sys\n"
        "from actions.test_executors import Engine, found\n"
        "sys.modules.pop('requests', None)  # what the test's own module imports\n"
        f"found({engines})\n"
        "print('requests' in sys.modules)\n"
    )
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH"))))}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert done.stdout.split() == [str(bool(engines))]
