"""Distributions over requests as cumulative curves, one for each class and place of measurement.

A curve shows for each value the share of the requests with at most that: F(x) = |{r: x_r <= x}| / n. It is drawn
through a few hundred of its own steps, so every point of it is exact however many requests there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_llm.audit.report.report_model import by_class, label, reals
from otel_llm.shared.formatting import number, seconds
from otel_llm.slo.metrics import BY_NAME
from otel_llm.slo.quantiles import rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pandas as pd

    from otel_llm.audit.report.charts.delivery_chart import Figure
    from otel_llm.slo.metrics import Chart

    Floats = npt.NDArray[np.float64]

MOST_CURVES: Final = 8
"""The most curves in one chart, those of the largest groups: as many colours as can be distinguished."""
MOST_POINTS: Final = 240
"""About the drawn steps of one curve."""
BORDER_S: Final = 0.001
"""The lowest begin of a logarithmic axis of seconds: shorter values are drawn at the left border."""

DASHES: Final = ("solid", "dash", "dot", "dashdot")


SHARES: Final = ((1, 2), (9, 10), (99, 100))
"""Percentiles of the tables, as exact fractions."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One cumulative curve: `values` (K,) ascending, `shares` (K,) of the `count` requests at or below each."""

    name: str
    place: str
    count: int
    values: Floats
    shares: Floats


def cumulative(values: Floats, most: int = MOST_POINTS) -> tuple[Floats, Floats]:
    """Return about `most` exact points of the cumulative curve of values (R,) without nan, including the tails.

    Every returned value occurs; its share is that of all values at or below it. The smallest and the largest are always
    included, and the upper percent is as densely drawn as the rest.
    """
    ordered = np.sort(values)
    count = len(ordered)
    if count <= most:
        picked = np.unique(ordered)
    else:
        half = most // 2
        ranks = np.concatenate(
            [
                np.linspace(0, count - 1, half),
                (count - 1) - (np.geomspace(1, count * 0.02 + 1, half // 2) - 1),
                np.geomspace(1, count * 0.02 + 1, half // 2) - 1,
            ]
        )
        picked = np.unique(ordered[np.unique(ranks.round().astype(np.int64))])
    return picked, np.searchsorted(ordered, picked, side="right") / count


def curves(requests: pd.DataFrame, column: str, wanted: Sequence[tuple[str, str]]) -> list[Curve | None]:
    """Return the curves of a column for these (class, measured_at), None for one without a value."""
    everything = reals(requests, column)
    rows = {(name, place): mine for name, place, mine in by_class(requests)}
    found: list[Curve | None] = []
    for name, place in wanted:
        values = everything[rows[name, place]]
        values = values[~np.isnan(values)]
        found.append(Curve(name, place, len(values), *cumulative(values)) if len(values) else None)
    return found


def drawn_groups(requests: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the (class, measured_at) of the largest groups in order of name: those that get a curve."""
    largest = sorted(by_class(requests), key=lambda one: (-len(one[2]), one[0], one[1]))[:MOST_CURVES]
    return sorted((name, place) for name, place, _ in largest)


def distribution_figure(metric: Chart, found: Sequence[Curve | None]) -> Figure | None:
    """Draw the curves of one metric in the colours of their indexes in the list; None if there is none."""
    drawn = [(place, one) for place, one in enumerate(found) if one is not None]
    if not drawn:
        return None
    largest = max(float(one.values[-1]) for _, one in drawn)
    is_time, name = _is_time(metric), metric.axis or BY_NAME[metric.column].label
    logarithmic = is_time and largest > BORDER_S
    axis: dict[str, Any] = {"title": {"text": f"{name}, s" if is_time else name}}
    left = 0.0
    if logarithmic:
        positive = min(_first_above(one.values, BORDER_S) for _, one in drawn if one.values[-1] > BORDER_S)
        left = max(BORDER_S, float(10 ** np.floor(np.log10(positive * 0.99))))
        top = np.log10(largest)
        axis |= {"type": "log", "range": [float(np.log10(left)), float(top + 0.04 * (top - np.log10(left)))]}
        wide = top - np.log10(left) > 1.6
        axis |= {"dtick": 1, "minor": {"ticks": "outside", "dtick": "D1"}} if wide else {"dtick": "D2"}
        axis |= {"tickformat": "~g"}
    else:
        axis |= {"range": [-0.01, 1.02]} if not is_time else {"rangemode": "tozero"}
    return {
        "data": [_trace(place, one, metric, left, logarithmic) for place, one in drawn],
        "layout": {
            "height": 300,
            "hovermode": "closest",
            "showlegend": False,
            "margin": {"l": 52, "r": 30, "t": 10, "b": 44},
            "xaxis": axis,
            "yaxis": {"range": [-0.02, 1.03], "tickformat": ".0%", "title": {"text": "of the requests"}},
        },
    }


def _trace(place: int, one: Curve, metric: Chart, left: float, logarithmic: bool) -> Figure:
    values, shares = one.values, one.shares
    if logarithmic:
        # Values below the border are one step at the border.
        below = int(np.searchsorted(values, left, side="right"))
        first = shares[below - 1] if below else 0.0
        values = np.concatenate([[left], values[below:]])
        shares = np.concatenate([[first], shares[below:]])
    else:
        values, shares = np.concatenate([values[:1], values]), np.concatenate([[0.0], shares])
    unit = "%{x:.3~s}s" if _is_time(metric) else "%{x:.4~g}"
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": f"{label(one.name)}, {label(one.place)}",
        "line": {"shape": "hv", "color": f"$c{place + 1}", "width": 2, "dash": DASHES[place % len(DASHES)]},
        "marker": {"size": 4, "opacity": 0, "color": f"$c{place + 1}"},
        "x": values.tolist(),
        "y": shares.tolist(),
        "hovertemplate": f"%{{y:.2%}} have at most {unit}",
    }


def _is_time(metric: Chart) -> bool:
    return BY_NAME[metric.column].is_time


def _first_above(values: Floats, border: float) -> float:
    return float(values[np.searchsorted(values, border, side="right")])


def percentile_lines(requests: pd.DataFrame, metric: Chart) -> list[tuple[str, ...]]:
    """Return the values behind the charts as the lines of a table: nearest-rank percentiles of every group."""
    write = seconds if _is_time(metric) else number
    everything = reals(requests, metric.column)
    lines: list[tuple[str, ...]] = []
    for name, place, rows in by_class(requests):
        values = np.sort(everything[rows])
        values = values[~np.isnan(values)]
        if len(values):
            at = [values[rank(len(values), share)] for share in SHARES]
            cells = [write(float(value)) for value in (values[0], *at, values[-1])]
            lines.append((f"{name}, {place}", number(len(values)), *cells))
    return lines


PERCENTILE_HEADINGS: Final = ("Class", "Requests", "least", "50 %", "90 %", "99 %", "most")
