"""The figures of an audit by model and by instance: where readers wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_llm.audit.coverage import sampled, timeless
from otel_llm.audit.kernel.judged_columns import judgements, positions_by, span_s
from otel_llm.audit.sampled import of_totals
from otel_llm.audit.summary_figures import GROUP_TABLE, format_of
from otel_llm.shared.printable import printable
from otel_llm.slo.figures import BY_NAME
from otel_llm.slo.summary import figures

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from rich.table import Table

    from otel_llm.audit.kernel.findings import Findings
    from otel_llm.slo.classes import SloClasses

MOST_ROWS: Final = 12
"""The most groups shown of one split: those whose slowest readers waited longest."""


def tables(audit: Findings) -> Iterator[Table]:
    """Yield a table by model and one by instance, if there is more than one."""
    for name in ("model", "instance"):
        timed = not timeless(audit.judged_table, audit.counts)
        found = split(audit.judged_table, audit.slo, name, timed=timed)
        if len({row[name] for row in found}) > 1:
            rows = [of_totals(row, audit.judged_table, audit.unkept, alone=False) for row in found]
            yield _table(rows, name, sampled(audit.judged_table, audit.counts))


def split(table: pa.Table, classes: SloClasses, name: str, *, timed: bool = True) -> list[dict[str, Any]]:
    """Return the figures by class, measured_at and value of a column, the longest waits first.

    `table` holds `kernel.JUDGED`; rates are per second of its whole span, None if it is not `timed`. Each row has
    the three columns of the group (`slo_class`, `measured_at`, the column) and the figures of the summary.
    """
    keys = ("slo_class", "measured_at", name)
    span = span_s(table) if timed else None
    rows: list[dict[str, Any]] = []
    for group, positions in positions_by(table, keys).items():
        mine = figures(judgements(table.take(positions)), classes.get(str(group[0])).objective, span)
        rows.append({**dict(zip(keys, group, strict=True)), **mine})
    return sorted(rows, key=lambda row: (-(row["idle_p99_s"] or 0), -row["requests"], [str(row[key]) for key in keys]))


def _table(rows: list[dict[str, Any]], name: str, about: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    left = len(rows) - MOST_ROWS
    more = [f"{left:,} more with shorter waits"] if left > 0 else []
    caption = "; ".join([*([about] if about else []), *more]) or None
    table = Table(
        title=f"By {name}, longest waits first",
        title_justify="left",
        caption=caption,
        caption_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
    )
    for heading in (name, "class", "at"):
        table.add_column(heading)
    for figure in GROUP_TABLE:
        table.add_column(BY_NAME[figure].heading, justify="right", no_wrap=True)
    for row in rows[:MOST_ROWS]:
        who = (printable(row[name], 32), printable(row["slo_class"], 24), printable(row["measured_at"]))
        table.add_row(*(Text(cell) for cell in (*who, *(format_of(figure)(row[figure]) for figure in GROUP_TABLE))))
    return table
