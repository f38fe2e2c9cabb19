"""The HTML report: the summary, what it rests on, the windows over time and the deliveries of the worst requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_llm.audit import coverage, digest, honesty, objectives, worst
from otel_llm.audit.overtime import MOST_BINS, bins, windows_figure
from otel_llm.audit.page import facts, page, picture, table, text
from otel_llm.audit.pictures import MOST_SHADES, Figure, timeline_figure
from otel_llm.audit.timeline import build
from otel_llm.audit.words import MISSING, instant, number, plural, printable, seconds, share, truth
from otel_llm.slo.request import arrivals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.audit.result import Audit, Judged

MOST_WINDOW_PICTURES: Final = 8
MOST_STALL_ROWS: Final = 20
_WHY: Final = {"idle": "Among the longest idle times.", "fluidity": "Among the lowest fluidity-indexes."}
_STATES: Final = {"met": "good", "missed": "bad", "no data": "quiet"}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A request to be drawn: its position among the rows, the title and the words above its picture.

    `until_ns` since its commit is where the picture ends, shortly after the delivery where it is None.
    """

    position: int
    title: str
    note: str = ""
    until_ns: int | None = None


def render(audit: Audit, *, title: str = "What the readers felt") -> str:
    """Return the report as one page. The same input gives the same bytes."""
    figures: dict[str, Figure] = {}
    parts = [
        _head(audit, title),
        _summary(audit),
        _coverage(audit),
        _over_time(audit, figures),
        _deliveries(audit, _worst(audit), "The worst deliveries", worst.CHOICE_RULE, figures),
        honesty.section(),
    ]
    return page(title, "\n".join(part for part in parts if part), figures)


def render_deliveries(audit: Audit, chosen: Sequence[Chosen], *, title: str, lead: str = "") -> str:
    """Return a page of chosen deliveries alone, as the report draws them.

    Raises:
        ValueError: one of them is incomplete and cannot be drawn.
    """
    figures: dict[str, Figure] = {}
    words = f"<p class='lead'>{text(lead, 2000)}</p>" if lead else ""
    body = _deliveries(audit, chosen, "", "", figures)
    return page(title, f"<header><h1>{text(title)}</h1>{words}</header>\n{body}", figures)


def _head(audit: Audit, title: str) -> str:
    summary = audit.summary()
    rows = audit.rows
    starts = [start for row in rows if isinstance(start := row["start_unix_nano"], int)]
    waited = sum(isinstance(idle := row["idle_s"], float) and idle > 0 for row in rows)
    judged = sum(row["idle_s"] is not None for row in rows)
    when = f" The first was sent at {instant(min(starts))} UTC." if starts else ""
    span = f" within {seconds(summary['span_s'])}" if summary["span_s"] else ""
    lead = (
        f"{plural(summary['requests'], 'request')} with {plural(summary['tokens'], 'token')}{span}. "
        f"In {waited:,} of the {judged:,} that could be judged, the reader ran out of text and had to wait.{when}"
    )
    names = ", ".join(f"<code>{text(name)}</code>" for name in audit.inputs)
    read = f"<p class='quiet'>Read from {names}.</p>"
    return f"<header><h1>{text(title)}</h1><p class='lead'>{text(lead)}</p>{read}</header>"


def _summary(audit: Audit) -> str:
    classes: dict[str, Any] = audit.summary()["classes"]
    if not classes:
        return "<section><h2>Summary</h2><p>No request was found.</p></section>"
    headings = ["", *(f"{printable(name)}, {place}" for name, place in digest.groups(classes))]
    block = table(headings, digest.lines(classes), caption="By SLO class and by where the times were taken")
    checks = objectives.check(audit.rows, audit.classes)
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
        block += table(headings, lines, caption="What the classes promise", words=(1, 5), marks=_STATES)
    return f"<section><h2>Summary</h2>{block}</section>"


def _coverage(audit: Audit) -> str:
    sentence = coverage.statement(audit.rows, audit.skipped.counts, audit.counts)
    found = [(what, number(count)) for what, count in coverage.details(audit.skipped.counts, audit.counts)]
    counted = table(["Counted", "Number"], found) if found else ""
    return f"<section class='keep'><h2>What this rests on</h2><p>{text(sentence)}</p>{counted}</section>"


def _over_time(audit: Audit, figures: dict[str, Figure]) -> str:
    groups: dict[tuple[str, str], list[Any]] = {}
    for row in audit.window_rows:
        groups.setdefault((str(row["slo_class"]), str(row["measured_at"])), []).append(row)
    if not groups:
        return ""
    parts: list[str] = []
    for index, ((name, place), rows) in enumerate(sorted(groups.items())):
        if index == MOST_WINDOW_PICTURES:
            parts.append(f"<p class='quiet'>{plural(len(groups) - index, 'more group')} not drawn.</p>")
            break
        found = bins(rows)
        figures[f"windows-{index}"] = windows_figure(found)
        alt = (
            f"Throughput, goodput and smooth goodput in tokens per second, and readers waiting, for class {name} "
            f"measured at {place}, in {plural(len(found), 'step')} of {number(found[0].length_s)} seconds."
        )
        merged = "" if found[0].length_s * 1e9 == audit.window_ns else f" (windows added up: at most {MOST_BINS} steps)"
        above = f"<p class='quiet'>Steps of {number(found[0].length_s)} s{merged}.</p>"
        parts.append(picture(f"windows-{index}", f"{name}, {place}", alt, above, _window_table(found)))
    note = (
        "Smooth goodput charges a wait to the moment at which the reader waits; below it, how many readers waited on "
        "average. Where smooth goodput falls below throughput, tokens are paid for with somebody's time. Goodput "
        "counts a request where it ends, so that a step's goodput may exceed its throughput."
    )
    return f"<section><h2>Over time</h2><p>{note}</p>{''.join(parts)}</section>"


