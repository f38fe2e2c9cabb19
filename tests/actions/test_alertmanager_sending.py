"""What one Alertmanager is sent, when, and again; a server that keeps the requests and answers as a test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.actions.action_receiver import Came, Receiver, Say, receiving
from support.actions.alerting import T0, S, decision

from otel_llm.actions.alerts.alert_formats import for_alertmanager
from otel_llm.actions.alerts.alertmanager import MOST_AT_ONCE, Alertmanager, Post, valid_ns
from otel_llm.actions.alerts.firing import Firing
from otel_llm.actions.alerts.places import Key
from otel_llm.actions.settings import AlertmanagerSettings
from otel_llm.shared.clock import FakeClock

RESEND_S = 30.0
Sent = list[list[dict[str, Any]]]


class Board:
    """Alerts, and one Alertmanager that gets them, stepped by hand."""

    def __init__(self, url: str, bearer_file: Path | None = None) -> None:
        self.settings = AlertmanagerSettings(
            urls=(url,), resend_s=RESEND_S, resolved_for_s=900.0, timeout_s=5.0, bearer_file=bearer_file
        )
        self.firing = Firing(5 * S, 900 * S)
        self.firing.begin([], None, T0)
        self.manager = Alertmanager(url, self.settings, FakeClock(T0), self.render)

    def render(self, now_ns: int, fresh: Mapping[Key, int]) -> tuple[list[Post], set[Key]]:
        alerts = self.firing.alerts()
        posts = [
            Post(one.key, one.version, for_alertmanager(one, now_ns, valid_ns(self.settings)))
            for one in alerts
            if fresh.get(one.key) != one.version
        ]
        return posts, {one.key for one in alerts}

    def step(self, at_s: float) -> float | None:
        now_ns = T0 + round(at_s * S)
        self.firing.poll(now_ns)
        return self.manager.step(now_ns)


def sent(receiver: Receiver) -> Sent:
    return [json.loads(one.body) for one in receiver.came]


def names(batches: Sent) -> list[list[str]]:
    return [[entry["labels"]["instance"] for entry in batch] for batch in batches]


def seconds(entry: dict[str, Any], key: str) -> float:
    """Return an instant of an entry in seconds since T0 (14:13:20)."""
    hours, minutes, rest = entry[key].removeprefix("2026-09-21T").removesuffix("Z").split(":")
    return float(hours) * 3600 + float(minutes) * 60 + float(rest) - (14 * 3600 + 13 * 60 + 20)


def test_an_alert_is_sent_at_once_and_at_each_interval_and_as_resolved_for_a_while() -> None:
    with receiving(Receiver()) as receiver:
        board = Board(receiver.url)
        board.firing.take(decision(1, 1))
        for at_s in (2, 3, 31.9, 32, 40):
            assert board.step(at_s) is None
        assert [(one.method, one.path) for one in receiver.came] == [("POST", "/api/v2/alerts")] * 2
        ((first,), (again,)) = sent(receiver)
        assert first["labels"] == {"alertname": "Starving", "instance": "a", "model": "m", "slo_class": "chat"}
        assert (seconds(first, "startsAt"), seconds(first, "endsAt")) == (1, 2 + 4 * RESEND_S)
        assert (seconds(again, "startsAt"), seconds(again, "endsAt")) == (1, 32 + 4 * RESEND_S)
        board.firing.take(decision(1, 50, "resolved"))
        receiver.came.clear()
        for at_s in (54, 55, 70, 85, 949):
            board.step(at_s)
        assert [seconds(batch[0], "endsAt") for batch in sent(receiver)] == [50, 50, 50]
        board.step(950)  # 900 s after its end it is forgotten
        board.step(1000)
        assert len(receiver.came) == 3
        assert board.manager.counts.sent == 5


def test_a_growing_alert_is_not_sent_with_every_stream() -> None:
    with receiving(Receiver()) as receiver:
        board = Board(receiver.url)
        for number in range(100):
            board.firing.take(decision(number, 1))
            board.step(2)
        assert len(receiver.came) == 1
        board.step(33)
        assert sent(receiver)[1][0]["annotations"]["count"] == "100"


@pytest.mark.parametrize(
    "reported",
    [Say(500), Say(503), Say(429), Say(404), Say(302, headers=(("Location", "/elsewhere"),)), Say(drop=True)],
)
def test_what_fails_is_sent_again_as_it_is_then(reported: Say) -> None:
    """Also if the settings are wrong: nothing is lost by waiting for who puts them right."""

    def answer(came: Came, before: int) -> Say:
        return reported if before < 3 else Say()

    with receiving(Receiver(answer)) as receiver:
        board = Board(receiver.url)
        board.firing.take(decision(1, 1, instance="a"))
        waits = [board.step(2)]
        board.firing.take(decision(2, 2.5, instance="b"))
        waits += [board.step(3), board.step(4), board.step(6), board.step(7)]
        assert names(sent(receiver)) == [["a"], ["a", "b"], ["a", "b"], ["a", "b"]]
        assert {one.path for one in receiver.came} == {"/api/v2/alerts"}
    first, second, third, fourth, fifth = waits
    assert first is not None
    assert second is not None
    assert third is not None
    assert 0.8 <= first <= 1.2
    assert 1.6 <= second <= 2.4
    assert 3.2 <= third <= 4.8
    assert (fourth, fifth) == (None, None)
    assert (board.manager.counts.failures, board.manager.counts.sent) == (3, 2)


def test_what_resolved_while_nobody_listened_is_told_when_somebody_does() -> None:
    away = True

    def answer(came: Came, before: int) -> Say:
        return Say(503) if away else Say()

    with receiving(Receiver(answer)) as receiver:
        board = Board(receiver.url)
        board.firing.take(decision(1, 1))
        board.step(2)
        board.firing.take(decision(1, 3, "resolved"))
        board.step(100)
        away = False
        board.step(200)
    assert seconds(sent(receiver)[-1][0], "endsAt") == 3


def refusing(bad: set[str]) -> Callable[[Came, int], Say]:
    """Answer as Alertmanager does: 400 for the batch, though what is good in it was taken."""

    def answer(came: Came, before: int) -> Say:
        entries = json.loads(came.body)
        wrong = [entry for entry in entries if entry["labels"]["instance"] in bad]
        return Say(400, b'"invalid label set"') if wrong else Say()

    return answer


def test_one_alert_that_is_refused_holds_up_no_other() -> None:
    with receiving(Receiver(refusing({"5"}))) as receiver:
        board = Board(receiver.url)
        for number in range(8):
            board.firing.take(decision(number, 1, instance=str(number)))
        assert board.step(2) is None
        assert names(sent(receiver)) == [
            list("01234567"),
            list("0123"),
            list("4567"),
            list("45"),
            ["4"],
            ["5"],
            list("67"),
        ]
        assert (board.manager.counts.sent, board.manager.counts.refused) == (7, 1)
        board.step(3)
        assert len(receiver.came) == 7  # not before the next interval


def test_many_alerts_go_in_several_requests() -> None:
    with receiving(Receiver()) as receiver:
        board = Board(receiver.url)
        for number in range(2 * MOST_AT_ONCE + 1):
            board.firing.take(decision(number, 1, instance=str(number)))
        board.step(2)
        assert [len(batch) for batch in sent(receiver)] == [MOST_AT_ONCE, MOST_AT_ONCE, 1]


def test_the_token_is_read_for_each_request(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with receiving(Receiver()) as receiver:
        board = Board(receiver.url, file)
        file.write_text("a-token-of-this-test\n")
        board.firing.take(decision(1, 1))
        board.step(2)
        file.write_text("another-token-of-this-test\n")
        board.step(40)
        file.unlink()
        assert board.step(80) is not None
        assert [one.headers["authorization"] for one in receiver.came] == [
            "Bearer a-token-of-this-test",
            "Bearer another-token-of-this-test",
        ]
