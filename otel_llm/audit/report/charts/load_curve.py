"""Load against benefit: how many requests in flight give the highest smooth goodput (Wang et al., figures 5, 6).

Each window of each instance is one point: its mean number of requests in flight, and its smooth goodput, goodput and
throughput. The points are grouped in bins of equal width, and the bins' means are drawn.

Requests in flight and not requests per second: under overload requests arrive at the same rate and pile up, and the
readers' waits follow the pile. Smooth goodput and not goodput finds the peak: it is charged where it happens,
goodput where a request ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_llm.audit.report.report_model import groups, integers, reals
from otel_llm.shared.formatting import number, plural
from otel_llm.slo.quantiles import rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pandas as pd

    from otel_llm.audit.report.charts.delivery_chart import Figure

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]

MOST_BINS: Final = 16
"""The most bins of load in one chart."""
ENOUGH: Final = 5
"""The number of windows that a bin needs to be called the peak, or to be compared with it."""
MOST_WINDOWS: Final = 2_000_000
"""The most windows of one place of measurement; beyond them only those with requests are used."""

_RATES: Final = ("smooth_goodput_tok_s", "goodput_tok_s", "throughput_tok_s")


@dataclass(frozen=True, slots=True)
class Points:
    """The windows of every instance at one place: mean requests in flight (K,), and the three rates (3, K), 1/s."""

    in_flight: Floats
    rates: Floats
    without_end: int


@dataclass(frozen=True, slots=True)
class LoadBin:
    """Windows of similar load: how many, their mean load and rates, quartiles of smooth goodput; tokens/s."""

    low: float
    high: float
    windows: int
    in_flight: float
    smooth: float
    goodput: float
    throughput: float
    lower: float
    upper: float


def in_flight_ns(starts_ns: Ints, ends_ns: Ints, edges_ns: Ints) -> Floats:
    """Return the request-nanoseconds in flight before each edge (E,): the integral of the number in flight."""
    total = np.zeros(len(edges_ns))
    for times, sign in ((starts_ns, 1.0), (ends_ns, -1.0)):
        ordered = np.sort(times)
        # Sums are kept small against a float's 53 bits: everything is counted from the first start.
        summed = np.concatenate([[0.0], np.cumsum((ordered - starts_ns.min()).astype(np.float64))])
        before = np.searchsorted(ordered, edges_ns)
        total += sign * (before * (edges_ns - starts_ns.min()).astype(np.float64) - summed[before])
    return total


def touched(starts_ns: Ints, ends_ns: Ints, width_ns: int) -> Ints:
    """Return the ascending starts of all windows, multiples of their width, with a request in flight."""
    first, last = starts_ns // width_ns, ends_ns // width_ns
    order = np.argsort(first, kind="stable")
    first, reach = first[order], np.maximum.accumulate(last[order])
    begins = np.concatenate([[True], first[1:] > reach[:-1]])
    lows, highs = first[begins], reach[np.concatenate([np.flatnonzero(begins)[1:] - 1, [len(first) - 1]])]
    lengths = highs - lows + 1
    if lengths.sum() > MOST_WINDOWS:
        return np.zeros(0, np.int64)
    offsets = np.repeat(np.cumsum(lengths) - lengths, lengths)
    found: Ints = (np.repeat(lows, lengths) + np.arange(lengths.sum()) - offsets) * width_ns
    return found


def points(requests: pd.DataFrame, windows: pd.DataFrame, width_ns: int) -> Points:
    """Return the points of one place of measurement; both tables hold that place alone."""
    lasted = reals(requests, "e2e_s")
    ended = ~np.isnan(lasted) & requests["start_unix_nano"].notna().to_numpy()
    known = requests[ended]
    starts = integers(known, "start_unix_nano")
    ends = starts + np.round(lasted[ended] * 1e9).astype(np.int64)
    mine = {key[0]: rows for key, rows in groups(known, ("instance",))}
    loads: list[Floats] = []
    rates: list[Floats] = []
    for (instance,), rows in groups(windows, ("instance",)):
        at = integers(windows, "window_start_unix_nano")[rows]
        served = mine.get(instance)
        if served is None:
            continue
        grid = np.union1d(at, touched(starts[served], ends[served], width_ns))
        before = in_flight_ns(starts[served], ends[served], np.stack([grid, grid + width_ns]).ravel())
        loads.append((before[len(grid) :] - before[: len(grid)]) / width_ns)
        place = np.searchsorted(grid, at)
        rates.append(np.stack([np.bincount(place, reals(windows, name)[rows], len(grid)) for name in _RATES]))
    if not loads:
        return Points(np.zeros(0), np.zeros((3, 0)), int((~ended).sum()))
    load, rate = np.concatenate(loads), np.concatenate(rates, axis=1)
    busy = load > 1e-9
    return Points(load[busy], rate[:, busy], int((~ended).sum()))


def load_bins(found: Points, most: int = MOST_BINS) -> list[LoadBin]:
    """Return the bins that have windows, in order of load; a load on a border belongs to the bin above."""
    if not len(found.in_flight):
        return []
    width = _nice(float(found.in_flight.max()) / most)
    index = (found.in_flight / width + 1e-9).astype(np.int64)
    bins: list[LoadBin] = []
    for one in np.unique(index).tolist():
        chosen = index == one
        smooth, goodput, throughput = found.rates[:, chosen]
        ordered = np.sort(smooth)
        bins.append(
            LoadBin(
                low=one * width,
                high=(one + 1) * width,
                windows=len(smooth),
                in_flight=float(found.in_flight[chosen].mean()),
                smooth=float(smooth.mean()),
                goodput=float(goodput.mean()),
                throughput=float(throughput.mean()),
                lower=float(ordered[rank(len(ordered), (1, 4))]),
                upper=float(ordered[rank(len(ordered), (3, 4))]),
            )
        )
    return bins


def peak(bins: Sequence[LoadBin]) -> int | None:
    """Return the index of the bin with the highest mean smooth goodput of those with enough windows, None without."""
    enough = [place for place, one in enumerate(bins) if one.windows >= ENOUGH]
    return max(enough, key=lambda place: bins[place].smooth) if enough else None


def conclusion(bins: Sequence[LoadBin]) -> str:
    """Return a sentence on where the peak is, and whether it is one."""
    if len(bins) == 1:
        (only,) = bins
        windows = "in the one window" if only.windows == 1 else f"in each of {only.windows:,} windows"
        return f"The load did not vary: {windows} {_load(only)} requests were in flight on an instance."
    at = peak(bins)
    if at is None:
        return f"No load has {ENOUGH} windows, so no peak is named. A longer recording or a shorter --window helps."
    best = bins[at]
    sentence = (
        f"Smooth goodput is highest at {_load(best)} requests in flight on an instance: {number(best.smooth)} tokens/s "
        f"({plural(best.windows, 'window')})."
    )
    above = [one for one in bins[at + 1 :] if one.windows >= ENOUGH]
    if not above:
        most = "there was" if at == len(bins) - 1 else f"with {ENOUGH} windows"
        return f"{sentence} That is the highest load {most}: the peak may lie beyond it."
    last = above[-1]
    return (
        f"{sentence} At {_load(last)} it is {number(last.smooth)}, while throughput went from "
        f"{number(best.throughput)} to {number(last.throughput)}."
    )


def load_figure(bins: Sequence[LoadBin]) -> Figure:
    """Draw the means over the load, the middle half of smooth goodput's windows as a band, and the peak."""
    x = [one.in_flight for one in bins]
    at = peak(bins)
    hover = [
        f"<b>{_load(one)} in flight</b>, {plural(one.windows, 'window')}<br>smooth goodput {number(one.smooth)} "
        f"tokens/s (middle half {number(one.lower)} to {number(one.upper)})<br>goodput {number(one.goodput)}, "
        f"throughput {number(one.throughput)} tokens/s"
        for one in bins
    ]
    edge: dict[str, Any] = {"type": "scatter", "mode": "lines", "x": x, "line": {"width": 0, "color": "$reading"}}
    traces: list[Figure] = [
        {**edge, "y": [one.lower for one in bins], "showlegend": False, "hoverinfo": "skip"},
        {
            **edge,
            "y": [one.upper for one in bins],
            "name": "its middle half",
            "fill": "tonexty",
            "fillcolor": "$readingband",
            "hoverinfo": "skip",
        },
        _line(x, [one.throughput for one in bins], "throughput", "$muted"),
        _line(x, [one.goodput for one in bins], "goodput", "$delivered"),
        {
            **_line(x, [one.smooth for one in bins], "smooth goodput", "$reading", width=3),
            "text": hover,
            "hovertemplate": "%{text}<extra></extra>",
            "hoverinfo": "text",
        },
    ]
    if at is not None:
        traces.append(_mark(bins[at]))
    return {
        "data": traces,
        "layout": {
            "height": 380,
            "hovermode": "x",
            "showlegend": True,
            "xaxis": {
                "title": {"text": "requests in flight, mean of a window"},
                "rangemode": "tozero",
            },
            "yaxis": {"title": {"text": "tokens/s of an instance"}, "rangemode": "tozero"},
        },
    }


def _mark(best: LoadBin) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "peak",
        "x": [best.in_flight],
        "y": [best.smooth],
        "marker": {"symbol": "diamond", "size": 13, "color": "$first", "line": {"width": 1, "color": "$ink"}},
        "hoverinfo": "skip",
    }


BIN_HEADINGS: Final = ("In flight", "Windows", "Smooth goodput", "Its middle half", "Goodput", "Throughput")


def bin_lines(bins: Sequence[LoadBin]) -> list[tuple[str, ...]]:
    """Return the bins as the lines of a table, tokens/s of an instance."""
    return [
        (
            _load(one),
            number(one.windows),
            number(one.smooth),
            f"{number(one.lower)} to {number(one.upper)}",
            number(one.goodput),
            number(one.throughput),
        )
        for one in bins
    ]


def _load(one: LoadBin) -> str:
    return f"{number(one.low)} to {number(one.high)}"


def _line(x: Sequence[float], y: Sequence[float], name: str, colour: str, *, width: int = 2) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "width": width},
        "marker": {"color": colour, "size": 5},
        "hoverinfo": "skip",
    }


def _nice(step: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below a step."""
    power = 10.0 ** np.floor(np.log10(step))
    return float(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * (1 - 1e-9)))
