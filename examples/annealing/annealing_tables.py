"""The tables of the README, from the rows of the CSV files: the paper's number beside ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markdown_tables import markdown
from resumed_points import select

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resumed_points import Row

    Tables = Mapping[str, Sequence[Row]]

PAPER_TABLE_1 = {
    ("paper", "4"): "0.23",
    ("paper", "6"): "0.32",
    ("paper", "8"): "0.43",
    ("paper", "10"): "0.48",
    ("brute force", "4"): "1.2",
    ("brute force", "6"): "39",
    ("brute force", "8"): "88,200",
    ("brute force", "10"): "287,000",
}
"""The paper's Table 1, in ms."""
PAPER_TABLE_2 = {"prefill": ("0.1", "5.7", "0.01", "43.67"), "decode": ("0.0002", "0.275", "0.00088", "15.85")}
ENGINES = {"v100x2": "2 x V100", "h100": "H100"}
SEARCHES = {"shortest": "shortest first", "paper": "`paper`", "scaled": "`scaled`", "exact": "exact"}
LENGTHS = {"gaussian": "Gaussian", "0.1": "10 %", "0.05": "5 %", "0.025": "2.5 %", "0": "known"}


def readme_tables(tables: Tables) -> dict[str, str]:
    """Return the tables by the names that the README has them under."""
    return {
        "summary": _summary(tables),
        "figure 7": _figure_7(tables["figure-7"]),
        "figure 8": _figure_8(tables["figure-8"]),
        "figure 9": _figure_9(tables["figure-9"]),
        "figure 10": _figure_10(tables["figure-10"]),
        "figure 11": _figure_11(tables["figure-11"]),
        "table 1": _table_1(tables["table-1"]),
        "table 2": _table_2(tables["table-2"]),
        "optimum": _optimum(tables["optimum"]),
    }


def _only(rows: Sequence[Row], **wanted: str) -> Row:
    (row,) = select(rows, **wanted)
    return row


def _percent(value: str | float, digits: int = 1) -> str:
    return f"{100 * float(value):+.{digits}f} %"


def _summary(tables: Tables) -> str:
    """Return the statements of the paper's section 5, of single runs, beside the means of ours."""
    rows = []
    for search in ("paper", "scaled"):
        for profile, engine in ENGINES.items():
            rows.append((f"ours, {engine}, `{search}`", *_claims(tables, profile, search)))
    heads = (
        "",
        "gain of G, all cells",
        "gain, 10 requests, batch 1",
        "attainment there",
        "latency, 10 requests, batch 2",
        "gain, 40 requests, batch 4, lengths to 2.5 %",
        "loss against exact",
    )
    paper = ("paper", "+0.3 % to +46.5 %", "+46.5 %", "+33.4 %", "-16.3 %", "+84 %", "at most 1.0 %")
    return markdown(heads, [paper, *rows])


def _claims(tables: Tables, profile: str, search: str) -> tuple[str, ...]:
    mine = select(tables["figure-7"], profile=profile, search=search, lengths="gaussian")
    gains = [float(row["gain"]) for row in mine]
    ten = {size: _only(mine, jobs="10", max_batch=size) for size in "12"}
    error = _only(tables["figure-9"], profile=profile, search=search, jobs="40", max_batch="4", lengths="0.025")
    known = select(tables["figure-7"], profile=profile, search=search, lengths="0")
    exact = {
        (row["max_batch"], row["jobs"]): float(row["g"])
        for row in select(tables["figure-7"], profile=profile, search="exact", lengths="0")
    }
    losses = [
        1 - float(row["g"]) / exact[row["max_batch"], row["jobs"]]
        for row in known
        if (row["max_batch"], row["jobs"]) in exact
    ]
    return (
        f"{_percent(min(gains))} to {_percent(max(gains))}",
        _percent(ten["1"]["gain"]),
        f"{_percent(ten['1']['attainment_change'])} of all",
        _percent(ten["2"]["latency_change"]),
        _percent(error["gain"]),
        f"at most {100 * max(0.0, *losses):.1f} %",
    )


def _figure_7(rows: Sequence[Row]) -> str:
    lines = []
    for profile, engine in ENGINES.items():
        for size in ("1", "2", "4"):
            for jobs in dict.fromkeys(row["jobs"] for row in rows):
                mine = select(rows, profile=profile, max_batch=size, jobs=jobs)
                cells = [f"{100 * float(_only(mine, search='arrival')['attainment']):.0f} %"]
                for lengths in ("gaussian", "0"):
                    for search in SEARCHES:
                        found = select(mine, search=search, lengths=lengths)
                        cells.append(_percent(found[0]["gain"], 0) if found else "")
                lines.append((f"{engine}, batch {size}", jobs, *cells))
    heads = [f"{word}, {length}" for length in ("Gaussian", "known") for word in SEARCHES.values()]
    return markdown(("engine", "requests", "met in arrival order", *heads), lines)


