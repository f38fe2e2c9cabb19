"""The tables of the README, from the rows of the CSV files: the paper's number beside ours."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from markdown_tables import markdown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resumed_points import Row

    Tables = Mapping[str, Sequence[Row]]

OBJECTIVE = 0.9
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
    """Return the highest load at which the attainment is met, linear between levels; None where the lowest misses.

    `levels`: (load, attainment) by load. Where the highest level meets it, that level is returned.
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


def select(rows: Sequence[Row], **wanted: str) -> list[Row]:
    """Return the rows with these cells."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def carried(rows: Sequence[Row], x: str = "load_req_s") -> float | None:
    """Return the load that rows of one policy carry."""
    return load_at([(float(row[x]), float(row["attainment"])) for row in rows])


def _number(value: float | None, digits: int = 1) -> str:
    return "below the lowest" if value is None else f"{value:.{digits}f}"


def _percent(value: str | float | None, digits: int = 0) -> str:
    return "" if value in ("", None) else f"{100 * float(value):.{digits}f} %"


def _policies(rows: Sequence[Row], kind: str = "") -> list[str]:
    return [name for name in dict.fromkeys(row["policy"] for row in rows) if name.startswith(kind)]


def ratios(rows: Sequence[Row], kind: str, policy: str) -> tuple[float | None, float | None]:
    """Return the load that a policy carries over that of the best of the paper's baselines, and of all others."""
    loads = {name: carried(select(rows, policy=name)) for name in _policies(rows, kind) if "PolyServe" not in name}
    mine = carried(select(rows, policy=policy))
    theirs = max((loads[name] or 0.0 for name in PAPER_BASELINES[kind] if name in loads), default=0.0)
    best = max((load or 0.0 for load in loads.values()), default=0.0)
    return (mine / theirs if mine and theirs else None, mine / best if mine and best else None)


def _gains(tables: Tables) -> str:
    """Return the paper's headline ratios and shares beside ours, for each trace and profile."""
    lines: list[tuple[str, ...]] = []
    for kind in ("CO", "PD"):
        shares = PAPER_SHARES[kind]
        lines.append((f"paper, {kind}-PolyServe, mean of its traces", f"{PAPER_GAINS['figure 6'][kind]} x", "", shares))
        for profile, words in PROFILES.items():
            rows = select(tables["figure-6"], profile=profile)
            for policy in (name for name in _policies(rows, kind) if "PolyServe" in name):
                for trace in dict.fromkeys(row["trace"] for row in rows):
                    mine = select(rows, trace=trace)
                    lines.append((f"ours, {policy}, {trace}, {words}", *_gain_cells(mine, kind, policy)))
    return markdown(
        ("at 90 %", "over the best of the paper's baselines", "over the best of all", "of the optimum"), lines
    )


def _gain_cells(rows: Sequence[Row], kind: str, policy: str) -> tuple[str, ...]:
    over_paper, over_all = ratios(rows, kind, policy)
    share = carried(select(rows, policy=policy), "share")
    return (
        *("" if one is None else f"{one:.2f} x" for one in (over_paper, over_all)),
        "below 20 %" if share is None else _percent(share, 1),
    )


def _loads(tables: Tables) -> str:
    """Return the load that each policy carries at 90 %, in requests/s, and its share of the closed form."""
    rows = tables["figure-6"]
    groups = [(trace, profile) for trace in dict.fromkeys(row["trace"] for row in rows) for profile in PROFILES]
    lines = []
    for policy in _policies(rows):
        cells = []
        for trace, profile in groups:
            mine = select(rows, trace=trace, profile=profile, policy=policy)
            load, share = carried(mine), carried(mine, "share")
            cells.append("" if not mine else f"{_number(load)} ({'-' if share is None else _percent(share)})")
        lines.append((policy, *cells))
    return markdown(("requests/s at 90 %", *(f"{trace}, {PROFILES[profile]}" for trace, profile in groups)), lines)


