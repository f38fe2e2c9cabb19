"""The HTML report: one page with all results of an audit, built from the sections in this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from otel_llm.audit import coverage, objectives, summary_figures, top_offenders
from otel_llm.audit.kernel import waits
from otel_llm.audit.report import caveats, compared, data_quality, sections
from otel_llm.audit.report.delivery_sections import Chosen, deliveries
from otel_llm.audit.report.html_page import contents, page, table, text
from otel_llm.audit.report.report_model import ReportModel, by_class, clock_of
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.shared.formatting import instant, number, plural, seconds, share
from otel_llm.shared.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_llm.audit.compare.tiers import Tiers
    from otel_llm.audit.report.charts.delivery_chart import Figure
    from otel_llm.audit.report.compared import Compared

    Lines = Sequence[tuple[str, str]]

TITLE: Final = "What the readers felt"
MOST_COLUMNS: Final = 6
"""The most groups side by side in one table: as many as fit a sheet of paper."""
WAIT_CAPTION: Final = "Who waited: the wait for the first text, and the waits after it"
WAIT_LINES: Final[tuple[tuple[str, Callable[[waits.Waits], str]], ...]] = (
    ("readers that could be judged", lambda one: number(one.judged)),
    ("waited longer than the class allows", lambda one: number(one.beyond)),
    ("reply broken off by the server's side", lambda one: number(one.broken)),
    ("first text, half of them at most", lambda one: seconds(one.first_p50_s)),
    ("first text, 99 % at most", lambda one: seconds(one.first_p99_s)),
    ("waited between tokens", lambda one: number(len(one.between_s))),
    ("their wait between tokens, median", lambda one: seconds(one.between_p50_s)),
    ("their wait between tokens, longest", lambda one: seconds(one.between_most_s)),
)
"""(label, its value)."""
LATENCY_CAPTION: Final = (
    "TTFT of all requests; ITL (all gaps together, percentiles within 1 %) and TPOT of judged ones; E2E of "
    "those that completed"
)
_WHY: Final = {"idle": "Among the longest idle times.", "fluidity": "Among the lowest fluidity-indexes."}
_STATES: Final = {"met": "good", "missed": "bad", "no data": "quiet"}


class Reported(Protocol):
    """The source of a report: an `audit.Audit`."""

    def report_model(self, tiers: Tiers | None = None, compared: Compared | None = None) -> ReportModel:
        """Return the report's model."""


class Section(NamedTuple):
    """A part of the page: its id, its heading and its markup; a part without markup is left out."""

    name: str
    heading: str
    body: str


def render(
    audit: Reported,
    *,
    title: str = TITLE,
    tiers: Tiers | None = None,
    compared: Compared | None = None,
    first: tuple[str, Lines] | None = None,
) -> str:
    """Return the report as one page, with the classes as tiers and a comparison with a baseline if they are given.

    `first`: the heading and the (label, text) lines of a section before all others. The same input gives the same
    bytes.
    """
    return build(audit.report_model(tiers, compared), title=title, first=first)


def build(model: ReportModel, *, title: str = TITLE, first: tuple[str, Lines] | None = None) -> str:
    """Return the report of the available parts of an audit as one page. The same input gives the same bytes."""
    figures: dict[str, Figure] = {}
    written = [
        Section("first", *(("", "") if first is None else (first[0], table(["", ""], first[1], text_columns=(1,))))),
        Section("summary", "Summary", _summary(model)),
        Section("compared", "Compared with the baseline", compared.body(model.compared)),
        Section("rests", "What this rests on", data_quality.body(model)),
        Section("time", "Over time", sections.over_time(model, figures)),
        Section("distributions", "Distributions", sections.distributed(model, figures)),
        Section("load", "Load against benefit", sections.under_load(model, figures)),
        Section("starving", "Where readers starved", sections.starved(model, figures)),
        Section("cut", "Replies that were cut off", sections.cut_replies(model)),
        Section("tiers", "The classes as tiers", sections.as_tiers(model)),
        Section("classical", "By the classical metrics", sections.classically(model)),
        Section("worst", "The worst deliveries", _top_offenders(model, figures)),
        Section("hide", "What the figures can hide", caveats.games()),
        Section("counted", "How it is counted", caveats.rules()),
        Section("methods", "Where the definitions come from", _judges(model) + caveats.methods()),
    ]
    filled = [one for one in written if one.body]
    parts = [_head(model, title), contents((one.name, one.heading) for one in filled)]
    parts += [f"<section id='{one.name}'><h2>{text(one.heading)}</h2>{one.body}</section>" for one in filled]
    return page(title, "\n".join(parts), figures)


def render_deliveries(audit: Reported, chosen: Sequence[Chosen], *, title: str, lead: str = "") -> str:
    """Return a page of chosen deliveries alone, drawn as in the report.

    Raises:
        ValueError: one of them is incomplete and cannot be drawn.
    """
    figures: dict[str, Figure] = {}
    words = f"<p class='lead'>{text(lead, 2000)}</p>" if lead else ""
    body = deliveries(audit.report_model(), chosen, figures)
    return page(title, f"<header><h1>{text(title)}</h1>{words}</header>\n<section>{body}</section>", figures)


