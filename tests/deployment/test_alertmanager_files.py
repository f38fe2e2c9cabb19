"""`collector/alertmanager/alertmanager.yml` at Debian's amtool and Alertmanager: routes, and what silences what."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from support.actions.action_receiver import Receiver, receiving
from support.actions.alertmanager import Alertmanager, alertmanager
from support.anchors import leads
from support.commands import wait_until, wait_until_equal
from support.integration.monitored_fleet import alertmanager_config
from support.requirements import found_program

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "collector" / "alertmanager" / "alertmanager.yml"
PAGED = {
    *("LlmInstanceStarvingReaders", "LlmAttainmentBurningFast", "LlmAttainmentBurning"),
    *("LlmAttainmentBurn/page", "LlmFluidityBurn/page", "OtelLlmCollectorDown/page", "OtelLlmCollectorAbsent/page"),
    *("OtelLlmJournalFailing/page", "OtelLlmAlertsUndelivered/page"),
}
"""Alerts that wake people, with their severity if Prometheus sends them."""
Labels = dict[str, str]


def sent() -> set[str]:
    """Return every alert that the shipped rules can send, `name` or `name/severity`."""
    found = set()
    for path in (ROOT / "rules").glob("*.yaml"):
        found |= set(re.findall(r"\balert: \{name: (\w+)", path.read_text(encoding="utf-8")))
    path = ROOT / "collector" / "prometheus" / "rules" / "otel-llm.rules.yml"
    groups = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    return found | {f"{rule['alert']}/{rule['labels']['severity']}" for rule in rules}


def amtool(*arguments: str) -> str:
    found = found_program("alertmanager", "amtool")
    done = subprocess.run([found, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_amtool_takes_it() -> None:
    assert "SUCCESS" in amtool("check-config", str(CONFIG))


def test_every_alert_goes_to_a_person_or_becomes_a_ticket() -> None:
    assert sent() >= PAGED
    assert len(sent()) > 20
    for one in sent():
        name, _, severity = one.partition("/")
        labels = [f"alertname={name}", *([f"severity={severity}"] if severity else [])]
        receiver = amtool("config", "routes", "test", f"--config.file={CONFIG}", *labels).strip()
        assert receiver == ("page" if one in PAGED else "ticket"), one


def test_the_template_of_a_runbooks_address_leads_to_it(tmp_path: Path) -> None:
    (template,) = re.findall(r"^# +(https://\S+.*\}\})$", CONFIG.read_text(encoding="utf-8"), re.MULTILINE)
    given = [f"--template.{name}={tmp_path / file}" for name, file in (("glob", "none.tmpl"), ("data", "data.json"))]
    (tmp_path / "none.tmpl").touch()
    for name in {one.partition("/")[0] for one in sent()}:
        (tmp_path / "data.json").write_text(json.dumps({"commonLabels": {"alertname": name}}), encoding="utf-8")
        text = amtool("template", "render", f"--template.text={template}", *given)
        target = text.strip().removeprefix("https://github.com/otel-llm/otel-llm/blob/main/")
        assert leads(ROOT / "README.md", target), text


def test_matchers_name_alerts_that_exist() -> None:
    names = {one.partition("/")[0] for one in sent()}
    for pattern in re.findall(r'alertname!?=~?"([^"]+)"', CONFIG.read_text(encoding="utf-8")):
        assert any(re.fullmatch(pattern, name) for name in names), pattern
        for alternative in pattern.split("|") if "(" not in pattern else ():
            assert any(re.fullmatch(alternative, name) for name in names), alternative


def reader(name: str, instance: str | None, slo_class: str = "chat") -> Labels:
    labels = {"alertname": name, "slo_class": slo_class, "model": "m"}
    return labels if instance is None else {**labels, "instance": instance}


def burn(name: str, severity: str | None, slo_class: str = "chat") -> Labels:
    labels = {"alertname": name, "slo_class": slo_class, "measured_at": "client"}
    return labels if severity is None else {**labels, "severity": severity}


FIRING: list[tuple[Labels, bool]] = [
    (reader("LlmInstanceStarvingReaders", "a"), False),
    (reader("LlmReadersStarving", "a"), True),
    (reader("LlmReadersStarving", "a", "code"), True),  # of another class, on the same replica
    (reader("LlmReadersAboutToStarve", "a"), True),
    (reader("LlmTelemetryStale", "a"), False),
    (reader("LlmReadersStarving", "b"), False),
    (reader("LlmReadersAboutToStarve", "b"), True),
    (reader("LlmReadersAboutToStarve", "b", "code"), False),
    (reader("LlmInstanceStarvingReaders", None), False),
    (reader("LlmReadersStarving", None), False),  # nameless replicas are not one replica
    (burn("LlmAttainmentBurn", "page"), False),
    (burn("LlmAttainmentBurn", "ticket"), True),
    (burn("LlmFluidityBurn", "ticket"), False),
    (burn("LlmAttainmentBurningFast", None), True),
    (burn("LlmAttainmentBurn", "ticket", "code"), False),
    (burn("LlmAttainmentBurningFast", None, "code"), False),  # a ticket silences no page
    (burn("LlmAttainmentBurningSlowly", None, "code"), True),
    ({"alertname": "OtelLlmCollectorDown", "severity": "page", "instance": "one:9464"}, False),
    ({"alertname": "OtelLlmCollectorBehind", "severity": "ticket", "instance": "one:9464"}, True),
    ({"alertname": "OtelLlmCollectorBehind", "severity": "ticket", "instance": "two:9464"}, False),
]
"""Alerts that fire together, and whether one of the others silences them."""


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alertmanager]:
    folder = tmp_path_factory.mktemp("alertmanager")
    config = alertmanager_config(group_wait="300ms", group_interval="1s")
    with receiving(Receiver()) as hook, alertmanager(folder, hook, config) as made:
        yield made


def test_a_replica_silences_its_readers_and_a_page_its_ticket(manager: Alertmanager) -> None:
    ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    manager.ask("/api/v2/alerts", [{"labels": labels, "endsAt": ends} for labels, _ in FIRING])
    wanted = {tuple(sorted(labels.items())): silenced for labels, silenced in FIRING}
    assert len(wanted) == len(FIRING)

    def found() -> dict[tuple[tuple[str, str], ...], bool]:
        alerts = manager.ask("/api/v2/alerts")
        return {tuple(sorted(one["labels"].items())): bool(one["status"]["inhibitedBy"]) for one in alerts}

    # Alertmanager notes which alerts silence others only after it has answered their sender.
    wait_until_equal("some silence others", found, wanted)
    # A receiver gets every alert but the silenced ones.
    loud = {tuple(sorted(labels.items())) for labels, silenced in FIRING if not silenced}

    def told() -> set[tuple[tuple[str, str], ...]]:
        with manager.hook.lock:
            alerts = [alert for one in manager.hook.came for alert in json.loads(one.body)["alerts"]]
        return {tuple(sorted(alert["labels"].items())) for alert in alerts}

    wait_until("the receiver has the others", lambda: told() >= loud)
    assert told() == loud