def _figure_8(rows: Sequence[Row]) -> str:
    cases = list(dict.fromkeys((row["profile"], row["jobs"], row["max_batch"]) for row in rows))
    coolings = list(dict.fromkeys((row["start"], row["moves"], row["all_moves"]) for row in rows))
    lines = []
    for profile, jobs, size in cases:
        mine = select(rows, profile=profile, jobs=jobs, max_batch=size)
        gains = [_percent(_only(mine, start=start, moves=moves)["gain"]) for start, moves, _ in coolings]
        lines.append((f"{ENGINES[profile]}, {jobs} requests, batch {size}", *gains))
    heads = [
        f"`scaled`: {int(every):,}" if start == "scaled" else f"T {start}, {moves}: {int(every):,}"
        for start, moves, every in coolings
    ]
    return markdown(("gain of G; first T, moves a level: all moves", *heads), lines)


def _figure_9(rows: Sequence[Row]) -> str:
    lines = []
    for profile, engine in ENGINES.items():
        for size in ("1", "2", "4"):
            for jobs in dict.fromkeys(row["jobs"] for row in rows):
                for search in ("paper", "scaled"):
                    mine = select(rows, profile=profile, max_batch=size, jobs=jobs, search=search)
                    if not mine:
                        continue
                    found = {row["lengths"]: _percent(row["gain"], 0) for row in mine}
                    gains = [found.get(name, "") for name in LENGTHS]
                    lines.append((f"{engine}, batch {size}, {jobs} requests, `{search}`", *gains))
    return markdown(("gain of G over arrival order, by error of the length", *LENGTHS.values()), lines)


def _figure_10(rows: Sequence[Row]) -> str:
    lines = []
    for name in dict.fromkeys((row["phase"], row["coefficient"]) for row in rows):
        cells = []
        for search in ("paper", "scaled"):
            mine = select(rows, phase=name[0], coefficient=name[1], search=search)
            cells += [_percent(row["change"], 2) for row in mine]
        lines.append((f"{name[1]}, {name[0]}", *cells))
    deviations = dict.fromkeys(row["deviation"] for row in rows)
    heads = [f"`{search}` {_percent(one, 0)}" for search in ("paper", "scaled") for one in deviations]
    return markdown(("change of G with one coefficient off by", *heads), lines)


def _figure_11(rows: Sequence[Row]) -> str:
    lines: list[tuple[str, ...]] = [("paper, batch not said", "", "0.93", "1.91", "")]
    for profile, engine in ENGINES.items():
        for size in ("1", "2", "4"):
            for search in ("paper", "scaled"):
                mine = select(rows, profile=profile, max_batch=size, search=search)
                times = [f"{float(row['search_ms']):.1f}" for row in mine]
                gain = _percent(mine[0]["gain"], 0)
                lines.append((f"{engine}, batch {size}, `{search}`", *times, gain))
    return markdown(
        ("ms to schedule ten requests on each of", "1", "2", "4 instances", "gain of G, known lengths"), lines
    )


def _table_1(rows: Sequence[Row]) -> str:
    lines = []
    jobs = list(dict.fromkeys(row["jobs"] for row in rows))
    for search in ("paper", "brute force"):
        words = "paper, annealing" if search == "paper" else "paper, exhaustive"
        lines.append((words, *(PAPER_TABLE_1[search, count] for count in jobs)))
    for profile, engine in ENGINES.items():
        for search in dict.fromkeys(row["search"] for row in rows):
            mine = {row["jobs"]: row for row in select(rows, profile=profile, search=search)}
            cells = [
                f"{float(mine[count]['search_ms']):,.3g} ({float(mine[count]['share']):.3f})" if count in mine else ""
                for count in jobs
            ]
            lines.append((f"ours, {engine}, {search if search in ('exact', 'brute force') else f'`{search}`'}", *cells))
    return markdown(("ms of a search, batch 1 (share of the optimum)", *(f"{count} requests" for count in jobs)), lines)


def _table_2(rows: Sequence[Row]) -> str:
    lines: list[tuple[str, ...]] = [(f"paper, {phase}", *cells, "") for phase, cells in PAPER_TABLE_2.items()]
    for row in rows:
        cells = [f"{float(row[name]):.3g}" for name in ("alpha", "beta", "gamma", "delta")]
        lines.append((f"ours, {ENGINES[row['profile']]}, {row['phase']}", *cells, f"{float(row['r_squared']):.3f}"))
    return markdown(("ms", "alpha, B x l", "beta, B", "gamma, l", "delta", "R^2"), lines)


def _optimum(rows: Sequence[Row]) -> str:
    searches = ("arrival", "shortest", "deadline", "paper", "scaled")
    lines = []
    for row in rows:
        shares = [f"{float(row[f'{one}_share']):.3f} {float(row[f'{one}_least']):.3f}" for one in searches]
        times = [f"{float(row[f'{one}_ms']):.1f}" for one in ("paper", "scaled", "exact")]
        lines.append((ENGINES[row["profile"]], row["max_batch"], row["jobs"], *shares, *times))
    names = ("arrival order", "shortest first", "earliest deadline", "`paper`", "`scaled`")
    heads = ("engine", "batch", "requests", *names, "ms `paper`", "ms `scaled`", "ms exact")
    return markdown(heads, lines)
