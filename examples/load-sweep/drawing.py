"""The pictures: figures 5, 6, 9 and 11, as plotly figures in plain data with the colours of the audit's page."""

from __future__ import annotations

from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from levels import ALPHA, PACE_NS, mean_at, optimum

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from levels import Level

Figure = dict[str, Any]

ENGINES: Final = {
    "chunked": ("model, chunked prefills", "$delivered", "lines+markers"),
    "prompts-first": ("model, prompts first", "$first", "lines+markers"),
    "vllm": ("real vLLM, busy machine", "$ink", "markers"),
}
"""Name in `levels.csv`, words and colour; markers alone: single runs."""
PANELS: Final = (
    ("throughput", "throughput, tokens/s", False),
    ("tbt_s", "median TBT, s", False),
    ("tpot_s", "mean TPOT, s", False),
    ("ttft_s", "mean TTFT, s (logarithmic)", True),
)
LOAD: Final = "load, requests/s"
ALPHAS: Final = (0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0)


def figure_5(sweeps: Mapping[str, Sequence[Level]]) -> Figure:
    """Throughput, median TBT, TPOT and mean TTFT against the load."""
    data: list[Figure] = []
    layout = _layout(620)
    for index, (column, words, logarithmic) in enumerate(PANELS):
        x, y = _axes(index)
        left, bottom = 0.57 * (index % 2), 0.57 * (index < 2)
        layout["xaxis" + x[1:]] = {
            "domain": [left, left + 0.43],
            "anchor": y,
            "title": {"text": LOAD if index >= 2 else ""},
            "range": [0, 8.3],
        }
        layout["yaxis" + y[1:]] = {"domain": [bottom, bottom + 0.43], "anchor": x, "title": {"text": words}}
        layout["yaxis" + y[1:]] |= {"type": "log"} if logarithmic else {"rangemode": "tozero"}
        for engine, levels in sweeps.items():
            trace = _line(engine, levels, attrgetter(column))
            data.append(trace | {"xaxis": x, "yaxis": y, "showlegend": index == 0})
    return {"data": data, "layout": layout}


def figure_6(sweeps: Mapping[str, Sequence[Level]]) -> Figure:
    """Smooth goodput against the load, with its peaks, over the throughput that it falls away from."""
    data: list[Figure] = []
    layout = _layout(520)
    layout["xaxis"] = {"title": {"text": LOAD}, "range": [0, 8.3]}
    layout["yaxis"] = {"title": {"text": "tokens/s"}, "rangemode": "tozero"}
    layout["annotations"] = []
    for index, (engine, levels) in enumerate(sweeps.items()):
        words, colour, mode = ENGINES[engine]
        flat = _line(engine, levels, attrgetter("throughput"))
        flat |= {"name": f"throughput: {words}", "line": {"color": colour, "width": 1.5, "dash": "dot"}}
        if mode == "markers":
            flat["marker"] = {"color": colour, "size": 8, "symbol": "circle-open"}
        else:
            flat["mode"] = "lines"
        data.append(flat)
        data.append(_line(engine, levels, attrgetter("smooth_goodput")) | {"name": f"smooth goodput: {words}"})
        load, most = optimum(levels, ALPHA)
        layout["annotations"].append(_mark(load, most, f"peak {load:g}/s", colour, (-40, 60, 40)[index]))
    return {"data": data, "layout": layout}


def figure_9(
    before_ns: Sequence[int], after_ns: Sequence[int], idle_s: float, quantiles_ms: Mapping[str, Sequence[float]]
) -> Figure:
    """One delivery as generated and held back, with the tangent of both; and the gaps of all requests as a CDF."""
    until_s = after_ns[-1] / 1e9 * 1.04
    tokens = len(before_ns)
    ends = [(PACE_NS / 1e9 + idle_s, 1.0), (idle_s + tokens * PACE_NS / 1e9, float(tokens))]
    data = [
        _step(after_ns, until_s, "held back, one every 200 ms", "$waiting"),
        _step(before_ns, until_s, "as generated", "$delivered"),
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"reader at 5 tokens/s, {idle_s:.2f} s late for both",
            "x": [at for at, _ in ends],
            "y": [count for _, count in ends],
            "line": {"color": "$reading", "width": 3, "dash": "dash"},
        },
    ]
    shares = [number / (len(quantiles_ms["before"]) - 1) for number in range(len(quantiles_ms["before"]))]
    for name, colour, words in (("after", "$waiting", "gaps held back"), ("before", "$delivered", "gaps as generated")):
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": words,
                "xaxis": "x2",
                "yaxis": "y2",
                "x": list(quantiles_ms[name]),
                "y": [100 * share for share in shares],
                "line": {"color": colour, "width": 2, "shape": "vh"},
            }
        )
    layout = _layout(480)
    layout["xaxis"] = {
        "domain": [0, 0.44],
        "title": {"text": "a: seconds since the request was sent"},
        "range": [0, until_s],
    }
    layout["yaxis"] = {"title": {"text": "tokens"}, "rangemode": "tozero"}
    layout["xaxis2"] = {
        "domain": [0.56, 1],
        "anchor": "y2",
        "title": {"text": "b: time between tokens, ms"},
        "range": [0, 1000],
    }
    layout["yaxis2"] = {"anchor": "x2", "title": {"text": "% of gaps"}, "range": [0, 102]}
    layout["shapes"] = [
        {
            "type": "line",
            "xref": "x2",
            "yref": "y2 domain",
            "x0": 200,
            "x1": 200,
            "y0": 0,
            "y1": 1,
            "line": {"color": "$deadline", "width": 1.5, "dash": "dot"},
        }
    ]
    return {"data": data, "layout": layout}


