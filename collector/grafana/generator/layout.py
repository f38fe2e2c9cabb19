"""Dashboards: rows of panels on a grid of 24 columns, variables, annotations, links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from generator.metric_table import series
from generator.panels import SOURCE, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from generator.panels import Panel

Json = dict[str, Any]
COLUMNS: Final = 24
SCHEMA: Final = 39
"""Grafana's number of the JSON's version: of 11.0. Later releases read it, and bring it up to date in the browser."""
TAG: Final = "otel-llm"
FIRING: Final = series("ALERTS", 'alertstate="firing"', 'alertname=~"Llm.*|OtelLlm.*"')


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice of values of a label; `of`: a selector of the series that have it. `single`: just one, and no `All`."""

    name: str
    title: str
    of: str
    label: str = ""
    single: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row and its panels, which flow from left to right."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard; `file` names it, and its uid is `otel-llm-<file>`."""

    file: str
    title: str
    description: str
    variables: Sequence[Variable]
    rows: Sequence[Row]

    def to_json(self) -> Json:
        """Return the JSON that Grafana imports."""
        return {
            "uid": f"{TAG}-{self.file}",
            "title": self.title,
            "description": self.description,
            "tags": [TAG],
            "schemaVersion": SCHEMA,
            "version": 1,
            "editable": False,
            "graphTooltip": 1,  # one cross-hair for all panels
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "liveNow": False,
            "links": [_LINKS],
            "templating": {"list": [_DATASOURCE, *map(_variable, self.variables)]},
            "annotations": {"list": [_BUILT_IN, _FIRING]},
            "panels": list(_placed(self.rows)),
        }


def _placed(rows: Sequence[Row]) -> Iterator[Json]:
    number = y = 0
    for row in rows:
        number += 1
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        x, y, tallest = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            number += 1
            yield to_json(panel, number, x, y)
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest


def _variable(one: Variable) -> Json:
    made: Json = {
        "name": one.name,
        "label": one.title,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values({one.of}, {one.label or one.name})", "refId": one.name},
        "refresh": 2,  # as the time range changes: replicas come and go
        "sort": 1,
        "hide": 0,
        "multi": not one.single,
        "includeAll": not one.single,
        "options": [],
    }
    if one.single:
        return made | {"current": {}}
    # `.*` also takes series without the label.
    return made | {"allValue": ".*", "current": {"selected": True, "text": ["All"], "value": ["$__all"]}}


_DATASOURCE: Final[Json] = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
    "refresh": 1,
    "hide": 0,
    "multi": False,
    "includeAll": False,
    "regex": "",
    "options": [],
    "current": {},
}
_LINKS: Final[Json] = {
    "title": "otel-llm",
    "type": "dashboards",
    "tags": [TAG],
    "asDropdown": False,
    "keepTime": True,
    "includeVars": True,
    "targetBlank": False,
    "icon": "dashboard",
    "tooltip": "",
    "url": "",
}
_BUILT_IN: Final[Json] = {
    "name": "Annotations & Alerts",
    "type": "dashboard",
    "builtIn": 1,
    "enable": True,
    "hide": True,
    "iconColor": "rgba(0, 211, 255, 1)",
    "datasource": {"type": "grafana", "uid": "-- Grafana --"},
}
_FIRING: Final[Json] = {
    "name": "Alerts of Prometheus",
    "enable": True,
    "hide": False,
    "iconColor": "red",
    "datasource": SOURCE,
    "expr": FIRING,
    "step": "60s",
    "titleFormat": "{{alertname}}",
    "textFormat": "{{slo_class}} {{instance}}",
}
