"""The chart of one delivery, as a plotly figure in plain data.

A figure is plain data for `plotly.graph_objects.Figure`, except that colours are names of the page's palette
(`$delivered`), resolved in the browser so that one page serves a light screen, a dark one and paper. No string of
telemetry is in a figure: it holds numbers and our own words only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_llm.audit.report.charts.timeline import Point, Timeline, thin
from otel_llm.shared.formatting import number, plural, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.slo.classes import SloClass

Figure = dict[str, Any]

COLUMNS: Final = 800
"""The time slices of a chart: about its width in pixels."""
MOST_SHADES: Final = 200
"""The most waits shaded in one chart; the shortest are left out, and the caption says so."""

_SECOND: Final = 1e9
_PHASES: Final = {
    "first": ("waits for the first token", "$first"),
    "waiting": ("waits for text", "$waiting"),
    "reading": ("reads", "$reading"),
}
"""The parts of a delivery: their names and colours."""


def timeline_figure(timeline: Timeline, slo: SloClass, *, until_ns: int | None = None, height: int = 380) -> Figure:
    """Draw tokens over time, the reader, the tangent at reading speed, the deadlines and the stalls.

    The chart ends shortly after the delivery, or at `until_ns` since the commit.
    """
    if until_ns is None:
        until_ns = timeline.horizon_ns + timeline.horizon_ns // 25
    until_ns = max(1_000_000, until_ns)
    tokens = len(timeline.tokens_ns)
    top = max(4, tokens)
    # The delivery is drawn over the reader: where they touch, both are visible.
    traces = [
        *_reference_lines(timeline, slo, until_ns),
        *_reader(timeline, until_ns),
        _delivery(timeline, until_ns),
    ]
    return {
        "data": traces + _band(timeline, until_ns),
        "layout": {
            "height": height,
            "hovermode": "closest",
            "showlegend": True,
            "barmode": "overlay",
            "xaxis": {
                "title": {"text": "seconds since the request was sent"},
                "range": [0, until_ns / _SECOND],
                "anchor": "y2",
                "ticksuffix": " s",
                "showticksuffix": "last",
            },
            "yaxis": {"title": {"text": "tokens"}, "range": [-0.04 * top, top * 1.2], "domain": [0.13, 1.0]},
            "yaxis2": {
                "domain": [0.0, 0.07],
                "range": [0, 1],
                "visible": False,
                "fixedrange": True,
            },
            "shapes": _shades(timeline, until_ns),
            "annotations": _labels(timeline, until_ns),
        },
    }


def _delivery(timeline: Timeline, until_ns: int) -> Figure:
    """Draw the step of delivered tokens; the labels of its dots describe each token."""
    times_ns = timeline.tokens_ns
    kept = thin(range(len(times_ns)), times_ns, COLUMNS)
    words = _token_labels(timeline, kept)
    last = float(len(times_ns))
    x_ns = [0, *(times_ns[index] for index in kept), until_ns]
    return {
        "type": "scatter",
        "name": "delivered",
        "legendrank": 1,
        "mode": "lines+markers",
        "line": {"shape": "hv", "color": "$delivered", "width": 2},
        "marker": {"color": "$delivered", "size": [0, *([5 if len(kept) <= 150 else 3] * len(kept)), 0]},
        "x": _in_seconds(x_ns),
        "y": [0.0, *(float(index + 1) for index in kept), last],
        "text": ["request sent", *words, f"{plural(len(times_ns), 'token')} delivered"],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _token_labels(timeline: Timeline, kept: Sequence[int]) -> list[str]:
    """Describe each token: its arrival, the gap before it, and how far it was ahead of the reader."""
    late = {wait.end_ns: wait for wait in timeline.waits}
    words: list[str] = []
    for index in kept:
        at_ns = timeline.tokens_ns[index]
        lines = [f"<b>token {index + 1:,}</b> at {seconds(at_ns / _SECOND)}"]
        if index:
            lines.append(f"{seconds((at_ns - timeline.tokens_ns[index - 1]) / _SECOND)} after the one before")
        if at_ns in late and (not index or timeline.tokens_ns[index - 1] != at_ns):
            lines.append(f"the reader waited {seconds(late[at_ns].length_ns / _SECOND)} for it")
        words.append("<br>".join(lines))
    return words


def _reader(timeline: Timeline, until_ns: int) -> list[Figure]:
    """Draw the reader's position in the text, flat while they wait."""
    corners = _thin_points(timeline.reader(until_ns))
    if not corners:
        return []
    tokens_at = [f"<b>reader</b> at {seconds(at / _SECOND)}: {number(tokens)} tokens read" for at, tokens in corners]
    return [_line(corners, "reader", "$reading", width=4, text=tokens_at)]


