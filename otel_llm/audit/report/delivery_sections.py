"""The deliveries of chosen requests: tokens over time with the reader, the stalls, and every figure of the request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_llm.audit.report import classical
from otel_llm.audit.report.charts.delivery_chart import MOST_SHADES, Figure, timeline_figure
from otel_llm.audit.report.charts.timeline import build
from otel_llm.audit.report.html_page import facts, picture, table, text
from otel_llm.audit.summary_figures import cell
from otel_llm.shared.formatting import number, plural, seconds
from otel_llm.shared.printable import MISSING
from otel_llm.slo.metrics import BY_NAME, STATED
from otel_llm.slo.request import arrivals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.audit.report.charts.timeline import Timeline
    from otel_llm.audit.report.report_model import ReportModel
    from otel_llm.formats.assemble.resolved import Assembled
    from otel_llm.formats.rows import Row
    from otel_llm.slo.classes import SloClass

MOST_STALL_ROWS: Final = 20
HOW: Final = (
    "Each step is a token that arrived. The reader climbs at reading speed and lies flat where there is nothing "
    "left to read: there it touches the delivery. Shaded: the waits, which add up to the idle time."
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A request to draw: its position among the rows, the title and the text above its chart.

    `until_ns` since its commit is where the chart ends; None: shortly after the delivery.
    """

    position: int
    title: str
    note: str = ""
    until_ns: int | None = None


def deliveries(model: ReportModel, chosen: Sequence[Chosen], figures: dict[str, Figure]) -> str:
    """Return the charts of chosen requests as markup, and add the figures to `figures`.

    Raises:
        ValueError: one of them is incomplete and cannot be drawn.
    """
    parts: list[str] = []
    missing = 0
    for index, one in enumerate(chosen):
        stream = model.delivery(one.position)
        if stream is None:
            missing += 1
            continue
        row = model.row(one.position)
        slo = model.classes.get(str(row["slo_class"]))
        parts.append(_delivery(f"delivery-{index}", row, slo, stream, one, figures))
    if missing and not model.undrawn:
        parts.append(f"<p class='quiet'>{plural(missing, 'request')} not drawn: their token times are not at hand.</p>")
    how = f"<p>{HOW}</p>" if missing < len(chosen) else ""
    return how + "".join(parts)


def _delivery(name: str, row: Row, slo: SloClass, stream: Assembled, chosen: Chosen, figures: dict[str, Figure]) -> str:
    resolved = stream.resolved
    if not resolved.complete or resolved.commit_ns is None:
        raise ValueError(f"the request at position {chosen.position} cannot be drawn: it is incomplete")
    times_ns, kinds = stream.events.expanded()
    seen = arrivals(times_ns, resolved.commit_ns, kinds, slo.reads)
    last_ns = seen.every[-1] if seen.every else 0
    end_ns = max((resolved.end_ns or resolved.commit_ns) - resolved.commit_ns, last_ns)
    timeline = build(seen.read, end_ns, resolved.outcome, slo)
    figures[name] = timeline_figure(timeline, slo, until_ns=chosen.until_ns)
    stalls = timeline.stalls
    trace = f"trace <code>{text(row['trace_id'])}</code>, span <code>{text(row['span_id'])}</code>"
    note = f"<p>{text(chosen.note, 1000)}</p>" if chosen.note else ""
    alt = (
        f"Tokens over time: {plural(len(seen.read), 'token')} delivered in {seconds(timeline.horizon_ns / 1e9)} to a "
        f"reader of {number(1e9 / slo.pace_ns)} tokens per second, who waited {seconds(timeline.idle_ns / 1e9)} in "
        f"{plural(len(stalls), 'stall')}."
    )
    values = _facts(row, slo, len(seen.every), len(seen.every) - len(seen.read))
    return picture(
        name, chosen.title, alt, f"{note}<p class='who'>{_who(row)} · {trace}</p>{values}", _stalls(timeline)
    )


def _facts(row: Row, slo: SloClass, tokens: int, unread: int) -> str:
    gaps: list[tuple[str, object]] = [("TBT p99", _cell(row["tbt_p99_s"], lambda value: classical.verdict(value, slo)))]
    if row["tbt_max_s"] != row["tbt_p99_s"]:
        gaps.insert(0, ("longest gap", _cell(row["tbt_max_s"], seconds)))
    return facts(
        [
            ("outcome", row["outcome"]),
            *_stated(row),
            ("tokens", number(tokens) + (f" ({unread:,} not read)" if unread else "")),
            *_labelled(row, ("ttfo_s", "ttft_s")),
            *gaps,
            ("TPOT", _cell(row["tpot_s"], lambda value: classical.verdict(value, slo))),
            *_labelled(row, ("idle_s", "idle_decode_s", "stalls", "fluidity_index", "met", "benefit")),
        ]
    )


def _stated(row: Row) -> list[tuple[str, object]]:
    """Return what the recording says of the prompt and of the engine, as far as it says it."""
    names = [name for name in STATED if BY_NAME[name].label and row[name] is not None]
    return _labelled(row, names)


def _labelled(row: Row, columns: Sequence[str]) -> list[tuple[str, object]]:
    return [(BY_NAME[name].label, cell(row, name)) for name in columns]


def _who(row: Row) -> str:
    return " · ".join(
        text(f"{what} {row[column]}", 120)
        for what, column in (
            ("class", "slo_class"),
            ("model", "model"),
            ("instance", "instance"),
            ("measured at", "measured_at"),
        )
        if row[column] is not None
    )


def _stalls(timeline: Timeline) -> str:
    stalls = timeline.stalls
    if not stalls:
        return ""
    lines = [
        (index + 1, seconds(one.start_ns / 1e9), seconds(one.end_ns / 1e9), seconds(one.waited_ns / 1e9))
        for index, one in enumerate(stalls[:MOST_STALL_ROWS])
    ]
    more = len(stalls) - len(lines)
    cut = f"<p class='quiet'>{plural(more, 'more')} not listed.</p>" if more else ""
    shaded = f" The {MOST_SHADES} longest waits are shaded." if len(timeline.waits) > MOST_SHADES else ""
    inner = table(["Stall", "from", "to", "waited"], lines, caption=f"Since the request was sent.{shaded}")
    return f"<details><summary>{plural(len(stalls), 'stall')}</summary>{inner}{cut}</details>"


def _cell(value: Any, write: Any) -> str:
    return MISSING if value is None else str(write(value))
