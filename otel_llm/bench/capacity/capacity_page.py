"""The page of a search: its answer, the share of requests against the rate, and every probe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_llm.audit.report.charts.line_chart import line_figure
from otel_llm.audit.report.html_page import page, picture, table, text, values
from otel_llm.audit.report.report_model import label
from otel_llm.bench.capacity.capacity_answer import PROBE_HEADINGS, answer, failures, probe_rows, state
from otel_llm.shared.formatting import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.bench.capacity.capacity_answer import State
    from otel_llm.bench.capacity.capacity_search import CapacityResult, ProbeResult

_COLOURS: dict[State, str] = {
    "holds": "$delivered",
    "fails": "$waiting",
    "undecided": "$muted",
    "not valid": "$first",
}
_SYMBOLS: dict[State, str] = {
    "holds": "circle",
    "fails": "x",
    "undecided": "diamond-open",
    "not valid": "triangle-up-open",
}


def render(title: str, result: CapacityResult) -> str:
    """Return a self-contained page."""
    failed = failures(result)
    lead = f"{answer(result)}. Objective: {result.plan.objective.text}." + (f" {failed}." if failed else "")
    parts = [f"<header><h1>{text(title)}</h1><p class='lead'>{text(lead)}</p></header>"]
    rows = table(PROBE_HEADINGS, probe_rows(result), text_columns=(1,))
    figures: dict[str, Any] = {}
    if any(probe.finding is not None for probe in result.probes):
        figures["shares"] = _shares(result)
        words = "The share of requests that hold, against the rate, with its interval at all times"
        parts.append(picture("shares", words, words, "", values(rows)))
        figures["search"] = _search(result)
        words = "The rate of each probe, in order"
        parts.append(picture("search", words, words, "", values(rows)))
    parts += ["<h2>The probes</h2>", rows]
    return page(title, "\n".join(parts), figures)


def _shares(result: CapacityResult) -> dict[str, Any]:
    traces = []
    for kind in _COLOURS:
        probes = [one for one in result.probes if state(one) == kind and one.finding is not None]
        if not probes:
            continue
        found = [one.finding for one in probes if one.finding is not None]
        trace = _points(kind, [one.rate for one in probes], [one.value for one in found], probes)
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [max(0.0, one.interval.high - one.value) for one in found],
            "arrayminus": [max(0.0, one.value - one.interval.low) for one in found],
            "color": _COLOURS[kind],
        }
        traces.append(trace)
    figure = line_figure(traces, "rate, requests/s", "share that holds", height=400)
    targets = {float(clause.target) for clause in result.plan.objective.clauses}
    figure["layout"]["shapes"] = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": target, "y1": target}
        | {"line": {"color": "$muted", "dash": "dash", "width": 1}}
        for target in sorted(targets)
    ] + _ends(result, "x")
    return figure


def _search(result: CapacityResult) -> dict[str, Any]:
    traces = []
    for kind in _COLOURS:
        numbered = [(index, one) for index, one in enumerate(result.probes, start=1) if state(one) == kind]
        if numbered:
            places, probes = [index for index, _ in numbered], [one for _, one in numbered]
            traces.append(_points(kind, places, [one.rate for one in probes], probes))
    figure = line_figure(traces, "probe", "rate, requests/s", height=320)
    figure["layout"]["yaxis"] = {"title": {"text": "rate, requests/s"}, "type": "log"}
    figure["layout"]["shapes"] = _ends(result, "y")
    return figure


def _ends(result: CapacityResult, axis: str) -> list[dict[str, Any]]:
    """Return a line across the figure at each end of the interval."""
    other = "y" if axis == "x" else "x"
    return [
        {"type": "line", f"{other}ref": "paper", f"{other}0": 0, f"{other}1": 1, f"{axis}0": end, f"{axis}1": end}
        | {"line": {"color": "$ink", "dash": "dot", "width": 1}}
        for end in (result.low, result.high)
        if end is not None
    ]


def _points(kind: State, x: Sequence[float], y: Sequence[float], probes: Sequence[ProbeResult]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": kind,
        "marker": {"color": _COLOURS[kind], "symbol": _SYMBOLS[kind], "size": 9},
        "x": list(x),
        "y": list(y),
        "text": [_hover(one) for one in probes],
    }


def _hover(probe: ProbeResult) -> str:
    words = f"{number(probe.rate)} requests/s, {number(probe.end.requests)} requests"
    return words if probe.end.invalid is None else f"{words}<br>not valid: {label(probe.end.invalid, 200)}"