def figure_11(levels: Sequence[Level]) -> Figure:
    """Smooth goodput against the load for several alpha, each with its peak; and the optimum load against alpha."""
    data: list[Figure] = []
    loads = sorted({one.load for one in levels})
    shades = ("$delivered", "$reading", "$first", "$deadline", "$waiting")
    drawn = (1.0, 2.5, 10.0, 50.0, 250.0)
    layout = _layout(520)
    layout["annotations"] = []
    for index, (alpha, colour) in enumerate(zip(drawn, shades, strict=True)):
        load, most = optimum(levels, alpha)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"alpha {alpha:g}",
                "x": loads,
                "y": [mean_at(levels, load, alpha) for load in loads],
                "line": {"color": colour, "width": 2},
            }
        )
        layout["annotations"].append(_mark(load, most, f"{load:g}/s", colour, -75 + 12 * index, -50 * index))
    optima = [optimum(levels, alpha)[0] for alpha in ALPHAS]
    data.append(
        {
            "type": "scatter",
            "mode": "lines+markers",
            "showlegend": False,
            "xaxis": "x2",
            "yaxis": "y2",
            "x": list(ALPHAS),
            "y": optima,
            "line": {"color": "$ink", "width": 2},
            "marker": {"size": 8},
        }
    )
    layout["xaxis"] = {"domain": [0, 0.53], "title": {"text": LOAD}, "range": [0, 8.3]}
    layout["yaxis"] = {
        "title": {"text": "smooth goodput, tokens/s"},
        "range": [0, 1.15 * max(one.throughput for one in levels)],
    }
    layout["xaxis2"] = {"domain": [0.65, 1], "anchor": "y2", "type": "log", "title": {"text": "alpha (logarithmic)"}}
    layout["yaxis2"] = {"anchor": "x2", "title": {"text": "optimum load, requests/s"}, "rangemode": "tozero"}
    return {"data": data, "layout": layout}


def _line(engine: str, levels: Sequence[Level], value: Callable[[Level], float]) -> Figure:
    """Draw a column of the levels: the mean of the runs of a load, and their range."""
    words, colour, mode = ENGINES[engine]
    loads = sorted({one.load for one in levels})
    runs = [[value(one) for one in levels if one.load == load] for load in loads]
    means = [sum(mine) / len(mine) for mine in runs]
    trace: Figure = {
        "type": "scatter",
        "mode": mode,
        "name": words,
        "x": loads,
        "y": means,
        "line": {"color": colour, "width": 2},
        "marker": {
            "color": colour,
            "size": 9 if mode == "markers" else 5,
            "symbol": "diamond" if mode == "markers" else "circle",
        },
    }
    if max(len(mine) for mine in runs) > 1:
        above = [max(mine) - mean for mine, mean in zip(runs, means, strict=True)]
        below = [mean - min(mine) for mine, mean in zip(runs, means, strict=True)]
        trace["error_y"] = {
            "type": "data",
            "array": above,
            "arrayminus": below,
            "color": colour,
            "thickness": 1,
            "width": 2,
        }
    return trace


def _step(times_ns: Sequence[int], until_s: float, words: str, colour: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": words,
        "line": {"color": colour, "width": 2, "shape": "hv"},
        "x": [0, *(at_ns / 1e9 for at_ns in times_ns), until_s],
        "y": [0, *range(1, len(times_ns) + 1), len(times_ns)],
    }


def _mark(x: float, y: float, words: str, colour: str, below: int, aside: int = 0) -> Figure:
    """Point an arrow at a peak from so many pixels below and to the right."""
    return {
        "x": x,
        "y": y,
        "text": words,
        "showarrow": True,
        "arrowhead": 2,
        "ax": aside,
        "ay": below,
        "arrowcolor": colour,
        "font": {"color": colour, "size": 13},
    }


def _axes(place: int) -> tuple[str, str]:
    number = "" if place == 0 else str(place + 1)
    return f"x{number}", f"y{number}"


def _layout(height: int) -> Figure:
    return {"height": height, "showlegend": True, "hovermode": "closest"}


def longest(times_ns: Sequence[int]) -> int:
    """Return the longest gap between two tokens, ns; 0 of one token."""
    return max((after - before for before, after in pairwise(times_ns)), default=0)
