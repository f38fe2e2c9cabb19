"""The picture: real against simulated, request by request, and the errors by load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_llm.audit.report.charts.line_chart import line_figure, pen
from otel_llm.audit.report.html_page import page, picture, table, text
from otel_llm.shared.formatting import number, seconds, share
from simulator_error_parts.errors import FIGURES, PUBLIC, Values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WORDS = {"ttft": "Time to the first token", "itl": "Mean time between tokens", "e2e": "Whole reply"}
HEADINGS = (
    "Load",
    "Run",
    "Requests",
    "Figure",
    "Real, median",
    "Simulated, median",
    "Error, median",
    "p90",
    "Of means",
)


def render(title: str, rows: Sequence[dict[str, Any]], points: Mapping[str, Sequence[tuple[Values, Values]]]) -> str:
    """Return a self-contained page; `points`: the values of the requests, real and simulated, by load."""
    figures = {name: _scatter(name, points) for name in FIGURES}
    parts = [f"<header><h1>{text(title)}</h1></header>"]
    parts += [picture(name, WORDS[name], f"{WORDS[name]}: simulated against real, s", "") for name in FIGURES]
    parts += ["<h2>The errors</h2>", table(HEADINGS, cells(rows))]
    return page(title, "\n".join(parts), figures)


def cells(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a line for each run and figure."""
    return [
        (
            f"{row['load']}, {row['rate']:.1f}/s",
            str(row["round"]),
            str(row["requests"]),
            name.upper(),
            seconds(found["real_median_s"]),
            seconds(found["simulated_median_s"]),
            share(found["median"]),
            share(found["p90"]),
            f"{found['of_means']:+.1%}",
        )
        for row in rows
        for name, found in row["errors"].items()
    ]


def summary(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a line for each load and figure: the median over the runs with the least and the most, and the public."""
    found = []
    for load in dict.fromkeys(row["load"] for row in rows):
        for name in FIGURES:
            runs = [row["errors"][name] for row in rows if row["load"] == load]
            columns = [sorted(abs(run[key]) for run in runs) for key in ("median", "p90", "of_means")]
            spread = [f"{one[len(one) // 2]:.1%} ({one[0]:.1%} to {one[-1]:.1%})" for one in columns]
            found.append((load, name.upper(), number(len(runs)), *spread, f"{PUBLIC[name]:.1%}"))
    return found


def _scatter(name: str, points: Mapping[str, Sequence[tuple[Values, Values]]]) -> dict[str, Any]:
    traces = []
    highest = 0.0
    for index, (load, runs) in enumerate(points.items()):
        x = [float(value) for real, _ in runs for value in real[name]]
        y = [float(value) for _, ours in runs for value in ours[name]]
        kept = [(a, b) for a, b in zip(x, y, strict=True) if a == a and b == b]  # of one token there is no gap
        highest = max([highest, *(max(pair) for pair in kept)])
        colour, _ = pen(index)
        traces.append(
            {"type": "scatter", "mode": "markers", "name": text(load), "marker": {"color": colour, "size": 5}}
            | {"opacity": 0.6, "x": [a for a, _ in kept], "y": [b for _, b in kept]}
        )
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": "equal",
        "line": {"color": "$muted", "dash": "dash", "width": 1},
    }
    figure = line_figure([line | {"x": [0, highest], "y": [0, highest]}, *traces], "real, s", "simulated, s")
    figure["layout"]["height"] = 420
    return figure
