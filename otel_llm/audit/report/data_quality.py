"""The data quality behind a report: how much could be judged, what a recorded token is, and the clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.audit import coverage
from otel_llm.audit.coverage import NO_START_TIMES
from otel_llm.audit.report.html_page import table, text
from otel_llm.audit.report.report_model import by_class, clock_of, reals
from otel_llm.shared.formatting import number, share

if TYPE_CHECKING:
    from otel_llm.audit.report.report_model import ReportModel

BASES: Final = {
    "exact": "exact: each recorded token is one",
    "chunk": "chunk: each recorded token is a piece of the reply as it came, of one token or more",
    "estimated": "estimated: tokens were counted from text",
}
"""The meaning of a recorded token, by `token_basis`."""
UNKNOWN_BASIS: Final = "not stated"

UNANCHORED: Final = "anomaly.clock_unanchored"


def body(model: ReportModel) -> str:
    """Return the sentences and tables."""
    requests = model.requests
    skipped, counts = model.skipped or {}, model.counts or {}
    sentence = coverage.statement(requests, skipped, counts)
    if model.skipped is None:
        sentence = sentence.replace("nothing was skipped", "what was skipped is not in these tables")
    parts = [f"<p>{text(sentence, 2000)}</p>", *(f"<p>{text(one, 1000)}</p>" for one in clocks(model))]
    found = [(what, number(count)) for what, count in coverage.details(skipped, counts)]
    if found:
        parts.append(table(["Counted", "Number"], found))
    if len(requests):
        headings = ["Class", "What a recorded token is", "Requests", "of them", "Tokens"]
        parts.append(table(headings, basis_lines(model), text_columns=(1,), caption="What was counted as a token"))
    return "".join(parts)


def clocks(model: ReportModel) -> list[str]:
    """Return a sentence for each statement that a clock does not allow."""
    sentences: list[str] = []
    unanchored, alone = model.count(UNANCHORED), model.count(NO_START_TIMES)
    requests = model.requests
    if unanchored or not clock_of(requests, "start_unix_nano").anchored:
        counted = f" (counted {unanchored:,} times)" if unanchored else ""
        sentences.append(
            f"Times of a clock that is not anchored to the wall clock{counted}: how long things took holds, the dates "
            "do not, and inputs of two such clocks do not share one axis."
        )
    if alone:
        sentences.append(
            f"Files that do not say when requests were sent (counted {alone:,} times): each request begins at zero of "
            "an axis of its own, so for them nothing over time, of load or per second holds."
        )
    return sentences


def no_axis(model: ReportModel, *, of_all: bool) -> str:
    """Return why nothing is drawn over time or load, "" if it is; `of_all`: each request needs a time of sending."""
    if model.count(coverage.NOT_IN_SAMPLE):
        return "Not drawn: the requests are a sample, which says nothing over time or of load."
    if coverage.timeless(model.requests, model.counts or {}) or (of_all and model.count(NO_START_TIMES)):
        return "Not drawn: some requests have no known time of sending."
    if model.windows.empty and len(model.requests) and not coverage.judged(model.requests):
        return "Not drawn: no request could be judged."
    return ""


def basis_lines(model: ReportModel) -> list[tuple[str, ...]]:
    """Return how many requests and tokens have which kind of count, for each class and place of measurement."""
    requests = model.requests
    tokens = reals(requests, "tokens")
    basis = requests["token_basis"].fillna("").to_numpy(dtype=object)
    lines: list[tuple[str, ...]] = []
    for name, place, rows in by_class(requests):
        for one in sorted(set(basis[rows]), key=_order):
            mine = rows[basis[rows] == one]
            counted = tokens[mine][tokens[mine] >= 0].sum()
            words = BASES.get(one, one or UNKNOWN_BASIS)
            line = (f"{name}, {place}", words, number(len(mine)), share(len(mine) / len(rows)), number(int(counted)))
            lines.append(line)
    return lines


def _order(basis: str) -> tuple[int, str]:
    known = list(BASES)
    return (known.index(basis) if basis in known else len(known), basis)
