"""The tables of the README, from the rows of the CSV files: the paper's number beside ours."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from markdown_tables import markdown
from resumed_points import select

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resumed_points import Row

    Tables = Mapping[str, Sequence[Row]]

OBJECTIVE = 0.9
LEVELS_6, LEVELS_7, LEVELS_9 = 6, 3, 3
"""Loads of a policy in each table."""
PROFILES = {"h200-paper-era": "paper-era", "h200-llama-3.1-8b": "today"}
TIERS = ("t20", "t30", "t50", "t100")
PAPER_BASELINES = {"CO": ("CO-Random", "CO-Minimal", "CO-Chunk"), "PD": ("PD-Random", "PD-Minimal")}
PAPER_GAINS = {"figure 6": {"PD": "1.23", "CO": "1.18"}, "figure 7": {"PD": "1.33", "CO": "1.36"}}
PAPER_SHARES = {"PD": "92.5 %", "CO": "72.9 %"}


def readme_tables(tables: Tables) -> dict[str, str]:
    """Return the tables by the names that the README has them under."""
    return {
        "gains": _gains(tables),
        "loads": _loads(tables),
        "figure 6": _figure_6(tables["figure-6"]),
        "figure 7": _figure_7(tables["figure-7"]),
        "figure 8": _figure_8(tables["figure-8"]),
        "figure 9": _figure_9(tables["figure-9"]),
        "speed": _speed(tables["speed"]),
        "mechanisms": _mechanisms(tables["mechanisms"]),
    }


def load_at(levels: Sequence[tuple[float, float]], objective: float = OBJECTIVE) -> float | None:
    """Return the highest load at which the attainment is met, linear between levels; None if the lowest misses.

    `levels`: (load, attainment) by load. If the highest level meets it, that level is returned.
    """
    if levels[0][1] < objective:
        return None
    found = levels[0][0]
    for (load, attained), (further, less) in pairwise(levels):
        if attained >= objective:
            found = (
                further if less >= objective else load + (attained - objective) / (attained - less) * (further - load)
            )
    return found


def carried(rows: Sequence[Row], levels: int, x: str = "load_req_s") -> float | None:
    """Return the load that a policy carries, 0.0 if the lowest level misses; None if a level was not run."""
    if len(rows) < levels:
        return None
    return load_at([(float(row[x]), float(row["attainment"])) for row in rows]) or 0.0


def _load(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}" if value else "below the lowest"


def _percent(value: str | float | None, digits: int = 0) -> str:
    return "" if value in ("", None) else f"{100 * float(value):.{digits}f} %"


def _policies(rows: Sequence[Row], kind: str = "") -> list[str]:
    return [name for name in dict.fromkeys(row["policy"] for row in rows) if name.startswith(kind)]


def ratios(rows: Sequence[Row], levels: int, kind: str, policy: str) -> tuple[float | None, float | None]:
    """Return the load that a policy carries over that of the best of the paper's baselines, and of all others.

    None if one of them was not run, or if they carry nothing.
    """
    mine = carried(select(rows, policy=policy), levels)
    others = [name for name in _policies(rows, kind) if "PolyServe" not in name]
    found = []
    for names in (PAPER_BASELINES[kind], others):
        loads = [carried(select(rows, policy=name), levels) for name in names]
        best = None if None in loads else max((load or 0.0 for load in loads), default=0.0)
        found.append(mine / best if mine and best else None)
    return found[0], found[1]


def _gains(tables: Tables) -> str:
    """Return the paper's headline ratios and shares beside ours, for each trace and profile."""
    lines: list[tuple[str, ...]] = []
    for kind in ("CO", "PD"):
        paper = (f"{PAPER_GAINS['figure 6'][kind]} x", "", PAPER_SHARES[kind])
        lines.append((f"paper, {kind}-PolyServe, mean of its traces", *paper))
        for profile, words in PROFILES.items():
            rows = select(tables["figure-6"], profile=profile)
            for policy in (name for name in _policies(rows, kind) if "PolyServe" in name):
                for trace in dict.fromkeys(row["trace"] for row in rows):
                    cells = _gain_cells(select(rows, trace=trace), kind, policy)
                    if cells[-1]:
                        lines.append((f"ours, {policy}, {trace}, {words}", *cells))
    heads = ("at 90 %", "over the best of the paper's baselines", "over the best of all", "of the optimum")
    return markdown(heads, lines)


def _gain_cells(rows: Sequence[Row], kind: str, policy: str) -> tuple[str, ...]:
    over = ratios(rows, LEVELS_6, kind, policy)
    share = carried(select(rows, policy=policy), LEVELS_6, "share")
    words = "" if share is None else _percent(share, 1) if share else "below 20 %"
    return (*("" if one is None else f"{one:.2f} x" for one in over), words)


