"""The figures of a summary in reading order, with their labels: one list for the terminal and the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_llm.shared.formatting import number, seconds, share
from otel_llm.shared.printable import printable
from otel_llm.slo.metrics import LATENCY_FIGURES, STATISTICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

FIGURES: Final[tuple[tuple[str, tuple[tuple[str, str, Callable[[Any], str]], ...]], ...]] = (
    (
        "What the readers felt",
        (
            ("idle_p50_s", "idle, half of them at most", seconds),
            ("idle_p99_s", "idle, 99 % at most", seconds),
            ("ttfo_p50_s", "first text that is read, half of them at most", seconds),
            ("ttfo_p99_s", "first text that is read, 99 % at most", seconds),
        ),
    ),
    (
        "Deadlines",
        (
            ("attainment", "attainment", share),
            ("fluidity_p50", "fluidity-index, median", number),
            ("fluidity_ok_share", "share with the fluidity-index promised", share),
            ("fluid_token_rate", "fluid token rate, tokens/s", number),
        ),
    ),
    (
        "Per second",
        (
            ("smooth_goodput_tok_s", "smooth goodput, tokens/s", number),
            ("goodput_tok_s", "goodput, tokens/s", number),
            ("throughput_tok_s", "throughput, tokens/s", number),
            ("goodput_req_s", "goodput, requests/s", number),
            ("throughput_req_s", "throughput, requests/s", number),
        ),
    ),
    (
        "Behind these figures",
        (
            ("requests", "requests", number),
            ("tokens", "tokens", number),
            ("incomplete", "incomplete: tokens missing, not judged", number),
            ("undetermined", "met: cannot say", number),
            ("aborted_share", "ended by the server's side", share),
        ),
    ),
)
"""(heading, ((key of the summary, its label, its formatter), ...)); the latencies have a table of their own."""

FORMATS: Final[dict[str, Callable[[Any], str]]] = {
    **{key: write for _, figures in FIGURES for key, _, write in figures},
    **dict.fromkeys(LATENCY_FIGURES, seconds),
}
"""The formatter of each figure."""

LATENCY_WORDS: Final = {
    "ttft": "TTFT: first token of any kind",
    "itl": "ITL: each gap between tokens",
    "tpot": "TPOT: mean gap of a reply",
    "e2e": "E2E: whole reply, if completed",
}
LATENCY_HEADINGS: Final = ("Latency", *STATISTICS)


def groups(classes: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[tuple[str, str]]:
    """Return the (class, measured_at) pairs of a summary, in its order."""
    return [(name, measured_at) for name, places in classes.items() for measured_at in places]


def latency_lines(classes: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[list[str]]:
    """Yield the lines of a table with LATENCY_HEADINGS: a class and its place alone, or a latency's statistics."""
    for name, measured_at in groups(classes):
        found = classes[name][measured_at]
        yield [f"{printable(name)}, {measured_at}"]
        for latency, words in LATENCY_WORDS.items():
            yield [words, *(seconds(found[f"{latency}_{one}_s"]) for one in STATISTICS)]


def lines(classes: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[list[str]]:
    """Yield the lines of a table with one column a group: a heading alone, or a figure's label and its values."""
    columns = [classes[name][measured_at] for name, measured_at in groups(classes)]
    for heading, figures in FIGURES:
        yield [heading]
        for key, words, write in figures:
            yield [words, *(write(column[key]) for column in columns)]