def _head(model: ReportModel, title: str) -> str:
    summary, requests = model.summary, model.requests
    clock = clock_of(requests, "start_unix_nano")
    known = clock.anchored and requests["start_unix_nano"].notna().any()
    when = f" The first was sent at {instant(clock.first_ns)} UTC." if known else ""
    span = f" within {seconds(summary['span_s'])}" if summary["span_s"] else ""
    lead = (
        f"{plural(summary['requests'], 'request')} with {plural(summary['tokens'], 'token')}{span}.{when}",
        _sentence(coverage.sampled(requests, model.counts or {})),
        waits.sentences(waits.waits(requests)),
    )
    leads = "".join(f"<p class='lead'>{text(one, 1000)}</p>" for one in lead if one)
    names = ", ".join(f"<code>{text(name)}</code>" for name in model.inputs)
    read = f"<p class='quiet'>Read from {names}.</p>" if names else ""
    return f"<header><h1>{text(title)}</h1>{leads}{read}</header>"


def _sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:]}." if clause else ""


def _summary(model: ReportModel) -> str:
    classes: dict[str, Any] = model.summary["classes"]
    if not classes:
        return "<p>No request was found.</p>"
    block = ""
    found = summary_figures.groups(classes)
    for first in range(0, len(found), MOST_COLUMNS):
        some: dict[str, dict[str, Any]] = {}
        for name, place in found[first : first + MOST_COLUMNS]:
            some.setdefault(name, {})[place] = classes[name][place]
        headings = ["", *(f"{printable(name)}, {place}" for name, place in summary_figures.groups(some))]
        block += table(headings, summary_figures.lines(some), caption="By SLO class and by where the times were taken")
    block += table(summary_figures.LATENCY_HEADINGS, summary_figures.latency_lines(classes), caption=LATENCY_CAPTION)
    block += _who_waited(model)
    checks = objectives.check(model.requests, model.classes)
    if checks:
        lines = [
            (
                f"{check.slo_class}, {check.measured_at}",
                check.objective,
                f"≥ {share(float(check.wanted))}",
                share(check.share),
                f"{check.held:,} of {check.judged:,}",
                check.state,
            )
            for check in checks
        ]
        headings = ["Class", "Objective", "Promised", "Found", "Requests", "State"]
        block += table(headings, lines, caption="What the classes promise", text_columns=(1, 5), marks=_STATES)
    return block


def _who_waited(model: ReportModel) -> str:
    found = [
        (f"{printable(name)}, {place}", waits.waits(model.requests.iloc[rows]))
        for name, place, rows in by_class(model.requests)
    ]
    block = ""
    for first in range(0, len(found), MOST_COLUMNS):
        some = found[first : first + MOST_COLUMNS]
        lines = [(words, *(write(one) for _, one in some)) for words, write in WAIT_LINES]
        block += table(["", *(heading for heading, _ in some)], lines, caption=WAIT_CAPTION)
    return block


def _judges(model: ReportModel) -> str:
    """Return a remark if the classes are the shipped ones: a collector with a file of its own has others."""
    if model.classes.classes != load_slo().classes:
        return ""
    return "<p>Judged by the shipped SLO classes; <code>--slo FILE</code> for your own.</p>"


def _top_offenders(model: ReportModel, figures: dict[str, Figure]) -> str:
    found = top_offenders.choose(model.requests)
    if not found:
        if not coverage.judged(model.requests):
            return "<p>None is shown: no request could be judged.</p>"
        return "<p>No reader waited, and no token deadline was missed.</p>"
    rule = f"<p class='quiet'>{text(top_offenders.CHOICE_RULE)}</p>"
    chosen: list[Chosen] = []
    for one in found:
        row = model.row(one.position)
        tokens, fluidity = plural(int(row["tokens_read"] or 0), "token"), number(_real(row["fluidity_index"]))
        title = f"{tokens}, {seconds(_real(row['idle_s']))} idle, fluidity {fluidity}"
        chosen.append(Chosen(one.position, title, _WHY[one.why]))
    drawn = deliveries(model, chosen, figures)
    if not model.undrawn:
        return rule + drawn
    rows = [model.row(one.position) for one in found]
    lines = [
        (str(row["trace_id"]), str(row["slo_class"]), one.title, _WHY_SHORT[why.why])
        for row, one, why in zip(rows, chosen, found, strict=True)
    ]
    listed = table(["Trace", "Class", "What was felt", "Among the"], lines, text_columns=(1, 2, 3))
    return f"<p>{text(model.undrawn)}</p>{rule}{listed}{drawn}"


_WHY_SHORT: Final = {"idle": "longest idle times", "fluidity": "lowest fluidity-indexes"}


def _real(value: Any) -> float | None:
    return value if isinstance(value, float) else None