def _reference_lines(timeline: Timeline, slo: SloClass, until_ns: int) -> list[Figure]:
    """Draw the tangent, the line of a reader who never waits, and the class's own deadlines if they differ."""
    lines: list[Figure] = []
    first_ns, idle_ns = timeline.first_deadline_ns, timeline.idle_ns
    if idle_ns:
        never = timeline.straight(first_ns, until_ns)
        if len(never) > 1:
            lines.append(_line(never, "reader without waits", "$muted", dash="dot"))
        tangent = timeline.straight(first_ns + idle_ns, until_ns)
        if len(tangent) > 1:
            name = f"tangent, {seconds(idle_ns / _SECOND)} later"
            lines.append(_line(tangent, name, "$waiting", dash="dash"))
    deadline = slo.deadline
    if deadline.policy == "reading" and deadline.first_ns == 0:
        return lines
    due = _deadline_line(timeline, slo, until_ns)
    if len(due) > 1:
        lines.append(_line(due, f"deadlines ({deadline.policy})", "$deadline", dash="longdash"))
    return lines


def _deadline_line(timeline: Timeline, slo: SloClass, until_ns: int) -> list[Point]:
    """Return the class's deadlines in the chart's coordinates: token i is due when i-1 have been used up."""
    deadline = slo.deadline
    tokens = len(timeline.tokens_ns)
    if deadline.policy == "reading":
        return timeline.straight(slo.start_ns + deadline.first_ns + slo.pace_ns, until_ns)
    if deadline.policy == "dslo" and deadline.next_ns:
        first_ns = deadline.first_ns
        full_ns = first_ns + tokens * deadline.next_ns
        if first_ns > until_ns:
            return []
        top = tokens if full_ns <= until_ns else (until_ns - first_ns) / deadline.next_ns
        return [(first_ns, 0.0), (min(full_ns, until_ns), float(top))]
    if deadline.first_ns > until_ns:
        return []
    top = tokens if deadline.policy == "e2e" else 1
    return [(deadline.first_ns, 0.0), (deadline.first_ns, float(max(1, top)))]


def _band(timeline: Timeline, until_ns: int) -> list[Figure]:
    """Draw the band under the chart: first token, waiting, reading."""
    parts = timeline.phases(until_ns, until_ns // COLUMNS)
    traces: list[Figure] = []
    for name, (words, colour) in _PHASES.items():
        mine = [part for part in parts if part.name == name]
        if mine:
            lengths_s = _in_seconds([part.end_ns - part.start_ns for part in mine])
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": words,
                    "yaxis": "y2",
                    "base": _in_seconds([part.start_ns for part in mine]),
                    "x": lengths_s,
                    "y": [0.5] * len(mine),
                    "width": 1,
                    "marker": {"color": colour, "line": {"width": 0}},
                    "hovertext": [f"{words}, {seconds(length_s)}" for length_s in lengths_s],
                    "hoverinfo": "text",
                }
            )
    return traces


def _shades(timeline: Timeline, until_ns: int) -> list[Figure]:
    """Shade each wait: between two waits of one stall the reader reads."""
    shown = [wait for wait in timeline.waits if wait.start_ns < until_ns]
    longest = sorted(shown, key=lambda wait: -wait.length_ns)[:MOST_SHADES]
    return [
        {
            "type": "rect",
            "yref": "y domain",
            "x0": wait.start_ns / _SECOND,
            "x1": min(wait.end_ns, until_ns) / _SECOND,
            "y0": 0,
            "y1": 1,
            "fillcolor": "$waiting",
            "opacity": 0.16,
            "line": {"width": 0},
            "layer": "below",
        }
        for wait in sorted(longest, key=lambda wait: wait.start_ns)
    ]


def _labels(timeline: Timeline, until_ns: int) -> list[Figure]:
    """Write the length of a stall's waits above their shades, if there is room and the chart has all of them."""
    room_ns = until_ns // 16
    return [
        {
            "x": (stall.start_ns + stall.end_ns) / 2 / _SECOND,
            "y": 1,
            "yref": "y domain",
            "yanchor": "top",
            "text": f"waits {seconds(stall.waited_ns / _SECOND)}",
            "showarrow": False,
            "font": {"color": "$waitingtext", "size": 12},
        }
        for stall in timeline.stalls
        if stall.end_ns - stall.start_ns >= room_ns and stall.end_ns <= until_ns
    ]


def _line(
    corners: Sequence[Point],
    name: str,
    colour: str,
    *,
    width: int = 2,
    dash: str = "solid",
    text: list[str] | None = None,
) -> Figure:
    return {
        "type": "scatter",
        "name": name,
        "mode": "lines",
        "line": {"color": colour, "width": width, "dash": dash},
        "x": _in_seconds([at_ns for at_ns, _ in corners]),
        "y": [tokens for _, tokens in corners],
        **({"text": text, "hovertemplate": "%{text}<extra></extra>"} if text else {"hoverinfo": "name+x"}),
    }


def _thin_points(corners: list[Point]) -> list[Point]:
    times_ns = [at_ns for at_ns, _ in corners]
    return [corners[index] for index in thin(range(len(corners)), times_ns, COLUMNS)]


def _in_seconds(times_ns: Sequence[int]) -> list[float]:
    return [at_ns / _SECOND for at_ns in times_ns]
