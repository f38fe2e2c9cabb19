"""The model of a report: two tables, a summary, and a function that returns a delivery if one is known.

It is made from an audit in memory or from tables that an audit saved; both give the same page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_llm.shared.formatting import instant, seconds
from otel_llm.shared.printable import printable
from otel_llm.slo.metrics import REQUESTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt
    import pandas as pd

    from otel_llm.audit.compare.tiers import Tiers
    from otel_llm.audit.report.compared import Compared
    from otel_llm.formats.assemble.resolved import Assembled
    from otel_llm.formats.rows import Row
    from otel_llm.slo.classes import SloClasses

WALL_CLOCK_NS: Final = 1_000_000_000 * 1_000_000_000
"""A start before this (September 2001) is a reading of a clock other than the wall clock."""


@dataclass(frozen=True, slots=True)
class ReportModel:
    """The contents of a report.

    `requests` and `windows`: the tables of `--requests` and `--windows`; `summary`: the object of `--format json`;
    `skipped` and `counts`: skipped parts and anomalies, None if the tables do not have them; `delivery`: the
    recorded stream of a row of `requests`, None for one that is not kept; `undrawn`: why no delivery is available at
    all, empty if they are; `tiers`: every request by every class, and `compared`: a comparison with a baseline, if
    they were asked for.
    """

    requests: pd.DataFrame
    windows: pd.DataFrame
    summary: Mapping[str, Any]
    classes: SloClasses
    window_ns: int
    inputs: tuple[str, ...]
    skipped: Mapping[str, int] | None
    counts: Mapping[str, int] | None
    delivery: Callable[[int], Assembled | None]
    undrawn: str = ""
    tiers: Tiers | None = None
    compared: Compared | None = None

    def count(self, name: str) -> int:
        """Return one of the counts, 0 if it is not known."""
        return (self.counts or {}).get(name, 0)

    def row(self, position: int) -> Row:
        """Return one row of the requests."""
        one = self.requests.iloc[[position]]
        return {name: None if one[name].isna().any() else one[name].tolist()[0] for name in REQUESTS}


def reals(table: pd.DataFrame, column: str) -> npt.NDArray[np.float64]:
    """Return a column (R,) as float64, nan for null."""
    return table[column].to_numpy(dtype=np.float64, na_value=np.nan)


def integers(table: pd.DataFrame, column: str) -> npt.NDArray[np.int64]:
    """Return a column (R,) without nulls as int64."""
    return table[column].to_numpy(dtype=np.int64)


def groups(table: pd.DataFrame, columns: Sequence[str]) -> list[tuple[tuple[str | None, ...], npt.NDArray[np.int64]]]:
    """Return the groups of rows with equal values in these text columns, in order of their values, null last.

    Each is its values and its rows' positions.
    """
    found = table.groupby(list(columns), sort=False, dropna=False).indices
    keyed = [
        (
            tuple(value if isinstance(value, str) else None for value in (key if isinstance(key, tuple) else (key,))),
            np.asarray(rows, np.int64),
        )
        for key, rows in found.items()
    ]
    return sorted(keyed, key=lambda one: [(value is None, value or "") for value in one[0]])


def by_class(table: pd.DataFrame) -> list[tuple[str, str, npt.NDArray[np.int64]]]:
    """Return the (class, measured_at, positions) groups of a table, which are never added up."""
    return [(str(name), str(place), rows) for (name, place), rows in groups(table, ("slo_class", "measured_at"))]


def label(text: str | None, limit: int = 40) -> str:
    """Return a string of telemetry as a label in a figure: without plotly's markup, control characters visible.

    Text longer than `limit` is cut in the middle: names of instances differ at their ends.
    """
    if text is not None and len(text) > limit:
        text = f"{text[: limit // 3]}…{text[-(limit - limit // 3 - 1) :]}"
    return printable(text, limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@dataclass(frozen=True, slots=True)
class Clock:
    """A formatter of instants: of the wall clock as dates, of any other clock as seconds since its first reading."""

    first_ns: int

    @property
    def anchored(self) -> bool:
        """Tell whether it is the wall clock."""
        return self.first_ns >= WALL_CLOCK_NS

    def at(self, unix_nano: int) -> str | float:
        """Return an instant for a figure's axis."""
        return instant(unix_nano) if self.anchored else (unix_nano - self.first_ns) / 1e9

    def text(self, unix_nano: int) -> str:
        """Format an instant for people."""
        return instant(unix_nano) if self.anchored else seconds((unix_nano - self.first_ns) / 1e9)

    @property
    def axis(self) -> dict[str, Any]:
        """Return the layout of such an axis."""
        if self.anchored:
            return {"type": "date", "title": {"text": "UTC", "standoff": 8}}
        return {"type": "linear", "title": {"text": "seconds (own clock)", "standoff": 8}}


def clock_of(table: pd.DataFrame, column: str) -> Clock:
    """Return the clock of a column of instants."""
    known = table[column].dropna()
    return Clock(int(known.min()) if len(known) else WALL_CLOCK_NS)
