"""The places of alerts: which gives way in a full table, with tenants and without, and what the records say of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.actions.action_receiver import Receiver, Say, receiving
from support.actions.alerting import T0, S, decision
from support.commands import wait_until
from support.patience import WAIT_S

from otel_llm.actions import settings
from otel_llm.actions.alerts.alerts import TABLE_FULL, Alerts
from otel_llm.actions.alerts.firing import Firing
from otel_llm.actions.alerts.places import MOST_ALERTS, Places, tenant_of
from otel_llm.actions.settings import AlertSettings
from otel_llm.actions.sinks.console import Console
from otel_llm.actions.sinks.sinks import Sinks
from otel_llm.collector.settings import Settings
from otel_llm.live.user_metrics import UserMetrics
from otel_llm.rules.decisions.decision_records import Decision
from otel_llm.shared.clock import FakeClock, MonotonicClock

MADE_UP = 11_000


def made_up(number: int, at_s: float = 1.0, state: Any = "firing", tenant: str = "default") -> Decision:
    """Return a decision about a stream of a model that only it has."""
    one = decision(number, at_s, state, model=f"m{number}")
    assert one.stream is not None
    named = {} if tenant == "default" else {"tenant": tenant}
    return replace(one, stream=(*one.stream[:2], tenant, 0), identity={**one.identity, **named})


def honest(tenant: str = "default", at_s: float = 2.0) -> Decision:
    return made_up(MADE_UP + 1, at_s, tenant=tenant)


def of_tenants(firing: Firing) -> Counter[str]:
    return Counter(tenant_of(alert.key) for alert in firing.alerts() if alert.ends_ns is None)


def test_of_made_up_models_whose_streams_have_ended_the_alerts_give_way() -> None:
    firing = Firing(5 * S, 900 * S)
    firing.begin((), None, T0)
    for number in range(MADE_UP):
        firing.take(made_up(number))
        firing.take(made_up(number, 1.5, "resolved"))
    firing.take(honest())
    events = firing.poll(T0 + 3 * S)
    assert (len(firing.alerts()), firing.places.left_out) == (MOST_ALERTS, 0)
    assert firing.places.gave_way == MADE_UP + 1 - MOST_ALERTS
    ended = [event.alert for event in events if event.status == "resolved"]
    assert [dict(alert.key)["model"] for alert in ended] == [f"m{number}" for number in range(len(ended))]
    assert {alert.ends_ns for alert in ended} == {T0 + 3 * S // 2}
    assert events[-1].alert.key == next(alert.key for alert in firing.alerts() if alert.begun_ns == T0 + 2 * S)


def test_of_one_tenant_alone_alerts_that_fire_do_not_give_way() -> None:
    firing = Firing(5 * S, 900 * S)
    for number in range(MADE_UP):
        firing.take(made_up(number))
    assert firing.places.take(honest()).refused
    assert firing.places.left_out == MADE_UP + 1 - MOST_ALERTS
    firing.take(made_up(7, 3, "resolved"))
    assert firing.places.take(honest()).gave_way == [
        (("alertname", "Starving"), ("instance", "a"), ("model", "m7"), ("slo_class", "chat"))
    ]


def test_another_tenants_alerts_that_fire_give_way_down_to_its_share() -> None:
    firing = Firing(5 * S, 900 * S)
    firing.begin((), None, T0)
    for number in range(MADE_UP):
        firing.take(made_up(number, tenant="flood"))
    firing.poll(T0 + S)
    firing.take(honest("shop"))
    ended, began = firing.poll(T0 + 3 * S)
    assert (began.status, tenant_of(began.alert.key)) == ("firing", "shop")
    assert (ended.status, dict(ended.alert.key)["model"], ended.alert.ends_ns) == ("resolved", "m0", T0 + 2 * S)
    assert of_tenants(firing) == {"flood": MOST_ALERTS - 1, "shop": 1}
    firing.take(made_up(0, 4, "resolved", tenant="flood"))  # of the alert that gave way
    for number in range(MADE_UP):
        firing.take(made_up(number, 5, tenant="shop"))
    assert of_tenants(firing) == {"flood": MOST_ALERTS // 2, "shop": MOST_ALERTS // 2}


def test_a_member_of_an_alert_that_gave_way_may_join_it_again() -> None:
    places = Places(most=1)
    assert places.take(made_up(1, tenant="a")).joins is not None
    assert places.take(made_up(1, tenant="b")).refused  # as many as the other
    places = Places(most=2)
    for number in (1, 2):
        places.take(made_up(number, tenant="a"))
    (gone,) = places.take(made_up(3, tenant="b")).gave_way
    assert places.take(made_up(2, 2, "resolved", tenant="a")).leaves
    again = places.take(made_up(1, 3, tenant="a"))
    assert (again.joins, len(again.gave_way)) == (gone, 1)
    assert list(places.take(made_up(1, 4, "resolved", tenant="a")).leaves) == [gone]


# What the records say.


def settings_of(folder: Path, url: str) -> Settings:
    (folder / "secrets").write_text("whsec_" + "A" * 44)
    return Settings(
        receivers={"oncall": settings.Receiver(url=url, secret_file=folder / "secrets")},
        alerts=AlertSettings(receivers=("oncall",), settle_s=0.05),
    )


class Kept:
    """A decision file in memory."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def write(self, record: Any) -> None:
        self.records.append(record)


