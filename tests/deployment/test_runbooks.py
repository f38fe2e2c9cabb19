"""Every alert that ships has its section in `docs/runbooks.md`, and the alerts of Prometheus carry the link to it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.anchors import anchors, leads

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "runbooks.md"
HOME = "https://github.com/otel-llm/otel-llm/blob/main/"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL))


def alerting(path: Path) -> list[dict[str, Any]]:
    groups = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


BY_PROMETHEUS = [
    rule
    for path in (
        ROOT / "collector" / "prometheus" / "rules" / "otel-llm.rules.yml",
        ROOT / "examples" / "prometheus" / "otel-llm.rules.yml",
    )
    for rule in alerting(path)
]
OF_RULES = {
    action["alert"]["name"]: rule["rule"]
    for path in (ROOT / "rules").glob("*.yaml")
    for group in yaml.safe_load(path.read_text(encoding="utf-8")).get("groups", ())
    for rule in group["rules"]
    for action in rule["actions"]
    if "alert" in action
}


def test_the_link_of_an_alert_of_prometheus_leads_to_its_section() -> None:
    assert len({rule["alert"] for rule in BY_PROMETHEUS}) == 12
    for rule in BY_PROMETHEUS:
        link = rule["annotations"]["runbook_url"]
        assert link.startswith(HOME)
        target = link.removeprefix(HOME)
        assert leads(ROOT / "README.md", target), link
        assert target.partition("#")[2] == rule["alert"].lower()


def test_there_is_a_section_for_every_alert_and_for_nothing_else() -> None:
    assert SECTIONS.keys() == {rule["alert"] for rule in BY_PROMETHEUS} | OF_RULES.keys()
    assert {name.lower() for name in SECTIONS} <= anchors(TEXT)


@pytest.mark.parametrize("name", sorted({rule["alert"] for rule in BY_PROMETHEUS}))
def test_a_runbook_says_what_it_means_and_what_to_do(name: str) -> None:
    assert "**Means.**" in SECTIONS[name]
    assert "**Do.**" in SECTIONS[name]


@pytest.mark.parametrize(("name", "rule"), OF_RULES.items())
def test_an_alert_of_a_rule_leads_to_the_page_of_this_rule(name: str, rule: str) -> None:
    ((shown, page),) = re.findall(r"\[(\w+)\]\(([^)]+)\)", SECTIONS[name])
    assert shown == rule
    text = (PAGE.parent / page).read_text(encoding="utf-8")
    assert f"- rule: {rule} " in text.replace("\n", " ")
    assert "**What to do.**" in text


def test_panels_that_runbooks_name_are_there() -> None:
    titles = re.findall(r'"title": "([^"]+)"', "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "collector" / "grafana" / "dashboards").glob("*.json")
    ))  # fmt: skip
    named = {" ".join(one.split()) for one in re.findall(r'"([A-Z][^"]+)"', TEXT)}
    assert len(named) > 8
    assert named <= set(titles)
