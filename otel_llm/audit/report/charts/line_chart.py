"""What the pages of sweeps and profiles share: the colour and dash of each line, and the layout of a chart of lines."""

from __future__ import annotations

from typing import Any, Final

COLOURS: Final = ("$reading", "$delivered", "$deadline", "$first", "$waiting", "$ink")
DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def pen(place: int) -> tuple[str, str]:
    """Return colour and dash of a line by its place; no two of the first 36 are alike."""
    return COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)]


def line_figure(
    traces: list[dict[str, Any]], x: str, y: str, *, height: int = 380, legend: bool = True, y_from_zero: bool = True
) -> dict[str, Any]:
    """Return a figure of lines with the titles `x` and `y`; the x axis begins at 0. `height` in pixels."""
    return {
        "data": traces,
        "layout": {
            "height": height,
            "hovermode": "closest",
            "showlegend": legend,
            "xaxis": {"title": {"text": x}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": y}} | ({"rangemode": "tozero"} if y_from_zero else {}),
        },
    }