def _figure_6(rows: Sequence[Row]) -> str:
    lines = []
    for trace in dict.fromkeys(row["trace"] for row in rows):
        for profile, words in PROFILES.items():
            mine = select(rows, trace=trace, profile=profile)
            for policy in _policies(mine):
                levels = select(mine, policy=policy)
                cells = [_percent(row["attainment"]) for row in levels]
                last = next((row for row in levels if float(row["share"]) == 0.8), levels[-1])
                tiers = " ".join(f"{100 * float(last[tier]):.0f}" for tier in TIERS)
                lines.append((f"{trace}, {words}, {policy}", *cells, tiers))
    shares = [_percent(row["share"]) for row in select(rows, policy=rows[0]["policy"])]
    heads = list(dict.fromkeys(shares))
    return markdown(("attainment at a share of the optimum", *heads, "at 80 %: t20 t30 t50 t100, %"), lines)


def _figure_7(rows: Sequence[Row]) -> str:
    lines: list[tuple[str, ...]] = [
        (f"paper, {kind}-PolyServe", "", f"{PAPER_GAINS['figure 7'][kind]} x", "", "") for kind in ("CO", "PD")
    ]
    for profile, words in PROFILES.items():
        mine = select(rows, profile=profile)
        for policy in _policies(mine):
            levels = select(mine, policy=policy)
            at = next((row for row in levels if float(row["share"]) == 0.8), levels[-1])
            gain = ratios(mine, policy[:2], policy)[0] if "PolyServe" in policy else None
            cells = ["" if gain is None else f"{gain:.2f} x", _percent(at["before"]), _percent(at["after"])]
            lines.append((f"ours, {words}, {policy}", _number(carried(levels)), *cells))
    heads = (
        "",
        "requests/s at 90 %",
        "over the best of the paper's baselines",
        "met at 80 %: first mix",
        "inverted mix",
    )
    return markdown(heads, lines)


def _figure_8(rows: Sequence[Row]) -> str:
    lines = []
    for profile, words in PROFILES.items():
        mine = select(rows, profile=profile)
        for policy in _policies(mine):
            cells = [
                f"{float(row['cost_s']):.3f} ({_percent(row['attainment'])}"
                + (f", {row['instances']} instances)" if row["instances"] else ")")
                for row in select(mine, policy=policy)
            ]
            lines.append((f"{words}, {policy}", *cells))
    loads = list(dict.fromkeys(row["load_req_s"] for row in rows))
    return markdown(("instance seconds a request (attainment)", *(f"{load} requests/s" for load in loads)), lines)


def _figure_9(rows: Sequence[Row]) -> str:
    lines = []
    sizes = list(dict.fromkeys(row["instances"] for row in rows))
    for profile, words in PROFILES.items():
        mine = select(rows, profile=profile)
        for policy in _policies(mine):
            cells = []
            for size in sizes:
                load = carried(select(mine, policy=policy, instances=size))
                cells.append("" if load is None else f"{load / int(size):.3f}")
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
    lines = []
    groups = list(dict.fromkeys((row["trace"], row["profile"], row["policy"]) for row in rows))
    for switch in dict.fromkeys(row["switch"] for row in rows):
        cells = []
        for trace, profile, policy in groups:
            mine = select(rows, trace=trace, profile=profile, policy=policy)
            found = select(mine, switch=switch)
            if not found:
                cells.append("")
                continue
            (on,) = select(mine, switch="all on")
            change = 100 * (float(found[0]["attainment"]) - float(on["attainment"]))
            cells.append(_percent(found[0]["attainment"], 1) + (f" ({change:+.1f})" if switch != "all on" else ""))
        lines.append((switch, *cells))
    heads = [f"{trace}, {PROFILES[profile]}, {policy}" for trace, profile, policy in groups]
    return markdown(("attainment (change in points)", *heads), lines)
