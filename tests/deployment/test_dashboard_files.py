"""Dashboards and provisioning as Grafana reads them: by the types of its own SDK, and beside the shipped Prometheus."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.integration.dashboards import DASHBOARDS, FOLDER, panels
from support.requirements import require

OF_PROMETHEUS = {"step", "titleFormat", "textFormat"}
"""Keys of an annotation that belong to the source: the SDK's type has those of every source."""


def lost(given: Any, kept: Any, at: str = "") -> list[str]:
    """Return the keys and values of a JSON that another lacks, or has otherwise."""
    if isinstance(given, dict) and isinstance(kept, dict):
        inner = [
            lost(value, kept[key], f"{at}/{key}") if key in kept else [f"{at}/{key}"] for key, value in given.items()
        ]
        return [one for found in inner for one in found]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        return [one for index, pair in enumerate(zip(given, kept, strict=True)) for one in lost(*pair, f"{at}/{index}")]
    return [] if given == kept else [at]


def through_the_sdk(dashboard: dict[str, Any]) -> Any:
    """Return a dashboard read into the types of Grafana 11.6 and written again: what they do not know is gone."""
    require("grafana-sdk")
    plugins = importlib.import_module("grafana_foundation_sdk.cog.plugins")
    plugins.register_default_plugins()
    read = importlib.import_module("grafana_foundation_sdk.models.dashboard").Dashboard.from_json(dashboard)
    encoder = importlib.import_module("grafana_foundation_sdk.cog.encoder").JSONEncoder
    return json.loads(json.dumps(read, cls=encoder))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafana_knows_every_key(name: str) -> None:
    gone = lost(DASHBOARDS[name], through_the_sdk(DASHBOARDS[name]))
    assert {one.rpartition("/")[2] for one in gone if one.startswith("/annotations/")} == OF_PROMETHEUS
    assert [one for one in gone if not one.startswith("/annotations/")] == []


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("targets", 0, "legendFromat"), "x"),
        (("fieldConfig", "defaults", "units"), "s"),
        (("options", "tooltips"), {}),
        (("fieldConfig", "defaults", "custom", "lineWith"), 1),
    ],
)
def test_a_key_that_grafana_does_not_know_is_found(path: tuple[str | int, ...], wrong: object) -> None:
    dashboard = json.loads(json.dumps(DASHBOARDS["readers"]))
    (at, panel) = next((at, one) for at, one in enumerate(dashboard["panels"]) if one["type"] == "timeseries")
    place: Any = panel
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = wrong
    where = "/".join(map(str, ("", "panels", at, *path)))
    assert where in lost(dashboard, through_the_sdk(dashboard))


def test_the_sources_are_those_of_the_files_beside_them() -> None:
    read = (FOLDER / "provisioning" / "datasources" / "otel-llm.yaml").read_text(encoding="utf-8")
    sources = {one["type"]: one for one in yaml.safe_load(read)["datasources"]}
    assert sources.keys() == {"prometheus", "alertmanager"}
    prometheus = FOLDER.parent / "prometheus" / "prometheus.yml"
    interval = yaml.safe_load(prometheus.read_text(encoding="utf-8"))["global"]["scrape_interval"]
    assert sources["prometheus"]["jsonData"]["timeInterval"] == interval
    asked = {panel["interval"] for one in DASHBOARDS.values() for panel in panels(one) if "interval" in panel}
    assert asked == {interval}


def test_the_folder_of_dashboards_is_read_only_for_grafana() -> None:
    read = (FOLDER / "provisioning" / "dashboards" / "otel-llm.yaml").read_text(encoding="utf-8")
    (provider,) = yaml.safe_load(read)["providers"]
    assert provider["type"] == "file"
    assert provider["allowUiUpdates"] is False
    assert Path(provider["options"]["path"]).is_absolute()
