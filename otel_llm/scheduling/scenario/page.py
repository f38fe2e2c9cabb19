"""The page of a sweep: attainment and goodput against the load, attainment by tier, and every run's figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_llm.audit.report.charts.line_chart import line_figure, pen
from otel_llm.audit.report.html_page import page, picture, table, text, values
from otel_llm.scheduling.scenario.figures import COLUMNS
from otel_llm.scheduling.scenario.running import load_cells, load_of, optimum_text, others_of
from otel_llm.shared.formatting import number, share

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_llm.scheduling.scenario.scenario import Objective
    from otel_llm.scheduling.scenario.sweep import PlannedRun

Row = dict[str, Any]


def render(
    title: str, runs: Sequence[PlannedRun], rows: Sequence[Row], loads: Mapping[str, float | None], seed: int
) -> str:
    """Return a self-contained page: charts with their values, the loads at the objective, the runs."""
    lines = _lines(runs, rows)
    figures: dict[str, Any] = {}
    parts = [f"<header><h1>{text(title)}</h1><p class='lead'>{text(_lead(runs, seed))}</p></header>"]
    if any(load is not None for found in lines.values() for load, _ in found):
        objective = runs[0].scenario.objective
        for name, key, words in (
            ("attainment", "attainment", "The share of requests that met every deadline, against the load"),
            ("goodput", "goodput_req_s", "Requests a second that met every deadline, against the load"),
        ):
            figures[name] = _load_figure(lines, key, objective if key == "attainment" else None)
            figures[name]["layout"].setdefault("shapes", []).extend(_optimum_marks(rows))
            parts.append(picture(name, words, words, "", values(_by_load(lines, key))))
        parts.append(f"<p>{text(optimum_text(rows))} A dotted line marks it.</p>")
    if loads:
        heads = ["Settings", "Requests/s", "Of the optimum"]
        parts += ["<h2>The highest load that meets the objective</h2>", table(heads, load_cells(runs, rows, loads))]
    words = "The share of requests that met every deadline, by tier"
    figures["tiers"] = _tier_figure(runs, rows)
    parts.append(picture("tiers", words, words, "", values(_by_tier(runs, rows))))
    parts += ["<h2>The runs</h2>", _runs_table(runs, rows)]
    return page(title, "\n".join(parts), figures)


def _lines(runs: Sequence[PlannedRun], rows: Sequence[Row]) -> dict[str, list[tuple[float | None, Row]]]:
    """Return the rows by their settings other than the load, each with its load, in order of it."""
    found: dict[str, list[tuple[float | None, Row]]] = {}
    for run, row in zip(runs, rows, strict=True):
        found.setdefault(others_of(run.settings), []).append((load_of(run.settings), row))
    return {name: sorted(line, key=lambda point: point[0] or 0.0) for name, line in found.items()}


def _lead(runs: Sequence[PlannedRun], seed: int) -> str:
    first = runs[0].scenario
    sizes = {run.scenario.fleet.instances for run in runs}
    profiles = ", ".join(dict.fromkeys(run.scenario.profile.name for run in runs))
    of = f"{min(sizes)}" if len(sizes) == 1 else f"{min(sizes)} to {max(sizes)}"
    count = "a run" if len(runs) == 1 else f"{len(runs)} runs"
    requests = first.workload.requests
    many = "the requests of a trace" if requests is None else f"{requests:,} requests"
    return f"{count} of {many} on {of} simulated instances of {profiles}, seed {seed}"


def _load_figure(
    lines: Mapping[str, Sequence[tuple[float | None, Row]]], key: str, objective: Objective | None
) -> dict[str, Any]:
    traces = []
    for index, (name, line) in enumerate(lines.items()):
        points = [(load, row[key]) for load, row in line if load is not None]
        traces.append(_trace(name or "all runs", [load for load, _ in points], [value for _, value in points], index))
    y = "share that met" if key == "attainment" else "requests/s that met"
    figure = line_figure(traces, "load, requests/s", y, height=400, legend=len(traces) > 1)
    if objective is not None:
        at = float(objective.attainment)
        figure["layout"]["shapes"] = [
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at}
            | {"line": {"color": "$muted", "dash": "dash", "width": 1}}
        ]
    return figure


def _optimum_marks(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a vertical line at each load of the closed form."""
    return [
        {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": at, "x1": at}
        | {"line": {"color": "$muted", "dash": "dot", "width": 1}}
        for at in sorted({row["optimal_req_s"] for row in rows if row["optimal_req_s"] is not None})
    ]


def _tier_figure(runs: Sequence[PlannedRun], rows: Sequence[Row]) -> dict[str, Any]:
    traces = [
        _trace(_label(run), list(row["attainment_by_tier"]), list(row["attainment_by_tier"].values()), index)
        for index, (run, row) in enumerate(zip(runs, rows, strict=True))
    ]
    figure = line_figure(traces, "tier", "share that met", height=400, legend=len(traces) > 1)
    figure["layout"]["xaxis"] = {"title": {"text": "tier"}, "type": "category"}
    return figure


def _trace(name: str, x: Sequence[Any], y: Sequence[float | None], place: int) -> dict[str, Any]:
    colour, dash = pen(place)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": text(name, 80),
        "line": {"color": colour, "dash": dash, "width": 2},
        "marker": {"color": colour},
        "x": [text(one) if isinstance(one, str) else one for one in x],
        "y": list(y),
    }


def _by_load(lines: Mapping[str, Sequence[tuple[float | None, Row]]], key: str) -> str:
    form = share if key == "attainment" else number
    cells = [(name or "all runs", number(load), form(row[key])) for name, line in lines.items() for load, row in line]
    return table(["Settings", "Load, requests/s", "Met"], cells)


def _by_tier(runs: Sequence[PlannedRun], rows: Sequence[Row]) -> str:
    tiers = list(dict.fromkeys(tier for row in rows for tier in row["attainment_by_tier"]))
    cells = [
        (_label(run), *(share(row["attainment_by_tier"].get(tier)) for tier in tiers))
        for run, row in zip(runs, rows, strict=True)
    ]
    return table(["Settings", *tiers], cells)


def _runs_table(runs: Sequence[PlannedRun], rows: Sequence[Row]) -> str:
    cells = [(_label(run), *(column.text(row) for column in COLUMNS)) for run, row in zip(runs, rows, strict=True)]
    return table(["Settings", *(column.page_heading for column in COLUMNS)], cells)


def _label(run: PlannedRun) -> str:
    return ", ".join(f"{key}={value}" for key, value in run.settings.items()) or "the run"
