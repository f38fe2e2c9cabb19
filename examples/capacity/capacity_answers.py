"""What the results say: which settings differ, the tables of the README, the pictures."""

from __future__ import annotations

from math import inf, log10
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from capacity_cases import BETWEEN, CASES
from markdown_tables import markdown

from otel_llm.audit.report.charts.line_chart import pen
from otel_llm.shared.formatting import number, share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

COMPARED: Final = (
    ("engine-a-1", "engine-a-2"),
    ("engine-a-1", "engine-b"),
    ("engine-a-2", "engine-b"),
    ("relay", "engine-a-1"),
    ("relay", "engine-a-2"),
    ("simulated", "engine-a-1"),
    ("simulated", "engine-a-2"),
    ("simulated-relay", "relay"),
)
PICTURES: Final = {
    "intervals": "The intervals, with the rates that were probed",
    "shares": "The share of requests that kept their promise, against the rate",
}
VERDICTS: Final = {"holds": ("$delivered", "circle"), "fails": ("$waiting", "x"), "undecided": ("$muted", "diamond")}
TICKS: Final = (0.5, 1, 2, 4, 8, 16, 32, 64, 128)


class Interval(NamedTuple):
    """The ends of a capacity, requests/s; None if no rate was found to hold, or none to fail."""

    low: float | None
    high: float | None

    @property
    def words(self) -> str:
        """Return it in words, with its unit."""
        if self.low is None and self.high is None:
            return "nothing known"
        if self.low is None:
            return f"below {number(self.high)} requests/s"
        if self.high is None:
            return f"at least {number(self.low)} requests/s"
        return f"{number(self.low)} to {number(self.high)} requests/s"

    def is_above(self, other: Interval) -> bool:
        """Return whether every rate of it is above every rate of the other: an end that is shared is not enough."""
        low = 0.0 if self.low is None else self.low
        return low > (inf if other.high is None else other.high)


def interval_of(result: Mapping[str, Any]) -> Interval:
    """Return the interval of a result."""
    return Interval(result["answer"]["capacity_low"], result["answer"]["capacity_high"])


def compare(first: str, one: Interval, second: str, other: Interval) -> str:
    """Return what two intervals say of two cases: they are different only if the intervals are apart."""
    if one.is_above(other):
        return f"{first} carries more than {second}: {one.words} against {other.words}."
    if other.is_above(one):
        return f"{first} carries less than {second}: {one.words} against {other.words}."
    return f"No difference is shown between {first} and {second}: {one.words}, and {other.words}."