@pytest.mark.parametrize(("flood", "shop"), [("default", "default"), ("flood", "shop")])
@pytest.mark.parametrize("ended", [True, False])
def test_the_record_of_an_honest_alert_behind_made_up_models_is_true(
    tmp_path: Path, flood: str, shop: str, ended: bool
) -> None:
    kept, came = Kept(), list[str]()
    with receiving(Receiver()) as receiver:
        alerts = Alerts(settings_of(tmp_path, receiver.url), tmp_path, FakeClock(T0 + 2 * S))
        sinks = Sinks(FakeClock(T0), Console(came.append), UserMetrics(), kept, alerts=alerts)
        sinks.decided([made_up(number, tenant=flood) for number in range(MADE_UP)])
        outcomes = Counter(record["outcome"] for record in kept.records)
        assert outcomes == {"queued": MOST_ALERTS, TABLE_FULL: MADE_UP - MOST_ALERTS}
        if ended:
            sinks.decided([made_up(number, 1.5, "resolved", tenant=flood) for number in range(MADE_UP)])
        sinks.decided([honest(shop)])
    has_place = ended or flood != shop
    assert kept.records[-1]["outcome"] == ("queued" if has_place else TABLE_FULL)
    assert alerts.counts()["gave_way.alerts"] == has_place


def test_an_alert_is_sent_or_waits_for_a_receiver_that_is_away(tmp_path: Path) -> None:
    away = False

    def answer(came: Any, before: int) -> Say:
        return Say(503) if away else Say(200)

    with receiving(Receiver(answer)) as receiver:
        alerts = Alerts(settings_of(tmp_path, receiver.url), tmp_path, MonotonicClock())
        assert alerts.take(made_up(1)).outcome == "queued"
        alerts.start()
        wait_until("it came", lambda: len(receiver.came) == 1)
        assert alerts.take(made_up(2)).outcome == "sent"
        wait_until("that too", lambda: len(receiver.came) == 2)
        away = True
        assert alerts.take(made_up(3)).outcome == "sent"
        wait_until("it failed", lambda: alerts.counts()["notifications_retries"] == 1)
        assert alerts.take(made_up(4)).outcome == "queued"
        assert alerts.take(made_up(5, 3, "resolved")).outcome == "resolved"
        alerts.stop(WAIT_S)


def test_streams_that_join_one_alert_are_sent_and_many_alerts_at_once_wait(tmp_path: Path) -> None:
    with receiving(Receiver()) as receiver:
        alerts = Alerts(settings_of(tmp_path, receiver.url), tmp_path, MonotonicClock())
        alerts.start()
        assert {alerts.take(decision(number, 1)).outcome for number in range(1000)} == {"sent"}
        many = [alerts.take(made_up(number)).outcome for number in range(1000, 3000)]
        assert (many[0], many[-1]) == ("sent", "queued")
        alerts.stop(WAIT_S)
