"""The pictures of figures 6 to 9, from the rows of their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from panel_figures import panel_figure
from polyserve_tables import LEVELS_9, PROFILES, TIERS, carried
from resumed_points import select

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from panel_figures import Line
    from resumed_points import Row

DRAWN = ("CO-PolyServe", "CO-PolyServe literal", "CO-Random", "CO-Minimal", "CO-Chunk", "CO-LMetric")
SPLIT = ("PD-PolyServe", "PD-Random", "PD-Minimal", "PD-LMetric")


def figures(tables: Mapping[str, Sequence[Row]]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return title and figure of each picture."""
    rows = tables["figure-6"]
    found = {}
    for trace in dict.fromkeys(row["trace"] for row in rows):
        mine = select(rows, trace=trace)
        found[f"figure-6-{trace.replace('_', '-')}"] = (
            f"Figure 6: attainment against the load, {trace}",
            panel_figure(
                _by_load(mine), "share of the optimum", "attainment", height=460, x_percent=".0%", percent=".0%"
            ),
        )
    found["figure-6-tiers"] = (
        "Figure 6: attainment by tier of uniform_4096_1024, paper-era",
        panel_figure(_by_tier(rows), "share of the optimum", "attainment", height=420, x_percent=".0%", percent=".0%"),
    )
    found["figure-7"] = (
        "Figure 7: attainment with the mix of tiers inverted half-way",
        panel_figure(
            _by_load(tables["figure-7"]),
            "share of the optimum",
            "attainment",
            height=460,
            x_percent=".0%",
            percent=".0%",
        ),
    )
    found["figure-8"] = (
        "Figure 8: instance seconds a request",
        panel_figure(_by_cost(tables["figure-8"]), "requests/s", "instance seconds a request", height=420),
    )
    found["figure-9"] = (
        "Figure 9: requests/s of an instance at 90 % attainment",
        panel_figure(_by_size(tables["figure-9"]), "instances", "requests/s of an instance", height=420),
    )
    return found


def _line(rows: Sequence[Row], x: str, y: str) -> Line:
    return [float(row[x]) for row in rows], [float(row[y]) for row in rows]


def _by_load(rows: Sequence[Row]) -> dict[str, dict[str, Line]]:
    panels: dict[str, dict[str, Line]] = {}
    for profile, words in PROFILES.items():
        mine = select(rows, profile=profile)
        lines = {policy: select(mine, policy=policy) for policy in (*DRAWN, *SPLIT)}
        if mine:
            panels[words] = {name: _line(levels, "share", "attainment") for name, levels in lines.items() if levels}
    return panels


def _by_tier(rows: Sequence[Row]) -> dict[str, dict[str, Line]]:
    mine = select(rows, trace="uniform_4096_1024", profile="h200-paper-era")
    return {
        policy: {tier: _line(select(mine, policy=policy), "share", tier) for tier in TIERS}
        for policy in ("CO-PolyServe", "PD-PolyServe", "CO-LMetric")
    }


def _by_cost(rows: Sequence[Row]) -> dict[str, dict[str, Line]]:
    return {
        words: {
            policy: _line(select(mine, policy=policy), "load_req_s", "cost_s")
            for policy in dict.fromkeys(row["policy"] for row in mine)
        }
        for profile, words in PROFILES.items()
        if (mine := select(rows, profile=profile))
    }


def _by_size(rows: Sequence[Row]) -> dict[str, dict[str, Line]]:
    sizes = list(dict.fromkeys(row["instances"] for row in rows))
    panels: dict[str, dict[str, Line]] = {}
    for profile, words in PROFILES.items():
        mine = select(rows, profile=profile)
        for policy in dict.fromkeys(row["policy"] for row in mine):
            loads = [carried(select(mine, policy=policy, instances=size), LEVELS_9) for size in sizes]
            of_one = [None if load is None else load / int(size) for load, size in zip(loads, sizes, strict=True)]
            panels.setdefault(words, {})[policy] = ([float(size) for size in sizes], of_one)
    return panels