def comparisons(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each pair whose cases were both searched."""
    return [
        compare(CASES[first].words, interval_of(results[first]), CASES[second].words, interval_of(results[second]))
        for first, second in COMPARED
        if first in results and second in results
    ]


def readme_tables(results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the tables by the names that the README has them under."""
    return {
        "answers": _answers(results),
        "comparisons": "\n".join(f"- {sentence}" for sentence in comparisons(results)),
        "probes": _probes(results),
        "runs": _runs(results),
    }


def _answers(results: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for name, result in results.items():
        answer, probes = result["answer"], result["answer"]["probes"]
        tokens = answer["tokens_per_s_at_low"]
        rows.append(
            (
                CASES[name].words,
                interval_of(result).words,
                "yes" if answer["decided"] else f"no: {answer['why']}",
                number(len(probes)),
                number(sum(probe["requests"] for probe in probes)),
                number(round(result["seconds"] / 60, 1)),
                "-" if tokens is None else number(round(tokens)),
            )
        )
    heads = ("case", "capacity", "decided", "probes", "requests", "minutes", "tokens/s at the lower end")
    return markdown(heads, rows, text_columns=3)


def _probes(results: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for name, result in results.items():
        for probe in result["answer"]["probes"]:
            slope = probe["backlog_slope"]
            rows.append(
                (
                    CASES[name].words,
                    probe["verdict"] if probe["valid"] else "not valid",
                    number(probe["rate"]),
                    number(probe["requests"]),
                    *("-" if probe[key] is None else share(probe[key]) for key in ("value", "low", "high", "raw")),
                    "-" if slope is None else share(slope),
                    number(round(probe["seconds"])),
                )
            )
    heads = ("case", "verdict", "rate", "requests", "share", "from", "to", "raw", "backlog", "seconds")
    return markdown(heads, rows, text_columns=2)


def _runs(results: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for name, result in results.items():
        versions = ", ".join(f"{one} {text}" for one, text in result["versions"].items())
        rows.append((CASES[name].words, result["started"], versions, result["machine"], str(result["load_average"])))
    return markdown(("case", "started", "versions", "machine", "load before"), rows, text_columns=4)


def figures(results: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return title and figure of each picture."""
    drawn = {"intervals": _intervals(results), "shares": _shares(results)}
    return {name: (title, drawn[name]) for name, title in PICTURES.items()}


def _intervals(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Draw a bar a case; an open end reaches to that of the range, thinner."""
    data: list[dict[str, Any]] = []
    for name, result in results.items():
        low, high = interval_of(result)
        if low is None and high is None:
            continue
        open_ends = low is None or high is None
        ends = [BETWEEN[0] if low is None else low, BETWEEN[1] if high is None else high]
        data.append(
            {"type": "scatter", "mode": "lines", "showlegend": False, "x": ends, "y": [CASES[name].words] * 2}
            | {"line": {"color": "$reading", "width": 4 if open_ends else 14}, "hoverinfo": "skip"}
        )
    for verdict, (colour, symbol) in VERDICTS.items():
        found = [
            (probe["rate"], CASES[name].words)
            for name, result in results.items()
            for probe in result["answer"]["probes"]
            if probe["verdict"] == verdict
        ]
        data.append(
            {"type": "scatter", "mode": "markers", "name": f"probe: {verdict}"}
            | {"x": [rate for rate, _ in found], "y": [words for _, words in found]}
            | {"marker": {"color": colour, "symbol": symbol, "size": 9, "line": {"width": 1, "color": "$ink"}}}
        )
    layout = _layout(150 + 45 * len(results))
    layout["yaxis"] = {"type": "category", "autorange": "reversed", "automargin": True}
    return {"data": data, "layout": layout}


def _shares(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    data = []
    for index, (name, result) in enumerate(results.items()):
        probes = sorted(_judged(result["answer"]["probes"]), key=lambda one: float(one["rate"]))
        colour, _ = pen(index)
        data.append(
            {"type": "scatter", "mode": "lines+markers", "name": CASES[name].words}
            | {"x": [one["rate"] for one in probes], "y": [one["value"] for one in probes]}
            | {"line": {"color": colour, "width": 1}, "marker": {"color": colour, "size": 8}}
            | {
                "error_y": {"type": "data", "symmetric": False, "color": colour}
                | {"array": [max(0.0, one["high"] - one["value"]) for one in probes]}
                | {"arrayminus": [max(0.0, one["value"] - one["low"]) for one in probes]}
            }
        )
    layout = _layout(420)
    layout["yaxis"] = {"title": {"text": "share that kept its promise"}, "tickformat": ".0%", "range": [0, 1.02]}
    layout["shapes"] = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 0.9, "y1": 0.9}
        | {"line": {"color": "$muted", "dash": "dash", "width": 1}}
    ]
    return {"data": data, "layout": layout}


def _judged(probes: Iterable[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return [probe for probe in probes if probe["valid"] and probe["value"] is not None]


def _layout(height: int) -> dict[str, Any]:
    ends = [log10(BETWEEN[0] / 1.2), log10(BETWEEN[1] * 1.2)]
    ticks = {"tickvals": list(TICKS), "ticktext": [f"{tick:g}" for tick in TICKS]}
    axis = {"type": "log", "range": ends, "title": {"text": "requests/s"}, **ticks}
    return {"height": height, "hovermode": "closest", "showlegend": True, "xaxis": axis}
