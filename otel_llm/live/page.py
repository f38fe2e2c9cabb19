"""The live page: streams in flight and the last verdicts."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

PIECE_BYTES: Final = 65536
"""A long answer is written in pieces of this size, each when the last was read."""
PAGE_HEADERS: Final = {
    # The page is HTML with inline style: no script, no frame, no resource of another site.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""The headers of every answer of the web port."""
PAGE_REFRESH_S = 2
_STREAM_COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("class", "slo_class", str),
    ("model", "model", str),
    ("tokens", "tokens", str),
    ("age s", "age_s", lambda value: f"{value:.1f}"),
    ("idle s", "idle_s", lambda value: f"{value:.2f}"),
    ("runway s", "runway_s", lambda value: f"{value:.1f}"),
    ("state", "state", str),
    ("trace", "trace_id", str),
)
_ROW_COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("met", "met", lambda value: {True: "met", False: "MISSED", None: "cannot say"}[value]),
    ("class", "slo_class", str),
    ("model", "model", lambda value: value or "-"),
    ("outcome", "outcome", str),
    ("tokens", "tokens", lambda value: "-" if value is None else str(value)),
    ("TTFT s", "ttft_s", lambda value: "-" if value is None else f"{value:.3f}"),
    ("idle s", "idle_s", lambda value: "-" if value is None else f"{value:.3f}"),
    ("fluidity", "fluidity_index", lambda value: "-" if value is None else f"{value:.3f}"),
    ("trace", "trace_id", str),
)
_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2rem;color:#1c2430;background:#fff}"
    "table{border-collapse:collapse;margin:.5rem 0 2rem}td,th{padding:.15rem .8rem .15rem 0;text-align:left}"
    "td{font-variant-numeric:tabular-nums}.bad{color:#b3261e;font-weight:600}"
    "@media(prefers-color-scheme:dark){body{color:#e4e8ee;background:#14181f}.bad{color:#ff8a80}}"
)


def page(snapshot: dict[str, Any], links: Mapping[str, str]) -> str:
    """Return the page for a snapshot of `/v1/streams`, with telemetry escaped; `links`: paths by text."""
    rows = list(reversed(snapshot["recent"]))
    streams = [{**row, "state": _state(row)} for row in snapshot["streams"]]
    linked = " · ".join(f"<a href={path}>{text}</a>" for text, path in links.items())
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        f"<meta http-equiv=refresh content={PAGE_REFRESH_S}><title>otel-llm</title><style>{_STYLE}</style></head><body>"
        f"<h1>{snapshot['in_flight']} streams in flight, {snapshot['starving']} readers waiting</h1>"
        f"<p>{snapshot['judged']} judged. {linked}</p>"
        f"<h2>In flight, closest to starving first</h2>{_table(_STREAM_COLUMNS, streams, _starving)}"
        f"<h2>Last verdicts</h2>{_table(_ROW_COLUMNS, rows, lambda row: row['met'] is False)}</body></html>"
    )


def _state(row: dict[str, Any]) -> str:
    """Return the state of a stream in words: queued or paused by a relay, its reader waiting."""
    words = (("queued", row.get("queued")), ("paused", row.get("paused")), ("waiting", _starving(row)))
    return ", ".join(word for word, holds in words if holds)


def _starving(row: dict[str, Any]) -> bool:
    return bool(row["runway_s"] < 0)


def _table(
    columns: Iterable[tuple[str, str, Callable[[Any], str]]],
    rows: Iterable[dict[str, Any]],
    bad: Callable[[dict[str, Any]], bool],
) -> str:
    columns = tuple(columns)
    head = "".join(f"<th scope=col>{html.escape(title)}</th>" for title, _, _ in columns)
    body = "".join(
        f"<tr{' class=bad' if bad(row) else ''}>"
        + "".join(f"<td>{html.escape(write(row[name]))}</td>" for _, name, write in columns)
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
