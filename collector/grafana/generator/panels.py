"""Panels, as Grafana 11 and later read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from generator.promql import quantile

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]
Kind = Literal["timeseries", "stat", "heatmap", "status-history", "state-timeline", "table", "text"]
SOURCE: Final[Json] = {"type": "prometheus", "uid": "${datasource}"}
DOCS: Final = "https://github.com/otel-llm/otel-llm/blob/main/docs"
MIN_INTERVAL: Final = "15s"
"""The scrape interval of `collector/prometheus/prometheus.yml`: a finer step has no new sample."""
GOOD, WARN, BAD = "green", "orange", "red"

Steps = tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class Query:
    """A query, and the name of its series; `dashed`: drawn as a line to compare with."""

    expr: str
    legend: str
    dashed: bool = False


def median_and_p99(buckets: str, by: str = "") -> tuple[Query, Query]:
    """Return the queries of two quantiles of a histogram, by a label where one is given."""
    labels, legend = ((by,), f"{{{{{by}}}}} ") if by else ((), "")
    first, second = (quantile(q, buckets, *labels) for q in (0.5, 0.99))
    return Query(first, f"{legend}p50"), Query(second, f"{legend}p99")


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Args:
        unit: Grafana's id of a unit.
        steps: where the colour changes, ascending, above the colour of all that is smaller.
        base: this colour.
        links: title and path, within `docs`, of pages.
        colours: of series, by name.
        states: texts of values.
        none: the text where there is no number.
    """

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 8
    steps: Steps = ()
    base: str = GOOD
    links: tuple[tuple[str, str], ...] = ()
    stacked: bool = False
    range: tuple[float | None, float | None] = (None, None)
    colours: dict[str, str] = field(default_factory=dict)
    states: dict[str, tuple[str, str]] = field(default_factory=dict)
    text: str = ""
    none: str = "no data"


def to_json(panel: Panel, number: int, x: int, y: int) -> Json:
    """Return a panel's JSON; `number`: its id in the dashboard, `x` and `y`: its place on the grid."""
    made: Json = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "gridPos": {"h": panel.height, "w": panel.width, "x": x, "y": y},
        "links": [{"title": title, "url": f"{DOCS}/{path}", "targetBlank": True} for title, path in panel.links],
    }
    if panel.kind == "text":
        return made | {"options": {"mode": "markdown", "content": panel.text}}
    made |= {
        "datasource": SOURCE,
        "interval": MIN_INTERVAL,
        "targets": [_target(panel, query, at) for at, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": list(_overrides(panel))},
        "options": _OPTIONS[panel.kind](panel),
    }
    if panel.kind == "status-history":
        made["maxDataPoints"] = 100  # each is a cell, and more of them are refused
    if panel.kind == "table":
        made["transformations"] = [
            {"id": "organize", "options": {"excludeByName": {"Time": True, "Value": True, "__name__": True}}}
        ]
    return made


def _target(panel: Panel, query: Query, at: int) -> Json:
    instant = panel.kind in ("stat", "table")
    form = {"table": "table", "heatmap": "heatmap"}.get(panel.kind, "time_series")
    return {
        "refId": chr(ord("A") + at),
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend,
        "format": form,
        "instant": instant,
        "range": not instant,
    }


def _defaults(panel: Panel) -> Json:
    steps = [{"color": panel.base, "value": None}, *({"color": colour, "value": at} for at, colour in panel.steps)]
    defaults: Json = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    low, high = panel.range
    defaults |= {name: value for name, value in (("min", low), ("max", high)) if value is not None}
    if panel.states:
        options = {value: {"text": text, "color": colour} for value, (text, colour) in panel.states.items()}
        defaults["mappings"] = [{"type": "value", "options": options}]
    if panel.kind == "status-history" and not panel.states:
        defaults["color"] = {"mode": "continuous-GrYlRd"}
    elif panel.kind in ("stat", "state-timeline", "status-history"):
        defaults["color"] = {"mode": "thresholds"}
    elif panel.kind == "timeseries":
        defaults["color"] = {"mode": "palette-classic"}
        defaults["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 40 if panel.stacked else 5,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "line" if panel.steps else "off"},
        }
    if panel.kind == "stat":
        defaults["noValue"] = panel.none
    return defaults


def _overrides(panel: Panel) -> list[Json]:
    made = [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for name, colour in panel.colours.items()
    ]
    dash = {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}}
    fill = {"id": "custom.fillOpacity", "value": 0}
    for at, query in enumerate(panel.queries):
        if query.dashed:
            matcher = {"id": "byFrameRefID", "options": chr(ord("A") + at)}
            made.append({"matcher": matcher, "properties": [dash, fill]})
    return made


_LEGEND: Final[Json] = {
    "displayMode": "table",
    "placement": "bottom",
    "showLegend": True,
    "calcs": ["lastNotNull", "max"],
}
_TOOLTIP: Final[Json] = {"mode": "multi", "sort": "desc"}


def _stat(panel: Panel) -> Json:
    return {
        "colorMode": "background" if panel.steps else "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "auto",
    }


def _heatmap(panel: Panel) -> Json:
    return {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "scale": "exponential", "exponent": 0.5, "steps": 64},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "yHistogram": True, "showColorScale": True},
        "yAxis": {"axisPlacement": "left", "unit": panel.unit},
    }


_OPTIONS: Final[dict[str, Callable[[Panel], Json]]] = {
    "timeseries": lambda _: {"legend": _LEGEND, "tooltip": _TOOLTIP},
    "stat": _stat,
    "heatmap": _heatmap,
    "status-history": lambda _: {
        "colWidth": 0.9,
        "rowHeight": 0.9,
        "showValue": "never",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "single", "sort": "none"},
    },
    "state-timeline": lambda _: {
        "alignValue": "left",
        "mergeValues": True,
        "rowHeight": 0.8,
        "showValue": "never",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "single", "sort": "none"},
    },
    "table": lambda _: {"cellHeight": "sm", "showHeader": True},
}
