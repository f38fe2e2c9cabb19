"""The charts of a sweep: load against smooth goodput for some alphas, and the best load against alpha."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_llm.audit.report.charts.line_chart import line_figure, pen
from otel_llm.audit.report.html_page import page, picture, table, text
from otel_llm.shared.formatting import number, plural, seconds, share
from otel_llm.shared.printable import MISSING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.audit.compare.sweep import Sweep
    from otel_llm.audit.report.charts.delivery_chart import Figure

MOST_LINES: Final = 6
"""The most alphas drawn in one chart, spread over the given ones; the values have them all."""


def render(found: Sweep, *, title: str = "Smooth goodput by load, alpha and reading speed") -> str:
    """Return a self-contained page: charts with their values, for each place of measurement and reading speed."""
    figures: dict[str, Figure] = {}
    parts: list[str] = [f"<header><h1>{text(title)}</h1><p class='lead'>{text(_lead(found))}</p></header>"]
    for place, speed in _groups(found.points):
        mine = [row for row in found.points if (row["measured_at"], row["reading_speed_tok_s"]) == (place, speed)]
        several = len({row["recording"] for row in mine}) > 1
        figure = load_figure(mine) if several else alpha_figure(mine)
        name = f"points-{len(figures)}"
        figures[name] = figure
        words = f"{'Load' if several else 'Alpha'} against smooth goodput, {_reader(speed)}, measured at {place}"
        parts.append(picture(name, words, words, "", _values(mine)))
    for place in sorted({row["measured_at"] for row in found.optima}):
        mine = [row for row in found.optima if row["measured_at"] == place]
        name = f"optima-{len(figures)}"
        figures[name] = optimum_figure(mine)
        words = f"The load of the highest smooth goodput against alpha, measured at {place}"
        sure = any(row["load_low"] is not None for row in mine)
        note = (
            "<p class='quiet'>Bars: where the best load lies in 95 % of resamples of the requests.</p>" if sure else ""
        )
        parts.append(picture(name, words, words, note, _optima(mine)))
    return page(title, "\n".join(parts), figures)


def load_figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw load against throughput and against smooth goodput, a line for each alpha (Wang et al., figure 6)."""
    first = rows[0]["alpha"]
    base = [row for row in rows if row["alpha"] == first and row["load_req_s"] is not None]
    traces = [_line(base, "load_req_s", "throughput_tok_s", "throughput", "$muted", "dot")]
    for place, alpha in enumerate(_some(sorted({row["alpha"] for row in rows}))):
        mine = [row for row in rows if row["alpha"] == alpha and row["load_req_s"] is not None]
        traces.append(_line(mine, "load_req_s", "smooth_goodput_tok_s", f"alpha {number(alpha)}", *pen(place)))
    return line_figure(traces, "requests per second", "tokens/s", y_from_zero=False)


def alpha_figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw alpha against the smooth goodput of one recording."""
    trace = _line(rows, "alpha", "smooth_goodput_tok_s", "smooth goodput", *pen(0))
    return line_figure([trace], "alpha", "tokens/s", y_from_zero=False)


def optimum_figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw the best load against alpha, a line for each reading speed (Wang et al., figure 11)."""
    traces = []
    for place, speed in enumerate(dict.fromkeys(row["reading_speed_tok_s"] for row in rows)):
        mine = [row for row in rows if row["reading_speed_tok_s"] == speed]
        trace = _line(mine, "alpha", "load_req_s", _reader(speed), *pen(place))
        if all(row["load_low"] is not None for row in mine):
            trace["error_y"] = {
                "type": "data",
                "symmetric": False,
                "array": [max(0.0, row["load_high"] - row["load_req_s"]) for row in mine],
                "arrayminus": [max(0.0, row["load_req_s"] - row["load_low"]) for row in mine],
                "thickness": 1,
                "color": trace["line"]["color"],
            }
        traces.append(trace)
    return line_figure(traces, "alpha", "best load, requests/s", y_from_zero=False)


def _lead(found: Sweep) -> str:
    recordings = {row["recording"] for row in found.points}
    speeds = {row["reading_speed_tok_s"] for row in found.points}
    alphas = {row["alpha"] for row in found.points}
    counted = ((recordings, "recording"), (speeds, "reading speed"), (alphas, "alpha"))
    what = ", ".join(plural(len(some), name) for some, name in counted) + "."
    edges = sum(row["at_edge"] for row in found.optima)
    if edges:
        what += (
            f" In {edges:,} of {len(found.optima):,} cases the best load is the lowest or the highest that was "
            "recorded: the peak may lie beyond."
        )
    return what


def _groups(rows: Sequence[dict[str, Any]]) -> list[tuple[str, float | None]]:
    return list(dict.fromkeys((row["measured_at"], row["reading_speed_tok_s"]) for row in rows))


def _reader(speed: float | None) -> str:
    return "each class's own reading speed" if speed is None else f"reading {number(speed)} tokens/s"


def _some(values: Sequence[float]) -> list[float]:
    if len(values) <= MOST_LINES:
        return list(values)
    return [values[round(at * (len(values) - 1) / (MOST_LINES - 1))] for at in range(MOST_LINES)]


def _line(rows: Sequence[dict[str, Any]], x: str, y: str, name: str, colour: str, dash: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "line": {"color": colour, "width": 2, "dash": dash},
        "marker": {"color": colour, "size": 6},
        "x": [row[x] for row in rows],
        "y": [row[y] for row in rows],
        "hovertemplate": f"{name}: %{{y:.4g}} at %{{x:.4g}}<extra></extra>",
    }


def _values(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        (
            row["recording"],
            number(row["load_req_s"]),
            number(row["alpha"]),
            number(row["smooth_goodput_tok_s"]),
            between(row["smooth_goodput_low"], row["smooth_goodput_high"]),
            number(row["throughput_tok_s"]),
            seconds(row["idle_p50_s"]),
            seconds(row["idle_p99_s"]),
            share(row["attainment"]),
            share(row["aborted_share"]),
        )
        for row in rows
    ]
    headings = ["Recording", "Requests/s", "Alpha", "Smooth goodput", "95 %", "Throughput"]
    headings += ["Idle, median", "Idle, 99 %", "Attainment", "Aborted"]
    return f"<details><summary>The values</summary>{table(headings, lines)}</details>"


def _optima(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        (
            _reader(row["reading_speed_tok_s"]),
            number(row["alpha"]),
            number(row["load_req_s"]),
            between(row["load_low"], row["load_high"]),
            share(row["best_share"]),
            number(row["smooth_goodput_tok_s"]),
            "lowest or highest recorded" if row["at_edge"] else "",
        )
        for row in rows
    ]
    headings = ["Reader", "Alpha", "Best load, requests/s", "95 %", "Best in resamples", "Smooth goodput", "Edge"]
    return f"<details><summary>The values</summary>{table(headings, lines, text_columns=(6,))}</details>"


def between(low: float | None, high: float | None) -> str:
    """Return the interval as text."""
    return MISSING if low is None or high is None else f"{number(low)} to {number(high)}"
