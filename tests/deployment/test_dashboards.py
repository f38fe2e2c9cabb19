"""Grafana's dashboards: generated, of metrics that exist, and as a linter of dashboards wants them.

The rules are those of github.com/grafana/dashboard-linter (datasource, job, rate intervals, counters, titles, units,
reload on a change of time, not editable) and some of our own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.integration.dashboards import DASHBOARDS, FOLDER, Expression, panels, queries, variables

from otel_llm.rules.files.slo_file import load_slo
from otel_llm.rules.prometheus.class_rules import prometheus_rules

sys.path.insert(0, str(FOLDER))  # scripts that find each other as when they are run
from generator import metric_table
from generator.collector_dashboard import own_panel

ROOT = Path(__file__).parents[2]
QUERIES = list(queries())
GRID = 24
SELECTOR = re.compile(r"(?<![\w:$.])([a-zA-Z_][\w:]*)(\{[^}]*\})?")
WORDS = {"by", "sum", "max", "min", "count", "rate", "histogram_quantile", "and", "or", "on", "unless", "ignoring"}
UNITS = {
    *("short", "none", "percentunit", "s", "bytes", "Bps", "cps", "ops", "reqps", "bool_yes_no"),
    "suffix: tok/s",
}  # fmt: skip
"""Units of Grafana that are in use; each is in its list of units."""
NOT_SHOWN = {
    "process_virtual_memory_bytes": "the resident memory is what counts",
    "process_start_time_seconds": "restarts show as replays, and Prometheus has `up`",
    "process_open_fds": "limits of connections are counted as refusals",
    "process_max_fds": "as above",
    "otel_llm_relay_judged": "the collector that gets the relay's segments counts the same streams",
    "otel_llm_relay_skewed_tokens": "as above",
    "otel_llm_relay_unknown_slo_class": "as above",
    "otel_llm_relay_folded_groups": "as above",
    "otel_llm_relay_gave_way": "as above",
    "otel_llm_relay_internal_errors": "the relay's log has the traceback; there is no dashboard of its own health yet",
}
"""Families that no dashboard shows, and why."""


def selectors(text: str) -> list[tuple[str, str]]:
    """Return the series that an expression reads, with their matchers."""
    bare = re.sub(r"\b(by|on) \([^)]*\)", "", re.sub(r"\[[^]]*\]", "", text))
    return [(name, matchers) for name, matchers in SELECTOR.findall(bare) if name not in WORDS]


ALL_PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}") for name, one in DASHBOARDS.items() for panel in panels(one)
]
ASKING = [one for one in ALL_PANELS if one.values[0]["type"] != "text"]  # type: ignore[index]


def test_the_files_are_what_the_generator_writes() -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "build_dashboards.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(DASHBOARDS) == ["collector", "readers", "replicas", "rules-and-actions"]


# Metrics.


@cache
def served() -> dict[str, str]:
    """Return the family of each series that a collector or a relay serves, from the families themselves."""
    endings = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}
    return {one.name + end: one.name for one in metric_table.families() for end in endings[one.type]}


@cache
def recorded() -> set[str]:
    groups = yaml.safe_load(prometheus_rules(load_slo()).text)["groups"]
    return {rule.get("record", "") for group in groups for rule in group["rules"]}


def test_the_search_for_series_finds_them() -> None:
    text = '1 - sum by (le, a) (rate(x_total{b=~"$b", c="d"}[$__rate_interval]))\n/ (slo:y:z > 0) + up'
    assert selectors(text) == [("x_total", '{b=~"$b", c="d"}'), ("slo:y:z", ""), ("up", "")]


@pytest.mark.parametrize("one", [*QUERIES, *variables()], ids=lambda one: f"{one.dashboard}: {one.place}")
def test_every_series_is_in_the_table(one: Expression) -> None:
    names = {name for name, _ in selectors(one.text)}
    assert names
    assert names <= {*served(), *recorded(), "up", "ALERTS"}


def test_a_series_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(KeyError, match="otel_llm_tokens"):
        metric_table.series("otel_llm_tokens")
    with pytest.raises(KeyError):
        own_panel("Queue", "queues")


def test_every_family_is_shown() -> None:
    families = served()
    shown = {families[name] for one in QUERIES for name, _ in selectors(one.text) if name in families}
    assert shown.isdisjoint(NOT_SHOWN)
    assert shown | NOT_SHOWN.keys() == set(families.values())


@pytest.mark.parametrize("one", QUERIES, ids=lambda one: f"{one.dashboard}: {one.place}")
def test_series_are_asked_for_by_job(one: Expression) -> None:
    """What a rule records has no job: it is of all collectors."""
    for name, matchers in selectors(one.text):
        if name in served() or name == "up":
            assert re.search(r'job=~"\$(relay_)?job"', matchers), name
        relayed = name.startswith("otel_llm_relay_")
        assert not relayed or "$relay_job" in matchers


@pytest.mark.parametrize("one", QUERIES, ids=lambda one: f"{one.dashboard}: {one.place}")
def test_counters_and_only_they_have_a_rate_over_the_interval_that_grafana_knows(one: Expression) -> None:
    assert set(re.findall(r"\[([^]]*)\]", one.text)) <= {"$__rate_interval"}
    assert "vector(" not in one.text
    assert not re.search(r"\b(increase|irate|delta)\b", one.text)
    rated = set(re.findall(r"rate\(([\w:]+)", one.text))
    for name, _ in selectors(one.text):
        counted = name.endswith(("_total", "_bucket", "_count", "_sum")) and name in served()
        assert (name in rated) == counted, name


@pytest.mark.parametrize("one", QUERIES, ids=lambda one: f"{one.dashboard}: {one.place}")
def test_quantiles_keep_the_bounds(one: Expression) -> None:
    for labels in re.findall(r"histogram_quantile\([\d.]+, sum by \(([^)]*)\)", one.text):
        assert "le" in labels.split(", ")
    assert ("_bucket" in one.text) == bool(re.search(r"\ble\b", one.text))


OTHERS = ("otel_llm_relay_", "otel_llm_collector_", "otel_llm_token_estimate_ratio")
"""Metrics without a place of measurement: the last is one of models, shown as a mean."""


def test_places_of_measurement_are_never_added_up() -> None:
    """Client, relay and server see the same request: one of them is chosen."""
    for one in QUERIES:
        for name, matchers in selectors(one.text):
            if name.startswith("otel_llm_") and not name.startswith(OTHERS):
                assert 'measured_at=~"$measured_at"' in matchers, (one, name)
    for name in ("readers", "replicas"):
        (one_of,) = (var for var in DASHBOARDS[name]["templating"]["list"] if var["name"] == "measured_at")
        assert (one_of["multi"], one_of["includeAll"]) == (False, False)


# Panels.


@pytest.mark.parametrize("panel", ALL_PANELS)
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    assert len(panel["title"]) >= 4
    assert len(panel["description"]) >= 12
    assert panel["description"].rstrip().endswith((".", ")"))


@pytest.mark.parametrize("panel", ASKING)
def test_a_panel_asks_the_chosen_source(panel: dict[str, Any]) -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    assert panel["datasource"] == chosen
    assert panel["targets"]
    assert all(target["datasource"] == chosen for target in panel["targets"])
    assert [target["refId"] for target in panel["targets"]] == list("ABCDE"[: len(panel["targets"])])
    instant = panel["type"] in ("stat", "table")
    assert all((target["instant"], target["range"]) == (instant, not instant) for target in panel["targets"])
    assert panel["interval"] == "15s"


@pytest.mark.parametrize("panel", ASKING)
def test_a_panel_has_a_unit_and_ascending_thresholds(panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"] in UNITS
    steps = [step["value"] for step in defaults["thresholds"]["steps"]]
    assert steps[0] is None
    assert all(left < right for left, right in pairwise(steps[1:]))
    for target in panel["targets"]:
        of = {metric_table.METRICS[name].unit for name, _ in selectors(target["expr"]) if name in metric_table.METRICS}
        if "histogram_quantile" in target["expr"]:
            assert defaults["unit"] == "s"
        if of == {"By"}:
            assert defaults["unit"] == ("Bps" if "rate(" in target["expr"] else "bytes")
        if "/ (" in target["expr"]:
            assert defaults["unit"] == "percentunit"


@pytest.mark.parametrize("panel", ASKING)
def test_a_legend_names_labels_that_the_series_have(panel: dict[str, Any]) -> None:
    legends = [target["legendFormat"] for target in panel["targets"]]
    assert len(set(legends)) == len(legends)
    for target in panel["targets"]:
        assert target["legendFormat"]
        kept = re.findall(r"\b(?:sum|max|min|count)(?: by \(([^)]*)\))? ?\(", target["expr"])
        named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        if kept:
            assert all(named <= set(labels.split(", ")) for labels in kept), target["expr"]


@pytest.mark.parametrize("panel", ALL_PANELS)
def test_a_link_leads_to_a_page_of_ours(panel: dict[str, Any]) -> None:
    text = panel["options"].get("content", "") if panel["type"] == "text" else ""
    urls = [link["url"] for link in panel["links"]] + re.findall(r"\]\(([^)]+)\)", text)
    for url in urls:
        home, path = url.split("/blob/main/")
        assert home == "https://github.com/otel-llm/otel-llm"
        assert (ROOT / path).is_file(), url
    assert len({link["title"] for link in panel["links"]}) == len(panel["links"])


# Dashboards.


def test_every_rule_that_ships_has_a_panel_that_leads_to_its_page() -> None:
    linked = {
        link["url"].rpartition("/")[2]
        for dashboard in DASHBOARDS.values()
        for panel in panels(dashboard)
        for link in panel["links"]
        if "/docs/rules/" in link["url"]
    }
    assert linked == {path.name for path in (ROOT / "docs" / "rules").glob("*.md")} - {"README.md"}
    (table,) = (panel for panel in panels(DASHBOARDS["rules-and-actions"]) if panel["type"] == "text")
    shipped = {
        rule["rule"]
        for path in (ROOT / "rules").glob("*.yaml")
        for group in yaml.safe_load(path.read_text(encoding="utf-8")).get("groups", ())
        for rule in group["rules"]
    }
    assert set(re.findall(r"^\| \[(\w+)\]", table["options"]["content"], re.MULTILINE)) == shipped


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_a_place_of_their_own(name: str) -> None:
    every = DASHBOARDS[name]["panels"]
    assert max(Counter(panel["id"] for panel in every).values()) == 1
    titles = Counter((panel["type"], panel["title"]) for panel in every)
    assert max(titles.values()) == 1
    cells = [
        (panel["id"], x, y)
        for panel in every
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert all(0 <= x < GRID for _, x, _ in cells)
    assert max(Counter((x, y) for _, x, y in cells).values()) == 1


@pytest.mark.parametrize("name", DASHBOARDS)
def test_variables_are_those_in_use_and_reload_with_the_time(name: str) -> None:
    dashboard = DASHBOARDS[name]
    source, *chosen = dashboard["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    texts = [one.text for one in (*QUERIES, *variables()) if one.dashboard == name]
    used = {found for text in texts for found in re.findall(r"\$(\w+)", text)} - {"__rate_interval"}
    assert used == {one["name"] for one in chosen}
    for one in chosen:
        assert one["datasource"]["uid"] == "${datasource}"
        assert one["refresh"] == 2
        assert one["label"]
        assert not one["includeAll"] or one["allValue"] == ".*"
    assert {"job", "instance"} <= used


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_is_found_linked_and_not_edited_in_place(name: str) -> None:
    dashboard = DASHBOARDS[name]
    assert dashboard["uid"] == f"otel-llm-{name}"
    assert len(dashboard["uid"]) <= 40  # Grafana's limit
    assert dashboard["title"].startswith("otel-llm / ")
    assert dashboard["tags"] == ["otel-llm"]
    assert dashboard["editable"] is False
    assert dashboard["description"]
    (link,) = dashboard["links"]
    assert (link["type"], link["tags"]) == ("dashboards", ["otel-llm"])
    assert (link["keepTime"], link["includeVars"]) == (True, True)
    uids = re.findall(r'"uid": "([^"]*)"', (FOLDER / "dashboards" / f"{name}.json").read_text(encoding="utf-8"))
    assert set(uids) == {"${datasource}", "-- Grafana --", dashboard["uid"]}


def test_uids_and_titles_are_those_of_one_dashboard_each() -> None:
    for left, right in combinations(DASHBOARDS.values(), 2):
        assert left["uid"] != right["uid"]
        assert left["title"] != right["title"]
