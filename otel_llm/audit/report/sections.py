"""The sections of the report on many requests: over time, as distributions, under load, by instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.audit.report import classical
from otel_llm.audit.report.charts import distributions, load_curve, starving_map, time_series
from otel_llm.audit.report.data_quality import no_axis
from otel_llm.audit.report.html_page import key, picture, table, text, values
from otel_llm.audit.report.report_model import by_class, groups
from otel_llm.formats.spans.finish_reasons import CONTENT_FILTER, CUT, LENGTH
from otel_llm.shared.formatting import number, plural, seconds, share
from otel_llm.shared.printable import printable
from otel_llm.slo.metrics import CHARTS

if TYPE_CHECKING:
    import pandas as pd

    from otel_llm.audit.report.charts.delivery_chart import Figure
    from otel_llm.audit.report.report_model import ReportModel

MOST_WINDOW_PICTURES: Final = 8
MOST_SQUARES: Final = 4
"""The most classes with a two-by-two table; the list below them has all."""
MOST_EXAMPLES: Final = 12
"""The number of example lines that are open at first."""


def over_time(model: ReportModel, figures: dict[str, Figure]) -> str:
    """Return rates, attainment and waiting over time, a chart for each class and place, the largest first."""
    windows = model.windows
    if why := no_axis(model, of_all=False):
        return f"<p>{why}</p>"
    if windows.empty:
        return ""
    found = by_class(windows)
    weight = {(name, place): windows["requests_started"].iloc[rows].sum() for name, place, rows in found}
    chosen = sorted(found, key=lambda one: -weight[one[0], one[1]])[:MOST_WINDOW_PICTURES]
    clock = time_series.window_clock(windows)
    parts: list[str] = []
    for index, (name, place, rows) in enumerate(chosen):
        steps = time_series.bins(windows.iloc[rows])
        promise = model.classes.get(name).objective.attainment
        figure = time_series.windows_figure(steps, clock, None if promise is None else float(promise))
        figures[f"windows-{index}"] = figure
        alt = (
            f"Throughput, goodput and smooth goodput in tokens per second, attainment, and readers waiting, for class "
            f"{name} measured at {place}, in {plural(len(steps), 'step')} of {number(steps[0].length_s)} seconds."
        )
        whole = round(steps[0].length_s * 1e9) == model.window_ns
        merged = "" if whole else f" (windows added up: at most {time_series.MOST_BINS} steps)"
        above = f"<p class='quiet'>Steps of {number(steps[0].length_s)} s{merged}.</p>"
        below = values(table(time_series.LINE_HEADINGS, time_series.window_lines(steps, clock)))
        parts.append(picture(f"windows-{index}", f"{name}, {place}", alt, above, below))
    if len(found) > len(chosen):
        parts.append(f"<p class='quiet'>{plural(len(found) - len(chosen), 'more group')} not drawn.</p>")
    note = (
        "Smooth goodput charges a wait to the moment at which the reader waits; at the bottom, how many readers waited "
        "on average. Where smooth goodput falls below throughput, tokens are paid for with somebody's time. Goodput "
        "and attainment count a request where it ends, so that a step's goodput may exceed its throughput."
    )
    return f"<p>{note}</p>{''.join(parts)}"


def distributed(model: ReportModel, figures: dict[str, Figure]) -> str:
    """Return the cumulative curves of the requests, one chart a figure, one curve for each class and place."""
    requests = model.requests
    wanted = distributions.drawn_groups(requests)
    parts: list[str] = []
    for metric in CHARTS:
        found = distributions.curves(requests, metric.column, wanted)
        figure = distributions.distribution_figure(metric, found)
        if figure is None:
            continue
        figures[f"cdf-{metric.column}"] = figure
        lines = distributions.percentile_lines(requests, metric)
        alt = f"{metric.title}: share of the requests at or below each value, {plural(len(figure['data']), 'curve')}."
        above = f"<p class='quiet'>{text(metric.note)}</p>"
        below = values(table(distributions.PERCENTILE_HEADINGS, lines))
        parts.append(picture(f"cdf-{metric.column}", metric.title, alt, above, below))
    if not parts:
        return ""
    more = len(by_class(requests)) - len(wanted)
    cut = f"<p class='quiet'>{plural(more, 'smaller group')} not drawn; the tables have all.</p>" if more else ""
    note = (
        "The height of a curve is the share of the requests that have at most the value below it. Gaps between tokens "
        "(TBT) are drawn by three figures of each request, as rows hold no single gap. Requests without a value are "
        "left out of its curve; seconds are on a logarithmic axis, and values below it are at its left border."
    )
    names = key(f"{name}, {place}" for name, place in wanted)
    return f"<p>{note}</p>{names}{cut}<div class='pair'>{''.join(parts)}</div>"


def under_load(model: ReportModel, figures: dict[str, Figure]) -> str:
    """Return smooth goodput over requests in flight, one chart for each place of measurement."""
    if why := no_axis(model, of_all=True):
        return f"<p>{why}</p>"
    parts: list[str] = []
    for index, (place, requests, windows) in enumerate(_places(model)):
        found = load_curve.points(requests, windows, model.window_ns)
        bins = load_curve.load_bins(found)
        if not bins:
            continue
        conclusion = load_curve.conclusion(bins)
        if len(bins) == 1:
            parts.append(f"<p>Measured at {text(place)}: {text(conclusion)}</p>")
            continue
        figures[f"load-{index}"] = load_curve.load_figure(bins)
        alt = f"Smooth goodput, goodput and throughput over the requests in flight, measured at {place}. {conclusion}"
        unknown = f" {plural(found.without_end, 'request')} without a known end not among those in flight."
        above = f"<p>{text(conclusion, 1000)}</p>" + (f"<p class='quiet'>{unknown}</p>" if found.without_end else "")
        below = values(table(load_curve.BIN_HEADINGS, load_curve.bin_lines(bins)))
        parts.append(picture(f"load-{index}", f"Measured at {place}", alt, above, below))
    if not parts:
        return ""
    note = (
        f"Each window of {seconds(model.window_ns / 1e9)} of each instance is one point, all its classes together: "
        "how many requests were in flight in it on average, and its smooth goodput. Drawn are the means of bins of "
        "equal width. In flight, not sent per second, because under overload requests pile up at the same rate; "
        f"smooth goodput, because it is charged when it happens. The peak is the best bin of at least "
        f"{load_curve.ENOUGH} windows."
    )
    return f"<p>{note}</p>{''.join(parts)}"


def starved(model: ReportModel, figures: dict[str, Figure]) -> str:
    """Return the heat map of waiting by instance over time, one chart for each place of measurement."""
    if why := no_axis(model, of_all=False):
        return f"<p>{why}</p>"
    parts: list[str] = []
    clock = time_series.window_clock(model.windows)
    for index, (place, _, windows) in enumerate(_places(model)):
        if windows.empty:
            continue
        found = starving_map.starving(windows, model.window_ns)
        figures[f"starving-{index}"] = starving_map.starving_figure(found, clock)
        alt = (
            f"Idle seconds of readers by instance over time, measured at {place}: {plural(len(found.names), 'row')}, "
            f"steps of {seconds(found.step_ns / 1e9)}."
        )
        above = f"<p class='quiet'>Steps of {seconds(found.step_ns / 1e9)}.</p>"
        below = values(table(starving_map.HEADINGS, starving_map.instance_lines(found, clock), text_columns=(2,)))
        parts.append(picture(f"starving-{index}", f"Measured at {place}", alt, above, below))
    if not parts:
        return ""
    note = (
        "The seconds that readers had nothing to read, all classes together, in the step in which they waited and on "
        "the instance that kept them waiting. Empty: nothing was going on there."
    )
    return f"<p>{note}</p>{''.join(parts)}"


def as_tiers(model: ReportModel) -> str:
    """Return the attainment of each class's requests under the deadline of every class, side by side."""
    tiers = model.tiers
    if tiers is None or not tiers.counts:
        return ""
    lines = [
        (
            f"{name}, {place}",
            number(sum(one.requests for one in found.values()) // max(1, len(found))),
            *(share(found[tier].attainment) for tier in tiers.names),
        )
        for (place, name), found in tiers.by("measured_at", "slo_class").items()
    ]
    note = (
        "What share of each class's requests would have met the deadline of each class: a class that would meet a "
        "stricter one is served too well, or sold too cheaply; one that misses its own is sold what it does not get."
    )
    headings = ["Requests of", "Requests", *(f"as {printable(name)}" for name in tiers.names)]
    return f"<p>{note}</p>{table(headings, lines, caption='Attainment by deadline')}"


def classically(model: ReportModel) -> str:
    """Return the alarms of thresholds on TBT and TPOT for the same requests."""
    found = [one for one in classical.confusions(model.requests, model.classes) if one.judged]
    if not found:
        return ""
    pairs = [(tbt, tpot) for tbt, tpot in zip(found[::2], found[1::2], strict=True)]
    largest = sorted(pairs, key=lambda pair: -pair[0].judged)[:MOST_SQUARES]
    squares = "".join(_square(one) for pair in largest for one in pair)
    note = (
        "Both metrics speak of the time after the first token, so they are held against the waiting from there on "
        "(idle_decode_s above 0). The threshold is the class's own time for a further token: of its deadline where "
        "that has one, of its fluidity-index otherwise (50 ms where the file says nothing). An alarm of TBT: the "
        "99th percentile of the request's gaps is above it; of TPOT: their mean is."
    )
    counts = table(classical.HEADINGS, classical.lines(found), text_columns=(1,), caption="All classes, in requests")
    examples = classical.example_lines(found)
    listed = ""
    if examples:
        headings = ["Class, measured at", "Metric", "What it did", "Trace ids, the furthest off first"]
        listed = table(headings, examples, text_columns=(1, 2, 3), caption="Requests to look at")
        if len(examples) > MOST_EXAMPLES:
            listed = values(listed, "Requests to look at")
    lead = f"<p class='lead'>{text(classical.statement(found), 1000)}</p>"
    return f"{lead}<p>{note}</p><div class='pair keep'>{squares}</div>{counts}{listed}"


def _square(one: classical.Confusion) -> str:
    at = seconds(one.threshold_ns / 1e9)
    lines = [
        (f"above {at}", (one.warned, "warned rightly", "good"), (one.wolf, "cried wolf", "bad")),
        (f"within {at}", (one.hidden, "hid a wait", "bad"), (one.quiet, "rightly quiet", "good")),
    ]
    rows = "".join(
        f"<tr><th scope='row'>{text(where)}</th>{''.join(_cell(*cell, one.judged) for cell in cells)}</tr>"
        for where, *cells in lines
    )
    who = text(f"{one.name}, {one.place}")
    return (
        f"<table class='square'><caption>{who}: <strong>{text(one.metric)}</strong></caption>"
        "<thead><tr><th scope='col'></th><th scope='col'>reader waited</th><th scope='col'>no reader waited</th></tr>"
        f"</thead><tbody>{rows}</tbody></table>"
    )


def _cell(count: int, words: str, kind: str, judged: int) -> str:
    kind = kind if count else "quiet"
    return f"<td><strong class='{kind}'>{count:,}</strong> ({share(count / judged)})<br>{words}</td>"


def _places(model: ReportModel) -> list[tuple[str, pd.DataFrame, pd.DataFrame]]:
    """Return each place of measurement with its requests and windows: views of one request are never added up."""
    rows = {str(one[0]): at for (*one,), at in groups(model.requests, ("measured_at",))}
    found: list[tuple[str, pd.DataFrame, pd.DataFrame]] = []
    for one, at in groups(model.windows, ("measured_at",)):
        place = str(one[0])
        mine = rows.get(place)
        found.append((place, model.requests.iloc[[] if mine is None else mine], model.windows.iloc[at]))
    return found


_CUT_LEAD: Final = (
    "These replies completed, and their readers got no end of the text: the model reached its limit of tokens "
    "(length), or a filter stopped it (content_filter). No figure of waiting shows that. Raise the limit "
    "(max_tokens), or look at what is filtered; a rule can watch cut_share_5m."
)


def cut_replies(model: ReportModel) -> str:
    """Return the section on replies that were cut by their length or a content filter, "" if there are none."""
    reasons = model.requests["finish_reason"].fillna("").to_numpy(dtype=object)
    if not np.isin(reasons, list(CUT)).any():
        return ""
    lines = []
    for name, place, rows in by_class(model.requests):
        mine = reasons[rows]
        by_length, filtered = int((mine == LENGTH).sum()), int((mine == CONTENT_FILTER).sum())
        cut = share((by_length + filtered) / len(rows))
        lines.append((f"{name}, {place}", number(len(rows)), number(by_length), number(filtered), cut))
    headings = ["Class", "Requests", "Cut by length", "Cut by a content filter", "Of all"]
    return f"<p>{text(_CUT_LEAD, 1000)}</p>" + table(headings, lines)
