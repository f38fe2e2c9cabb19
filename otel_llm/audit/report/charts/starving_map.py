"""The heat map of starving: on which instances, and when, readers waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.audit.report.charts.time_series import steps
from otel_llm.audit.report.report_model import Clock, groups, integers, label, reals
from otel_llm.shared.formatting import number, plural, seconds

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    from otel_llm.audit.report.charts.delivery_chart import Figure

    Floats = npt.NDArray[np.float64]

MOST_ROWS: Final = 30
"""The most instances in one chart, those with the most waiting; the others are summed in one row."""
MOST_COLUMNS: Final = 120
"""The most steps of time in one chart."""


@dataclass(frozen=True, slots=True)
class Starving:
    """Idle seconds charged to each instance in each step, `idle_s` (I, S), nan without events.

    `names` (I) are the instances in order of name, None if telemetry has none; `others`: how many instances the last
    row sums up, 0 if it is a single one.
    """

    names: list[str | None]
    idle_s: Floats
    first_ns: int
    step_ns: int
    others: int


def starving(windows: pd.DataFrame, window_ns: int) -> Starving:
    """Add up the waiting at one place of measurement by instance and time; `windows` hold that place alone."""
    at, first_ns, step_ns, count = steps(integers(windows, "window_start_unix_nano"), window_ns, MOST_COLUMNS)
    idle = reals(windows, "idle_s_sum")
    found = [(key[0], rows) for key, rows in groups(windows, ("instance",))]
    shown = found
    if len(found) > MOST_ROWS:
        heaviest = sorted(range(len(found)), key=lambda place: (-idle[found[place][1]].sum(), place))[: MOST_ROWS - 1]
        shown = [found[place] for place in sorted(heaviest)]
        rest = [rows for place, (_, rows) in enumerate(found) if place not in set(heaviest)]
        shown.append((None, np.concatenate(rest)))
    cells = np.full((len(shown), count), np.nan)
    for place, (_, rows) in enumerate(shown):
        summed = np.bincount(at[rows], idle[rows], count)
        seen = np.bincount(at[rows], minlength=count) > 0
        cells[place, seen] = summed[seen]
    others = len(found) - MOST_ROWS + 1 if len(found) > MOST_ROWS else 0
    return Starving([name for name, _ in shown], cells, first_ns, step_ns, others)


def starving_figure(found: Starving, clock: Clock) -> Figure:
    """Draw the heat map, the first instance above."""
    rows, columns = found.idle_s.shape
    starts = [found.first_ns + place * found.step_ns for place in range(columns)]
    step_s = found.step_ns / 1e9
    words = [
        [
            "nothing going on"
            if np.isnan(cell)
            else f"{seconds(cell)} of waiting, {number(float(cell) / step_s)} readers on average"
            for cell in line
        ]
        for line in found.idle_s.tolist()
    ]
    most = float(np.nanmax(found.idle_s)) if not np.isnan(found.idle_s).all() else 0.0
    return {
        "data": [
            {
                "type": "heatmap",
                "x": [clock.at(one) for one in (*starts, starts[-1] + found.step_ns)],
                "y": list(range(rows)),
                "z": [[None if np.isnan(cell) else cell for cell in line] for line in found.idle_s.tolist()],
                "zmin": 0,
                "zmax": most or 1.0,
                "text": [
                    [
                        f"<b>{label(row_name(found, place), 80)}</b><br>from {clock.text(start)}<br>{word}"
                        for start, word in zip(starts, words[place], strict=True)
                    ]
                    for place in range(rows)
                ],
                "hovertemplate": "%{text}<extra></extra>",
                "hoverongaps": False,
                "xgap": 1 if columns <= 60 else 0,
                "ygap": 2,
                "colorscale": [[0, "$heat0"], [0.25, "$heat1"], [1, "$heat2"]],
                "colorbar": {
                    "title": {"text": "idle seconds ", "side": "top", "font": {"size": 12}},
                    "orientation": "h",
                    "x": 0,
                    "xanchor": "left",
                    "y": 1.02,
                    "yanchor": "bottom",
                    "len": 160,
                    "lenmode": "pixels",
                    "thickness": 10,
                    "outlinewidth": 0,
                    "nticks": 4,
                    "tickangle": 0,
                },
            }
        ],
        "layout": {
            "height": 164 + 24 * max(rows, 2),
            "margin": {"l": 56, "r": 40, "t": 8, "b": 64},
            "hovermode": "closest",
            "showlegend": False,
            "xaxis": {
                **clock.axis,
                "range": [clock.at(starts[0]), clock.at(starts[-1] + found.step_ns)],
                "showgrid": False,
            },
            "yaxis": {
                "tickmode": "array",
                "tickvals": list(range(rows)),
                "ticktext": [_row_name(found, place) for place in range(rows)],
                "autorange": "reversed",
                "showgrid": False,
                "zeroline": False,
            },
        },
    }


HEADINGS: Final = ("Instance", "Waiting in all", "Worst step", "Waiting in it", "Readers waiting in it")


def instance_lines(found: Starving, clock: Clock) -> list[tuple[str, ...]]:
    """Return each instance as the line of a table: its waiting, and its worst step."""
    lines: list[tuple[str, ...]] = []
    for place, cells in enumerate(found.idle_s):
        worst = int(np.nanargmax(cells))
        most = float(cells[worst])
        lines.append(
            (
                row_name(found, place),
                seconds(float(np.nansum(cells))),
                clock.text(found.first_ns + worst * found.step_ns),
                seconds(most),
                number(most / (found.step_ns / 1e9)),
            )
        )
    return lines


def row_name(found: Starving, place: int) -> str:
    """Return the label of a row as plain text: an instance, those without a name, or the rest together."""
    if found.others and place == len(found.names) - 1:
        return plural(found.others, "other instance")
    name = found.names[place]
    return "no instance named" if name is None else name


def _row_name(found: Starving, place: int) -> str:
    return label(row_name(found, place), 28)