def _loads(tables: Tables) -> str:
    """Return the load that each policy carries at 90 %, in requests/s, and its share of the closed form."""
    rows = tables["figure-6"]
    groups = [(trace, profile) for profile in PROFILES for trace in dict.fromkeys(row["trace"] for row in rows)]
    lines = []
    for policy in _policies(rows):
        cells = []
        for trace, profile in groups:
            mine = select(rows, trace=trace, profile=profile, policy=policy)
            share = carried(mine, LEVELS_6, "share")
            cells.append(_load(carried(mine, LEVELS_6)) + (f" ({_percent(share)})" if share else ""))
        if any(cells):
            lines.append((policy, *cells))
    return markdown(("requests/s at 90 %", *(f"{trace}, {PROFILES[profile]}" for trace, profile in groups)), lines)


def _figure_6(rows: Sequence[Row]) -> str:
    shares = list(dict.fromkeys(row["share"] for row in rows))
    lines = []
    for profile, words in PROFILES.items():
        for trace in dict.fromkeys(row["trace"] for row in rows):
            mine = select(rows, trace=trace, profile=profile)
            for policy in _policies(mine):
                found = {row["share"]: row for row in select(mine, policy=policy)}
                cells = [_percent(found[share]["attainment"]) if share in found else "" for share in shares]
                at = found.get("0.8")
                tiers = " ".join(f"{100 * float(at[tier]):.0f}" for tier in TIERS) if at else ""
                lines.append((f"{trace}, {words}, {policy}", *cells, tiers))
    heads = ("attainment at a share of the optimum", *map(_percent, shares), "at 80 %: t20 t30 t50 t100, %")
    return markdown(heads, lines)


def _figure_7(rows: Sequence[Row]) -> str:
    lines: list[tuple[str, ...]] = [
        (f"paper, {kind}-PolyServe", "", f"{PAPER_GAINS['figure 7'][kind]} x", "", "") for kind in ("CO", "PD")
    ]
    for profile, words in PROFILES.items():
        mine = select(rows, profile=profile)
        for policy in _policies(mine):
            levels = select(mine, policy=policy)
            at = next((row for row in levels if row["share"] == "0.8"), None)
            gain = ratios(mine, LEVELS_7, policy[:2], policy)[0] if "PolyServe" in policy else None
            halves = [_percent(at[name]) if at else "" for name in ("before", "after")]
            cells = ("" if gain is None else f"{gain:.2f} x", *halves)
            lines.append((f"ours, {words}, {policy}", _load(carried(levels, LEVELS_7)), *cells))
    heads = (
        "",
        "requests/s at 90 %",
        "over the best of the paper's baselines",
        "met at 80 %: first mix",
        "inverted mix",
    )
    return markdown(heads, lines)


def _figure_8(rows: Sequence[Row]) -> str:
    loads = list(dict.fromkeys(row["load_req_s"] for row in rows))
    lines = []
    for profile, words in PROFILES.items():
        mine = select(rows, profile=profile)
        for policy in _policies(mine):
            found = {row["load_req_s"]: row for row in select(mine, policy=policy)}
            lines.append((f"{words}, {policy}", *(_cost(found.get(load)) for load in loads)))
    return markdown(("instance seconds a request (attainment)", *(f"{load} requests/s" for load in loads)), lines)


def _cost(row: Row | None) -> str:
    if row is None:
        return ""
    fleet = f", {row['instances']} instances" if row["instances"] else ""
    return f"{float(row['cost_s']):.3f} ({_percent(row['attainment'])}{fleet})"


def _figure_9(rows: Sequence[Row]) -> str:
    sizes = list(dict.fromkeys(row["instances"] for row in rows))
    lines = []
    for profile, words in PROFILES.items():
        mine = select(rows, profile=profile)
        for policy in _policies(mine):
            cells = []
            for size in sizes:
                load = carried(select(mine, policy=policy, instances=size), LEVELS_9)
                cells.append(_load(None if load is None else load / int(size), 3))
            lines.append((f"{words}, {policy}", *cells))
    return markdown(("requests/s of an instance at 90 %", *(f"{size} instances" for size in sizes)), lines)


def _speed(rows: Sequence[Row]) -> str:
    lines: list[tuple[str, ...]] = [("paper, C++, more than 100 instances", "4,825", "")]
    lines += [
        (
            f"ours, Python, {row['policy']}, {row['instances']} instances",
            f"{float(row['placements_per_s']):,.0f}",
            f"{float(row['load_req_s']):,.0f}",
        )
        for row in rows
    ]
    return markdown(("", "requests placed a second", "load of the run, requests/s"), lines)


def _mechanisms(rows: Sequence[Row]) -> str:
    groups = list(dict.fromkeys((row["trace"], row["profile"]) for row in rows))
    lines = []
    for switch in dict.fromkeys(row["switch"] for row in rows):
        cells = []
        for trace, profile in groups:
            found = {row["switch"]: float(row["attainment"]) for row in select(rows, trace=trace, profile=profile)}
            change = f" ({100 * (found[switch] - found['all on']):+.1f})" if switch in found else ""
            cells.append(_percent(found.get(switch), 1) + ("" if switch == "all on" else change))
        lines.append((switch, *cells))
    heads = [f"{trace}, {PROFILES[profile]}" for trace, profile in groups]
    return markdown(("attainment (change in points)", *heads), lines)
