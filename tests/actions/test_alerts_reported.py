"""Alerts as receivers get them: signed webhooks, a log file, OTLP events; repeated, given up, and over restarts."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from support.actions.action_receiver import Came, Receiver, Say, receiving
from support.actions.alerting import T0, decision
from support.collector.out_receiver import BACKENDS, Backend
from support.commands import wait_until
from support.patience import WAIT_S

from otel_llm.actions import settings
from otel_llm.actions.alerts.alerts import STATE_FILE, Alerts
from otel_llm.actions.settings import AlertSettings
from otel_llm.collector.settings import Settings
from otel_llm.config.otlp_target import OtlpTarget
from otel_llm.shared.clock import MonotonicClock

SECRETS = ["whsec_" + base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2)]


def settings_of(folder: Path, url: str | None = None, **alerts: Any) -> Settings:
    (folder / "secrets").write_text("\n".join(SECRETS))
    receivers = {} if url is None else {"oncall": settings.Receiver(url=url, secret_file=folder / "secrets")}
    made = AlertSettings(receivers=tuple(receivers), settle_s=0.05, **alerts)
    return Settings(receivers=receivers, alerts=made)


def running(folder: Path, settings: Settings) -> Alerts:
    made = Alerts(settings, folder, MonotonicClock())
    made.start()
    return made


def now(offset_s: float = 0.0) -> float:
    """Return the time on this machine, in seconds since T0."""
    return (MonotonicClock().now_ns() - T0) / 1e9 + offset_s


def fire_and_resolve(alerts: Alerts, instance: str = "a") -> None:
    alerts.take(decision(1, now(), instance=instance))
    alerts.take(decision(1, now(), "resolved", instance=instance))


def events(receiver: Receiver) -> list[tuple[str, str]]:
    with receiver.lock:
        bodies = [json.loads(one.body) for one in receiver.came]
    return [(body["type"], body["data"]["labels"]["instance"]) for body in bodies]


FIRING, RESOLVED = "io.otel_llm.alert.firing.v1", "io.otel_llm.alert.resolved.v1"


def test_a_receiver_gets_signed_events_in_order(tmp_path: Path) -> None:
    with receiving(Receiver()) as receiver:
        alerts = running(tmp_path, settings_of(tmp_path, receiver.url + "/hook?team=a"))
        assert alerts.sends
        fire_and_resolve(alerts, instance="a")
        wait_until("both came", lambda: len(receiver.came) == 2)
        alerts.stop(WAIT_S)
    assert events(receiver) == [(FIRING, "a"), (RESOLVED, "a")]
    for one in receiver.came:
        assert (one.method, one.path) == ("POST", "/hook?team=a")
        for secret in SECRETS:  # while one is being replaced a receiver may know either
            body = standardwebhooks.Webhook(secret).verify(one.body.decode(), dict(one.headers))
        assert body["id"] == one.headers["webhook-id"]
        assert body["specversion"] == "1.0"
        assert body["data"]["annotations"]["total"] == "1"
        assert body["data"]["labels"] == {
            "alertname": "Starving",
            "instance": "a",
            "model": "m",
            "slo_class": "chat",
        }
    assert len(set(receiver.ids())) == 2
    assert alerts.counts()["notifications_sent"] == 2


def test_what_fails_is_repeated_under_its_id_and_in_order(tmp_path: Path) -> None:
    def answer(came: Came, before: int) -> Say:
        return Say(503, headers=(("Retry-After", "0"),)) if before == 0 else Say(drop=before == 1)

    with receiving(Receiver(answer)) as receiver:
        alerts = running(tmp_path, settings_of(tmp_path, receiver.url))
        fire_and_resolve(alerts)
        wait_until("all came", lambda: len(receiver.came) == 4)
        alerts.stop(WAIT_S)
    assert [kind for kind, _ in events(receiver)] == [FIRING, FIRING, FIRING, RESOLVED]
    assert len(set(receiver.ids()[:3])) == 1
    stamps = [int(one.headers["webhook-timestamp"]) for one in receiver.came]
    assert stamps == sorted(stamps)
    assert alerts.counts()["notifications_retries"] == 2


@pytest.mark.parametrize("reported", [Say(404), Say(410), Say(301, headers=(("Location", "/elsewhere"),))])
def test_what_is_refused_for_good_goes_to_the_dead_letters(tmp_path: Path, reported: Say) -> None:
    with receiving(Receiver(lambda came, before: reported)) as receiver:
        alerts = running(tmp_path, settings_of(tmp_path, receiver.url + "/hook", dead_letter=tmp_path / "dead.jsonl"))
        fire_and_resolve(alerts)
        wait_until("both were given up", lambda: alerts.counts()["notifications_given_up"] == 2)
        alerts.stop(WAIT_S)
        assert {one.path for one in receiver.came} == {"/hook"}
    dead = [json.loads(line) for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    assert [one["id"] for one in dead] == receiver.ids()
    assert {one["reason"][:8] for one in dead} == {f"HTTP {reported.status}"}
    assert [json.loads(one["body"])["type"] for one in dead] == [FIRING, RESOLVED]


def test_the_log_has_a_line_for_each_beginning_and_end(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "alerts.jsonl"
    alerts = running(tmp_path, settings_of(tmp_path, log=log))
    fire_and_resolve(alerts, instance="a")
    wait_until("both are there", lambda: log.exists() and log.read_text().count("\n") == 2)
    alerts.stop(WAIT_S)
    firing, resolved = (json.loads(line) for line in log.read_text().splitlines())
    assert (firing["status"], resolved["status"]) == ("firing", "resolved")
    assert firing["ends_unix_nano"] is None
    assert resolved["starts_unix_nano"] == firing["starts_unix_nano"] <= resolved["ends_unix_nano"]
    assert firing["labels"]["instance"] == "a"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_otlp_gets_an_event_for_each_beginning_and_end(tmp_path: Path, protocol: Any) -> None:
    backend = Backend()
    with BACKENDS[protocol](backend) as port:
        target = OtlpTarget(endpoint=f"http://127.0.0.1:{port}", protocol=protocol, timeout_s=WAIT_S)
        alerts = running(tmp_path, settings_of(tmp_path, otlp=target))
        fire_and_resolve(alerts, instance="a")
        wait_until("both came", lambda: len(backend.bodies) == 2)
        alerts.stop(WAIT_S)
    records = [
        record
        for _, body in backend.bodies
        for resource in ExportLogsServiceRequest.FromString(body).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]
    assert [(one.event_name, one.severity_number) for one in records] == [("otel_llm.alert", 13), ("otel_llm.alert", 9)]
    reported = {one.key: one.value.string_value for one in records[0].attributes}
    assert reported["status"] == "firing"
    assert reported["label.instance"] == "a"
    assert reported["annotation.rules"] == "ReaderStarving"


def test_without_a_place_nothing_is_kept(tmp_path: Path) -> None:
    alerts = running(tmp_path, Settings())
    assert not alerts.sends
    fire_and_resolve(alerts)
    assert not alerts.notify("oncall", "id", b"{}", "x")
    alerts.stop(WAIT_S)
    assert list(tmp_path.iterdir()) == []
    assert alerts.counts()["alerts_firing"] == 0


def test_a_message_of_somebody_else_is_brought_as_durably(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "http://127.0.0.1:9")
    alerts = running(tmp_path, settings)
    assert alerts.notify("oncall", "act_1", b'{"type":"x"}', "act_1")
    assert not alerts.notify("nobody", "act_1", b"{}", "act_1")
    wait_until("it was tried", lambda: alerts.counts()["notifications_retries"] > 0)
    alerts.stop(WAIT_S)
    with receiving(Receiver()) as receiver:
        again = running(tmp_path, settings_of(tmp_path, receiver.url))
        wait_until("it came", lambda: receiver.ids() == ["act_1"])
        again.stop(WAIT_S)
    assert receiver.came[0].body == b'{"type":"x"}'


def crashed(alerts: Alerts, folder: Path) -> None:
    """Let a run end without a word: what is on the disk stays as it was."""
    state = (folder / STATE_FILE).read_bytes()
    alerts.stop(WAIT_S)
    (folder / STATE_FILE).write_bytes(state)


@pytest.mark.parametrize("end", [crashed, lambda alerts, _: alerts.stop(WAIT_S)], ids=["crash", "stop"])
def test_a_restart_tells_nothing_twice_and_forgets_nothing(tmp_path: Path, end: Callable[[Alerts, Path], None]) -> None:
    log = tmp_path / "alerts.jsonl"
    with receiving(Receiver()) as receiver:
        settings = settings_of(tmp_path, receiver.url, log=log)
        alerts = running(tmp_path, settings)
        taken = [decision(1, now(), instance="a"), decision(2, now(), instance="b")]
        for one in taken:
            alerts.take(one)
        wait_until("both fire", lambda: len(receiver.came) == 2 and alerts.counts()["notifications_waiting"] == 0)
        kept = (tmp_path / "alerts.json").read_bytes
        wait_until("that is written down", lambda: json.loads(kept())["messages"] == [])
        end(alerts, tmp_path)
        again = Alerts(settings, tmp_path, MonotonicClock())
        again.take(taken[0])  # the journal, read again, says that this stream is still there and starves
        again.start()
        again.take(decision(3, now(), instance="c"))
        wait_until("the rest came", lambda: len(receiver.came) == 4)
        again.take(decision(1, now(), "resolved", instance="a"))
        wait_until("the last came", lambda: len(receiver.came) == 5)
        wait_until("nothing waits", lambda: again.counts()["notifications_waiting"] == 0)
        again.stop(WAIT_S)
        assert sorted(events(receiver)) == [
            (FIRING, "a"),
            (FIRING, "b"),
            (FIRING, "c"),
            (RESOLVED, "a"),
            (RESOLVED, "b"),
        ]
        assert len(set(receiver.ids())) == 5
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(line["id"] for line in lines) == sorted(receiver.ids())


def test_what_was_on_its_way_in_a_crash_arrives_and_the_log_has_it_once(tmp_path: Path) -> None:
    log = tmp_path / "alerts.jsonl"
    with receiving(Receiver()) as receiver:
        settings = settings_of(tmp_path, receiver.url, log=log)
        alerts = running(tmp_path, settings)
        alerts.take(decision(1, now(), instance="a"))
        wait_until("it came", lambda: len(receiver.came) == 1)
        alerts.stop(WAIT_S)
        state = json.loads((tmp_path / "alerts.json").read_text())
        body = receiver.came[0].body.decode()
        line = log.read_text().strip()
        at_ns = state["saved_ns"]
        state["messages"] = [  # as if the crash had come between the sending and the writing down
            {
                "id": receiver.ids()[0],
                "to": to,
                "about": "a",
                "body": reported,
                "first_ns": at_ns,
                "next_ns": 0,
                "tries": 0,
            }
            for to, reported in (("webhook:oncall", body), ("log", line), ("webhook:gone", body))
        ]
        (tmp_path / "alerts.json").write_text(json.dumps(state))
        again = Alerts(settings, tmp_path, MonotonicClock())
        again.take(decision(1, now(), instance="a"))
        again.start()
        wait_until("nothing waits", lambda: again.counts()["notifications_sent"] == 2)
        again.stop(WAIT_S)
        assert len(set(receiver.ids())) == 1  # by its id the receiver knows it again
        assert receiver.ids() == receiver.ids()[:1] * 2
    assert log.read_text().strip() == line
    (dead,) = (json.loads(one) for one in (tmp_path / "dead_letters.jsonl").read_text().splitlines())
    assert dead["reason"] == "webhook:gone is not configured any more"


def test_what_is_told_is_written_down_before(tmp_path: Path) -> None:
    """A process that dies while a receiver takes its time does not forget."""
    asked = threading.Event()

    def answer(came: Came, before: int) -> Say:
        asked.wait(WAIT_S)
        return Say()

    with receiving(Receiver(answer)) as receiver:
        alerts = running(tmp_path, settings_of(tmp_path, receiver.url))
        alerts.take(decision(1, now()))
        wait_until("it came", lambda: len(receiver.came) == 1)
        kept = json.loads((tmp_path / "alerts.json").read_text())
        asked.set()
        alerts.stop(WAIT_S)
        assert [message["id"] for message in kept["messages"]] == receiver.ids()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 2}', '{"version":1,"saved_ns":1,"alerts":[{}]}', "\0"])
def test_a_broken_state_is_no_reason_to_stop(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "alerts.json").write_text(text)
    log = tmp_path / "alerts.jsonl"
    alerts = Alerts(settings_of(tmp_path, log=log), tmp_path, MonotonicClock())
    alerts.take(decision(1, now()))
    alerts.start()
    wait_until("the log is written", log.exists)
    alerts.stop(WAIT_S)
    assert "alerts.json: cannot be used" in caplog.text
    assert json.loads((tmp_path / "alerts.json").read_text())["version"] == 1


def test_two_thousand_at_once_are_one_message(tmp_path: Path) -> None:
    with receiving(Receiver()) as receiver:
        alerts = running(tmp_path, settings_of(tmp_path, receiver.url))
        at_s = now()
        for number in range(2000):
            alerts.take(decision(number, at_s))
        wait_until("it came", lambda: len(receiver.came) == 1)
        wait_until("all are in", lambda: alerts.counts()["alerts_firing"] == 1)
        alerts.stop(WAIT_S)
        assert len(receiver.came) == 1
