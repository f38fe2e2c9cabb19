"""The tables of `docs/audit-tools.md`: the figures of one run of each tool, beside those of the audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from support.bench_tools.figures import RATES, Compared
from support.bench_tools.tools import POINTS

PAGE = Path(__file__).parents[3] / "docs" / "audit-tools.md"
HEADING = "## The figures of one run\n"
TITLES = {
    "ttft": "TTFT, ms",
    "itl": "ITL, ms",
    "tpot": "TPOT, ms",
    "e2e": "E2E, ms",
    "req": "requests/s",
    "tok": "tokens/s",
}
RULES = "by its rules"


def cell(theirs: float, ours: float | None) -> str:
    """Return a tool's figure, the audit's, and how far apart they are."""
    return f"{theirs:.4g} / null" if ours is None else f"{theirs:.4g} / {ours:.4g} ({percent(ours / theirs - 1)})"


def percent(share: float) -> str:
    """Return a share as a signed percentage, without the sign of what rounds to nothing."""
    text = f"{share * 100:+.2f} %"
    return text[1:] if text[1:] == "0.00 %" else text


def lines(found: Compared) -> Iterator[str]:
    """Yield the lines of one tool."""
    run = found.run
    for figure, title in TITLES.items():
        names = [figure] if figure in RATES else [f"{figure}_{point}" for point in POINTS]
        if names[0] not in run.stated:
            continue
        unit = 1 if figure in RATES else 1e3
        ours = [found.ours[name] for name in names]
        cells = [
            cell(run.stated[name] * unit, None if mine is None else mine * unit)
            for name, mine in zip(names, ours, strict=True)
        ]
        cells += [""] * (len(POINTS) - len(cells))
        apart = [abs(found.by_its_rules[name] / run.stated[name] - 1) for name in names if name in found.by_its_rules]
        reported = f"{max(apart) * 100:.5f} %" if apart else "not in the file"
        yield f"| {run.tool} {run.version} | {title} | {' | '.join([*cells, reported])} |"


def write(found: Sequence[Compared]) -> None:
    """Write the table into the page, below the text of its last heading."""
    kept, heading, rest = PAGE.read_text(encoding="utf-8").partition(HEADING)
    text = rest.partition("\n| tool ")[0]
    table = ["", f"| tool | figure | {' | '.join([*POINTS, RULES])} |", f"|{'---|' * (3 + len(POINTS))}"]
    table += [line for one in found for line in lines(one)]
    PAGE.write_text(kept + heading + text + "\n".join(table) + "\n", encoding="utf-8")
