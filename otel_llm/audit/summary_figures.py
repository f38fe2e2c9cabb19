"""Which figures the tables of a summary show, in reading order: for the terminal and the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_llm.shared.formatting import number, seconds, share, truth
from otel_llm.shared.printable import MISSING, printable
from otel_llm.slo.figures import BY_NAME, LATENCIES, STATISTICS
from otel_llm.slo.metrics import BY_NAME as METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from otel_llm.slo.figures import Unit

SECTIONS: Final = (
    ("What the readers felt", ("idle_p50_s", "idle_p99_s", "ttfo_p50_s", "ttfo_p99_s")),
    ("Deadlines", ("attainment", "fluidity_p50", "fluidity_ok_share", "fluid_token_rate")),
    (
        "Per second",
        ("smooth_goodput_tok_s", "goodput_tok_s", "throughput_tok_s", "goodput_req_s", "throughput_req_s"),
    ),
    ("Behind these figures", ("requests", "tokens", "incomplete", "undetermined", "aborted_share")),
)
"""The table of a summary: (heading, figures); the latencies have a table of their own."""
GROUP_TABLE: Final = (
    *("requests", "attainment", "idle_p50_s", "idle_p99_s", "ttfo_p99_s", "ttft_p99_s", "fluidity_p50"),
    *("smooth_goodput_tok_s", "aborted_share"),
)
"""The figures of the tables by model and by instance."""
RUN_TABLE: Final = (
    *("requests", "throughput_req_s", "throughput_tok_s", "ttft_p50_s", "ttft_p99_s", "itl_p99_s", "tpot_p50_s"),
    *("e2e_p50_s", "e2e_p99_s", "idle_p99_s", "attainment"),
)
"""The figures of the table of runs."""
REQUEST_TABLE: Final = ("tokens", "ttfo_s", "ttft_s", "idle_s", "stalls", "fluidity_index", "met")
"""The columns of a table of requests, after those that say which request it is."""

_FORMATS: Final[Mapping[Unit, Callable[[Any], str]]] = {"s": seconds, "s/token": seconds, "share": share}
LATENCY_HEADINGS: Final = ("Latency", *STATISTICS)


def format_of(figure: str) -> Callable[[Any], str]:
    """Return the formatter of a figure."""
    return _FORMATS.get(BY_NAME[figure].unit, number)


def cell(row: Mapping[str, Any], column: str) -> str:
    """Return the value of a request's column for people."""
    value, about = row[column], METRICS[column]
    if about.kind == "truth":
        return truth(value)
    return MISSING if value is None else (seconds if about.is_time else number)(value)


def groups(classes: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[tuple[str, str]]:
    """Return the (class, measured_at) pairs of a summary, in its order."""
    return [(name, measured_at) for name, places in classes.items() for measured_at in places]


def latency_lines(classes: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[list[str]]:
    """Yield the lines of a table with LATENCY_HEADINGS: a class and its place alone, or a latency's statistics."""
    for name, measured_at in groups(classes):
        found = classes[name][measured_at]
        yield [f"{printable(name)}, {measured_at}"]
        for latency, words in LATENCIES.items():
            yield [words, *(seconds(found[f"{latency}_{one}_s"]) for one in STATISTICS)]


def lines(classes: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[list[str]]:
    """Yield the lines of a table with one column a group: a heading alone, or a figure's label and its values."""
    columns = [classes[name][measured_at] for name, measured_at in groups(classes)]
    for heading, figures in SECTIONS:
        yield [heading]
        for name in figures:
            write = format_of(name)
            yield [BY_NAME[name].label, *(write(column[name]) for column in columns)]
