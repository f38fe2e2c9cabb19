"""The chart of the windows: the three rates, attainment, and how many readers waited, over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_llm.audit.report.report_model import Clock, clock_of, integers, reals
from otel_llm.shared.formatting import number, plural, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from otel_llm.audit.report.charts.delivery_chart import Figure

MOST_BINS: Final = 300
"""The most points of time in one chart; more windows than that are summed in equal groups."""

_COUNTS: Final = (
    "requests_started",
    "requests_ended",
    "met_true",
    "met_false",
    "met_null",
    "incomplete",
    "aborted",
    "tokens_read",
)
_RATES: Final = ("throughput_tok_s", "goodput_tok_s", "smooth_goodput_tok_s")
_NAMES: Final = (*_COUNTS, "idle_s_sum", *_RATES)


@dataclass(slots=True)
class Bin:
    """One stretch of time: sums of the additive window columns (rates as tokens)."""

    start_unix_nano: int
    length_s: float
    sums: dict[str, float]

    def rate(self, column: str) -> float:
        """Return a sum per second of the stretch."""
        return self.sums[column] / self.length_s

    @property
    def end_unix_nano(self) -> int:
        """Return the first instant after the stretch, unix ns."""
        return self.start_unix_nano + round(self.length_s * 1e9)

    @property
    def attainment(self) -> float | None:
        """Met over met and not met; None if nothing was judged."""
        judged = self.sums["met_true"] + self.sums["met_false"]
        return self.sums["met_true"] / judged if judged else None


def bins(windows: pd.DataFrame, most: int = MOST_BINS) -> list[Bin]:
    """Sum windows over their groups, without gaps from the first window to the last, in `most` bins at most."""
    if windows.empty:
        return []
    starts = integers(windows, "window_start_unix_nano")
    width_s = float(windows["window_s"].iloc[0])
    index, first_ns, bin_ns, count = steps(starts, round(width_s * 1e9), most)
    sums = {
        name: np.bincount(index, reals(windows, name) * (width_s if name in _RATES else 1.0), count).tolist()
        for name in _NAMES
    }
    length_s = bin_ns / 1e9
    return [
        Bin(first_ns + at * bin_ns, length_s, {name: column[at] for name, column in sums.items()})
        for at in range(count)
    ]


def steps(starts: np.ndarray[Any, Any], width_ns: int, most: int) -> tuple[np.ndarray[Any, Any], int, int, int]:
    """Return each window's step (R,), the first step's start, ns, the length of a step, ns, and the number of steps."""
    first_ns = int(starts.min())
    windows = (int(starts.max()) - first_ns) // width_ns + 1
    step_ns = width_ns * -(-windows // most)
    return (starts - first_ns) // step_ns, first_ns, step_ns, -(-windows * width_ns // step_ns)


def windows_figure(found: Sequence[Bin], clock: Clock | None = None, promised: float | None = None) -> Figure:
    """Draw the three rates, under them attainment (with the promised share), and the readers who waited."""
    clock = clock or Clock(found[0].start_unix_nano)
    hover = [_hover_text(one, clock) for one in found]
    # A window is a level, not a point: the last one is drawn to its end.
    at = [clock.at(one.start_unix_nano) for one in found] + [clock.at(found[-1].end_unix_nano)]
    found, hover = [*found, found[-1]], [*hover, hover[-1]]
    traces: list[Figure] = [
        _curve(at, [one.rate("throughput_tok_s") for one in found], "throughput", "$muted"),
        _curve(at, [one.rate("goodput_tok_s") for one in found], "goodput", "$delivered"),
        {
            **_curve(at, [one.rate("smooth_goodput_tok_s") for one in found], "smooth goodput", "$reading", width=3),
            # One box for all curves: the text has every value.
            "text": hover,
            "hovertemplate": "%{text}<extra></extra>",
            "hoverinfo": "text",
        },
        {
            **_curve(at, [one.attainment for one in found], "attainment", "$deadline"),
            "mode": "lines+markers",
            "marker": {"size": 3, "color": "$deadline"},
            "yaxis": "y2",
        },
        {
            **_curve(at, [one.rate("idle_s_sum") for one in found], "readers waiting (mean)", "$waiting"),
            "fill": "tozeroy",
            "yaxis": "y3",
        },
    ]
    if promised is not None:
        line = _curve([at[0], at[-1]], [promised, promised], "attainment promised", "$muted")
        traces.append({**line, "line": {"color": "$muted", "width": 1, "dash": "dot"}, "yaxis": "y2"})
    share_axis = {"range": [-0.05, 1.08], "tickformat": ".0%", "tickvals": [0, 0.5, 1]}
    return {
        "data": traces,
        "layout": {
            "height": 460,
            "hovermode": "x",
            "showlegend": True,
            "xaxis": {**clock.axis, "anchor": "y3", "range": [at[0], at[-1]]},
            "yaxis": {"title": {"text": "tokens/s"}, "domain": [0.52, 1.0], "rangemode": "tozero"},
            "yaxis2": {"title": {"text": "attained"}, "domain": [0.27, 0.44], **share_axis},
            "yaxis3": {"title": {"text": "readers"}, "domain": [0.0, 0.19], "rangemode": "tozero"},
        },
    }


def window_lines(found: Sequence[Bin], clock: Clock) -> list[tuple[str, ...]]:
    """Return the values of the chart as the lines of a table; `LINE_HEADINGS` heads them."""
    return [
        (
            clock.text(one.start_unix_nano),
            number(one.rate("throughput_tok_s")),
            number(one.rate("goodput_tok_s")),
            number(one.rate("smooth_goodput_tok_s")),
            number(one.rate("idle_s_sum")),
            number(int(one.sums["requests_ended"])),
            share(one.attainment),
        )
        for one in found
    ]


LINE_HEADINGS: Final = ("Start", "Throughput", "Goodput", "Smooth goodput", "Readers waiting", "Ended", "Attainment")


def window_clock(windows: pd.DataFrame) -> Clock:
    """Return the clock of the windows."""
    return clock_of(windows, "window_start_unix_nano")


def _hover_text(one: Bin, clock: Clock) -> str:
    lines = [
        f"<b>{clock.text(one.start_unix_nano)}</b>, {number(one.length_s)} s",
        f"throughput {number(one.rate('throughput_tok_s'))}, goodput {number(one.rate('goodput_tok_s'))} tokens/s",
        f"smooth goodput {number(one.rate('smooth_goodput_tok_s'))} tokens/s",
        f"{number(one.rate('idle_s_sum'))} readers waiting on average",
        f"{plural(int(one.sums['requests_ended']), 'request')} ended, attainment {share(one.attainment)}",
    ]
    return "<br>".join(lines)


def _curve(
    at: Sequence[str | float], values: Sequence[float | None], name: str, colour: str, *, width: int = 2
) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "line": {"shape": "hv", "color": colour, "width": width},
        "x": list(at),
        "y": list(values),
        "hoverinfo": "skip",
    }