def _window_table(found: Sequence[Any]) -> str:
    rows = [
        (
            instant(one.start_unix_nano),
            number(one.rate("throughput_tok_s")),
            number(one.rate("goodput_tok_s")),
            number(one.rate("smooth_goodput_tok_s")),
            number(one.rate("idle_s_sum")),
            number(int(one.sums["requests_ended"])),
            share(one.attainment),
        )
        for one in found
    ]
    headings = ["Start, UTC", "Throughput", "Goodput", "Smooth goodput", "Readers waiting", "Ended", "Attainment"]
    return f"<details><summary>The values</summary>{table(headings, rows)}</details>"


def _worst(audit: Audit) -> list[Chosen]:
    rows = audit.rows
    return [Chosen(one.position, _title(rows[one.position]), _WHY[one.why]) for one in worst.choose(rows)]


def _title(row: Any) -> str:
    tokens, fluidity = plural(row["tokens_read"], "token"), number(row["fluidity_index"])
    return f"{tokens}, {seconds(row['idle_s'])} idle, fluidity {fluidity}"


def _deliveries(audit: Audit, chosen: Sequence[Chosen], heading: str, rule: str, figures: dict[str, Figure]) -> str:
    title = f"<h2>{text(heading)}</h2>" if heading else ""
    if not chosen:
        return f"<section>{title}<p>Nobody waited, and no token deadline was missed.</p></section>"
    parts = [_delivery(f"delivery-{i}", audit.judged[one.position], one, figures) for i, one in enumerate(chosen)]
    how = (
        "Each step is a token that arrived. The reader climbs at reading speed and lies flat where there is nothing "
        "left to read: there it touches the delivery. Shaded: the waits, which add up to the idle time."
    )
    choice = f"<p class='quiet'>{text(rule)}</p>" if rule else ""
    return f"<section>{title}<p>{how}</p>{choice}{''.join(parts)}</section>"


def _delivery(name: str, judged: Judged, chosen: Chosen, figures: dict[str, Figure]) -> str:
    row, slo, assembled = judged.row, judged.slo, judged.assembled
    resolved = assembled.resolved
    if not resolved.complete or resolved.commit_ns is None:
        raise ValueError(f"the request at position {chosen.position} cannot be drawn: it is incomplete")
    seen = arrivals(assembled.times_ns, resolved.commit_ns, assembled.kinds, slo.reads)
    last_ns = seen.every[-1] if seen.every else 0
    end_ns = max((resolved.end_ns or resolved.commit_ns) - resolved.commit_ns, last_ns)
    timeline = build(seen.read, end_ns, resolved.outcome, slo)
    figures[name] = timeline_figure(timeline, slo, until_ns=chosen.until_ns)
    stalls = timeline.stalls
    unread = len(seen.every) - len(seen.read)
    values = facts(
        [
            ("outcome", row["outcome"]),
            ("tokens", number(len(seen.every)) + (f" ({unread:,} not read)" if unread else "")),
            ("TTFT", _cell(row["ttft_s"], seconds)),
            ("longest gap", _cell(row["tbt_max_s"], seconds)),
            ("TPOT", _cell(row["tpot_s"], seconds)),
            ("idle", _cell(row["idle_s"], seconds)),
            ("idle while reading", _cell(row["idle_decode_s"], seconds)),
            ("stalls", _cell(row["stalls"], number)),
            ("fluidity", _cell(row["fluidity_index"], number)),
            ("met", truth(row["met"] if isinstance(row["met"], bool) else None)),
            ("benefit", _cell(row["benefit"], number)),
        ]
    )
    who = " · ".join(
        text(f"{what} {row[column]}", 120)
        for what, column in (
            ("class", "slo_class"),
            ("model", "model"),
            ("instance", "instance"),
            ("measured at", "measured_at"),
        )
        if row[column] is not None
    )
    trace = f"trace <code>{text(row['trace_id'])}</code>, span <code>{text(row['span_id'])}</code>"
    note = f"<p>{text(chosen.note, 1000)}</p>" if chosen.note else ""
    alt = (
        f"Tokens over time: {plural(len(seen.read), 'token')} delivered in {seconds(timeline.horizon_ns / 1e9)} to a "
        f"reader of {number(1e9 / slo.pace_ns)} tokens per second, who waited {seconds(timeline.idle_ns / 1e9)} in "
        f"{plural(len(stalls), 'stall')}."
    )
    below = ""
    if stalls:
        lines = [
            (index + 1, seconds(one.start_ns / 1e9), seconds(one.end_ns / 1e9), seconds(one.waited_ns / 1e9))
            for index, one in enumerate(stalls[:MOST_STALL_ROWS])
        ]
        cut = (
            f"<p class='quiet'>{plural(len(stalls) - len(lines), 'more')} not listed.</p>"
            if stalls[len(lines) :]
            else ""
        )
        shaded = f" The {MOST_SHADES} longest are shaded." if len(stalls) > MOST_SHADES else ""
        inner = table(["Stall", "from", "to", "waited"], lines, caption=f"Since the request was sent.{shaded}")
        below = f"<details><summary>{plural(len(stalls), 'stall')}</summary>{inner}{cut}</details>"
    return picture(name, chosen.title, alt, f"{note}<p class='who'>{who} · {trace}</p>{values}", below)


def _cell(value: Any, write: Any) -> str:
    return MISSING if value is None else str(write(value))
