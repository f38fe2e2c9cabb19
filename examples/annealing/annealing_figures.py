"""The pictures of figures 7 to 11, from the rows of their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from panel_figures import panel_figure
from resumed_points import select

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from panel_figures import Line
    from resumed_points import Row

LINES_7 = {
    "shortest first, known lengths": ("shortest", "0"),
    "paper's schedule, predicted lengths": ("paper", "gaussian"),
    "scaled, predicted lengths": ("scaled", "gaussian"),
    "paper's schedule, known lengths": ("paper", "0"),
    "scaled, known lengths": ("scaled", "0"),
    "exact, known lengths": ("exact", "0"),
}
PANELS = {"1": "max batch 1", "2": "max batch 2", "4": "max batch 4"}
ENGINES = {"v100x2": "2 x V100 (the paper's Table 2)", "h100": "H100 today"}


def figures(tables: Mapping[str, Sequence[Row]]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return title and figure of each picture."""
    return {
        "figure-7": (
            "Figure 7: the gain of G over arrival order, on 2 x V100 by the paper's Table 2",
            panel_figure(_by_batch(tables["figure-7"]), "requests", "gain of G", height=420, percent=".0%"),
        ),
        "figure-8": (
            "Figure 8: the gain by first temperature and moves a level, on 2 x V100, known lengths",
            panel_figure(_by_moves(tables["figure-8"]), "moves a level", "gain of G over arrival order", percent=".0%"),
        ),
        "figure-9": (
            "Figure 9: the gain by error of the output length, 40 requests, max batch 4",
            panel_figure(
                _by_error(tables["figure-9"]), "error of the length", "gain of G", category=True, percent=".0%"
            ),
        ),
        "figure-10": (
            "Figure 10: what a wrong coefficient costs, 10 requests, max batch 4",
            panel_figure(
                _by_deviation(tables["figure-10"]),
                "deviation",
                "change of G",
                percent=".1%",
                x_percent=".0%",
                height=420,
            ),
        ),
        "figure-11": (
            "Figure 11: the time of scheduling ten requests on each instance, max batch 1, known lengths",
            panel_figure(_by_instances(tables["figure-11"]), "instances", "ms of a processor"),
        ),
    }


def _line(rows: Sequence[Row], x: str, y: str) -> Line:
    return [float(row[x]) for row in rows], [float(row[y]) for row in rows]


def _by_batch(rows: Sequence[Row]) -> dict[str, dict[str, Line]]:
    return {
        title: {
            name: _line(select(rows, profile="v100x2", max_batch=size, search=search, lengths=lengths), "jobs", "gain")
            for name, (search, lengths) in LINES_7.items()
        }
        for size, title in PANELS.items()
    }


def _by_moves(rows: Sequence[Row]) -> dict[str, dict[str, Line]]:
    panels = {}
    for jobs, size in (("10", "1"), ("20", "2"), ("40", "4")):
        mine = select(rows, profile="v100x2", jobs=jobs, max_batch=size)
        lines = {f"from {start}": _line(select(mine, start=start), "moves", "gain") for start in ("100", "200", "500")}
        scaled = select(mine, start="scaled")
        panels[f"{jobs} requests, max batch {size}"] = lines | {"scaled": _line(scaled, "moves", "gain")}
    return panels


def _by_error(rows: Sequence[Row]) -> dict[str, dict[str, Line]]:
    words = {"gaussian": "Gaussian", "0.1": "10 %", "0.05": "5 %", "0.025": "2.5 %", "0": "none"}
    return {
        title: {
            name: (
                [words[row["lengths"]] for row in mine],
                [float(row["gain"]) for row in mine],
            )
            for search, name in (("paper", "paper's schedule"), ("scaled", "scaled"))
            if (mine := select(rows, profile=profile, jobs="40", max_batch="4", search=search))
        }
        for profile, title in ENGINES.items()
    }


def _by_deviation(rows: Sequence[Row]) -> dict[str, dict[str, Line]]:
    names = list(dict.fromkeys((row["phase"], row["coefficient"]) for row in rows))
    return {
        title: {
            f"{phase} {name}": _line(select(rows, phase=phase, coefficient=name, search=search), "deviation", "change")
            for phase, name in names
        }
        for search, title in (("paper", "paper's schedule"), ("scaled", "scaled"))
    }


def _by_instances(rows: Sequence[Row]) -> dict[str, dict[str, Line]]:
    return {
        title: {
            name: _line(select(rows, profile=profile, max_batch="1", search=search), "instances", "search_ms")
            for search, name in (("paper", "paper's schedule"), ("scaled", "scaled"))
        }
        for profile, title in ENGINES.items()
    }
