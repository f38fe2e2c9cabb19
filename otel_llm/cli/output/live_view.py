"""The live terminal view: streams in flight, waiting readers, the last verdicts."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from otel_llm.shared.printable import printable

SHOWN_STREAMS = 16
SHOWN_ROWS = 8
LONGEST_NAME = 48
BAR = 20
BAR_S = 10.0
"""The runway, in seconds, at which the bar is full."""


def view(snapshot: dict[str, Any], *, steady: bool = True) -> Group:
    """Return the view of one snapshot of `/v1/streams`; `steady`: of constant height."""
    streams, rows = snapshot["streams"], snapshot["recent"]
    table = Table(expand=False, box=None, pad_edge=False)
    for name, side in (("stream", "left"), ("tokens", "right"), ("1st text", "right"), ("idle", "right")):
        table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("runway: unread text, in seconds of reading", no_wrap=True)
    for one in streams[:SHOWN_STREAMS]:
        table.add_row(
            _stream(one),
            text(one["tokens"]),
            seconds(one["ttfo_s"]),
            Text(seconds(one["idle_s"]), style="red" if one["idle_s"] > 0 else ""),
            runway_bar(one["runway_s"]) + Text(held(one), style="cyan"),
        )
    for _ in range(SHOWN_STREAMS - len(streams) if steady else 0):
        table.add_row("", "", "", "", "")
    fired = snapshot.get("decisions", [])
    head = text(
        f"{snapshot['in_flight']} in flight, {snapshot['starving']} waiting, {snapshot['judged']} judged, "
        f"{len(fired)} decisions"
    )
    head.stylize("bold")
    judged = (Text("judged:", style="bold"), verdicts(rows[-SHOWN_ROWS:])) if rows or steady else ()
    return Group(head, table, *judged)


def verdicts(rows: list[dict[str, Any]]) -> Table:
    """Return a line for each verdict."""
    done = Table(expand=False, box=None, pad_edge=False, show_header=False)
    for row in rows:
        done.add_row(
            _verdict(row["met"]),
            _stream(row),
            text(row["outcome"]),
            text(f"{row['tokens']} tokens"),
            f"first text {seconds(row['ttfo_s'])}",
            f"idle {seconds(row['idle_s'])}",
            f"fluidity {share(row['fluidity_index'])}",
        )
    return done


def held(row: dict[str, Any]) -> str:
    """Return how a relay holds a stream: paused, or queued before its first backend."""
    return " paused" if row.get("paused") else " queued" if row.get("queued") else ""


def _stream(row: dict[str, Any]) -> Text:
    return text(f"{printable(row['model'] or row['slo_class'], LONGEST_NAME)} {row['trace_id'][:6]}")


def text(value: object) -> Text:
    """Return a value as text of one line, escaped."""
    return Text(printable(str(value)))


def runway_bar(runway_s: float) -> Text:
    """Return a runway (s) as a bar, or how long the reader waits."""
    if runway_s < 0:
        return Text(f"waiting for {-runway_s:.1f} s", style="bold red")
    full = min(BAR, round(runway_s / BAR_S * BAR))
    return Text("█" * full + "·" * (BAR - full) + f" {runway_s:.1f}", style="green" if runway_s > 1 else "yellow")


def _verdict(met: bool | None) -> Text:
    if met is None:
        return Text("unsaid", style="dim")
    return Text("met", style="green") if met else Text("MISSED", style="bold red")


def seconds(value: float | None) -> str:
    """Return seconds with two decimals; a dash for None."""
    return "-" if value is None else f"{value:.2f}"


def share(value: float | None) -> str:
    """Return a share of 1 with three decimals; a dash for None."""
    return "-" if value is None else f"{value:.3f}"
