"""The compose file and the Dockerfile: their linters, what is published, and the settings beside them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.deployment.charts import tool
from support.requirements import HELM

from otel_llm.actions.execute.executors import RELAY_DOES
from otel_llm.collector.settings import load_settings
from otel_llm.relay.settings import load_settings as load_relay_settings
from otel_llm.rules.files.load import load_rules

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "collector" / "compose"
COMPOSE = FOLDER / "compose.yaml"
LINTERS = {
    "hadolint": ("bin/hadolint", "--failure-threshold", "style", ROOT / "collector" / "docker" / "Dockerfile"),
    "compose-lint": (
        *("bin/compose-lint", "check", "-q", "--fail-on", "low", "--strict-config"),
        *("--config", Path(__file__).with_name("compose-lint.yml"), COMPOSE),
    ),
    # It also holds the file against the schema of the Compose specification.
    "dclint": (
        *("bin/node", "node_modules/.bin/dclint", COMPOSE, "--max-warnings", "0"),
        *("--disable-rule", "service-keys-order", "--disable-rule", "top-level-properties-order"),
    ),
}


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    found = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", LINTERS)
def test_linters_find_nothing(name: str) -> None:
    program, *arguments = LINTERS[name]
    command = [tool(str(program)), *map(str, arguments)]
    done = subprocess.run(command, cwd=HELM, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_service_is_hardened_and_published_on_this_machine_only(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["user"].split(":")[0] != "0", name
        assert {"mem_limit", "cpus", "pids_limit"} <= service.keys(), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name


def test_a_service_has_time_to_drain(services: dict[str, dict[str, Any]]) -> None:
    drains = {
        "collector": load_settings(FOLDER / "collector.yaml").limits.drain_s,
        "relay": load_relay_settings(FOLDER / "relay.yaml", ()).limits.drain_s,
    }
    assert {name: services[name]["stop_grace_period"] for name in drains} == {
        name: f"{drain_s + 5:.0f}s" for name, drain_s in drains.items()
    }


def test_prometheus_may_ask_the_services_by_their_names() -> None:
    text = (ROOT / "collector" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    targets = {
        target.partition(":")[0]
        for job in yaml.safe_load(text)["scrape_configs"]
        for config in job["static_configs"]
        for target in config["targets"]
    }
    web = load_settings(FOLDER / "collector.yaml").web, load_relay_settings(FOLDER / "relay.yaml", ()).web
    assert targets == {*web[0].hosts, *web[1].hosts} == {"collector", "relay"}


def test_settings_bound_the_instances_to_the_relays_backends(services: dict[str, dict[str, Any]]) -> None:
    collector = load_settings(FOLDER / "collector.yaml")
    relay = load_relay_settings(FOLDER / "relay.yaml", ())
    names = tuple(relay.backends)
    assert collector.metrics.instance_label
    assert relay.metrics.instance_label
    assert collector.metrics.instances == relay.metrics.instances == names
    assert set(names) <= services.keys()
    assert load_rules([str(ROOT / "examples" / "relay" / "rules.yaml")], RELAY_DOES).rules
