"""Charts of lines in panels side by side, as plotly figures in plain data with the colours of the audit's page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_llm.audit.report.charts.line_chart import pen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Line = tuple["Sequence[float | str]", "Sequence[float | None]"]
GAP: float = 0.06
"""Between two panels, as a share of the width."""


def panel_figure(
    panels: Mapping[str, Mapping[str, Line]],
    x: str,
    y: str,
    *,
    height: int = 380,
    category: bool = False,
    percent: str = "",
    x_percent: str = "",
) -> dict[str, Any]:
    """Return a figure with a panel for each title; lines of one name have one colour, and one entry in the legend.

    `category`: the x values are names. `percent`, `x_percent`: the format of shares, as `.0%`.
    """
    data: list[dict[str, Any]] = []
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    shown: set[str] = set()
    layout: dict[str, Any] = {"height": height, "hovermode": "closest", "showlegend": True, "annotations": []}
    width = (1 - GAP * (len(panels) - 1)) / len(panels)
    for index, (title, lines) in enumerate(panels.items()):
        number = "" if index == 0 else str(index + 1)
        left = index * (width + GAP)
        layout[f"xaxis{number}"] = {"domain": [left, left + width], "anchor": f"y{number}", "title": {"text": x}}
        layout[f"xaxis{number}"] |= {"type": "category"} if category else {}
        layout[f"yaxis{number}"] = {"anchor": f"x{number}", "title": {"text": y if index == 0 else ""}}
        layout[f"yaxis{number}"] |= {"tickformat": percent} if percent else {}
        layout[f"xaxis{number}"] |= {"tickformat": x_percent} if x_percent else {}
        layout["annotations"].append(
            {"text": title, "x": left + width, "y": 1.0, "xref": "paper", "yref": "paper"}
            | {"xanchor": "right", "yanchor": "top", "showarrow": False}
        )
        for name, (xs, ys) in lines.items():
            colour, dash = pen(names.index(name))
            data.append(
                {"type": "scatter", "mode": "lines+markers", "name": name, "x": list(xs), "y": list(ys)}
                | {"xaxis": f"x{number}", "yaxis": f"y{number}", "showlegend": name not in shown, "legendgroup": name}
                | {"line": {"color": colour, "dash": dash, "width": 2}, "marker": {"color": colour, "size": 6}}
            )
            shown.add(name)
    return {"data": data, "layout": layout}
