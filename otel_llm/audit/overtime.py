"""The picture of the windows: smooth goodput beside goodput and throughput, attainment, and how many readers waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_llm.audit.words import instant, number, plural, share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_llm.audit.pictures import Figure

MOST_BINS: Final = 300
"""Points of time in one picture; more windows than that are added up in equal groups."""

_SUMS: Final = (
    "tokens_read",
    "idle_s_sum",
    "requests_ended",
    "met_true",
    "met_false",
    "met_null",
    "incomplete",
    "aborted",
)
_RATES: Final = ("throughput_tok_s", "goodput_tok_s", "smooth_goodput_tok_s")


@dataclass(slots=True)
class Bin:
    """What happened in one stretch of time: sums of the additive window columns (rates as tokens)."""

    start_unix_nano: int
    length_s: float
    sums: dict[str, float]

    def rate(self, column: str) -> float:
        """Return a sum per second of the stretch."""
        return self.sums[column] / self.length_s

    @property
    def attainment(self) -> float | None:
        """Met over met and not met; None where nothing was judged."""
        judged = self.sums["met_true"] + self.sums["met_false"]
        return self.sums["met_true"] / judged if judged else None


def bins(rows: Iterable[Mapping[str, Any]], most: int = MOST_BINS) -> list[Bin]:
    """Add window rows up over their groups, without gaps from the first window to the last."""
    chosen = list(rows)
    if not chosen:
        return []
    width_s = float(chosen[0]["window_s"])
    width_ns = round(width_s * 1e9)
    first_ns = min(int(row["window_start_unix_nano"]) for row in chosen)
    last_ns = max(int(row["window_start_unix_nano"]) for row in chosen)
    windows = (last_ns - first_ns) // width_ns + 1
    group = -(-windows // most)
    filled: dict[int, dict[str, float]] = {}
    for row in chosen:
        index = (int(row["window_start_unix_nano"]) - first_ns) // (width_ns * group)
        sums = filled.setdefault(index, _empty())
        for column in _SUMS:
            sums[column] += row[column]
        for column in _RATES:
            sums[column] += row[column] * width_s
    count = -(-windows // group)
    return [
        Bin(first_ns + index * width_ns * group, width_s * group, filled.get(index) or _empty())
        for index in range(count)
    ]


def windows_figure(found: Sequence[Bin]) -> Figure:
    """Draw the three rates, and under them the mean number of readers who waited at any moment."""
    at = [instant(one.start_unix_nano) for one in found]
    hover = [_words(one) for one in found]
    # A window is a level, not a point: the last one is drawn to its end.
    last = found[-1]
    at.append(instant(last.start_unix_nano + round(last.length_s * 1e9)))
    found, hover = [*found, last], [*hover, hover[-1]]
    traces: list[Figure] = [
        _curve(at, [one.rate("throughput_tok_s") for one in found], "throughput", "$muted", hover),
        _curve(at, [one.rate("goodput_tok_s") for one in found], "goodput", "$delivered", hover),
        _curve(at, [one.rate("smooth_goodput_tok_s") for one in found], "smooth goodput", "$reading", hover, width=3),
        {
            **_curve(at, [one.rate("idle_s_sum") for one in found], "readers waiting (mean)", "$waiting", hover),
            "fill": "tozeroy",
            "yaxis": "y2",
        },
    ]
    return {
        "data": traces,
        "layout": {
            "height": 360,
            "hovermode": "x",
            "showlegend": True,
            "xaxis": {"type": "date", "anchor": "y2", "title": {"text": "UTC, start of the window"}},
            "yaxis": {"title": {"text": "tokens/s"}, "domain": [0.36, 1.0]},
            "yaxis2": {"title": {"text": "readers"}, "domain": [0.0, 0.26], "rangemode": "tozero"},
        },
    }


def _words(one: Bin) -> str:
    lines = [
        f"<b>{instant(one.start_unix_nano)}</b>, {number(one.length_s)} s",
        f"throughput {number(one.rate('throughput_tok_s'))}, goodput {number(one.rate('goodput_tok_s'))} tokens/s",
        f"smooth goodput {number(one.rate('smooth_goodput_tok_s'))} tokens/s",
        f"{number(one.rate('idle_s_sum'))} readers waiting on average",
        f"{plural(int(one.sums['requests_ended']), 'request')} ended, attainment {share(one.attainment)}",
    ]
    return "<br>".join(lines)


def _curve(
    at: Sequence[str], values: Sequence[float], name: str, colour: str, hover: Sequence[str], *, width: int = 2
) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "line": {"shape": "hv", "color": colour, "width": width},
        "x": list(at),
        "y": list(values),
        # One box for all curves: the words hold every value.
        **({"text": list(hover), "hovertemplate": "%{text}<extra></extra>"} if width == 3 else {"hoverinfo": "skip"}),
    }


def _empty() -> dict[str, float]:
    return dict.fromkeys((*_SUMS, *_RATES), 0.0)
