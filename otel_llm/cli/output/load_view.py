"""The live view of a load while it is sent."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from rich.live import Live
from rich.table import Table

from otel_llm.cli.output.terminal_console import SafeConsole
from otel_llm.shared.clock import monotonic_ns
from otel_llm.shared.formatting import number, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_llm.bench.live_figures import LiveSnapshot

EVERY_NS: Final = 250_000_000


@contextlib.contextmanager
def showing() -> Iterator[Callable[[Callable[[], LiveSnapshot]], None] | None]:
    """Give a function that shows a snapshot, made when it is time for one; None without a terminal."""
    console = SafeConsole(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        shown_ns = 0

        def show(snapshot: Callable[[], LiveSnapshot]) -> None:
            nonlocal shown_ns
            now_ns = monotonic_ns()
            if now_ns - shown_ns >= EVERY_NS:
                shown_ns = now_ns
                live.update(view(snapshot()), refresh=True)

        yield show


def view(now: LiveSnapshot) -> Table:
    """Return the view of one snapshot: one line of figures under their names."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("sent", "requests/s", "in flight", "waiting now", "ended", "failed", "TTFT", "time left"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row(
        f"{now.sent:,}",
        number(now.rate),
        f"{now.in_flight:,}",
        f"{now.waiting:,}",
        f"{now.ended:,}",
        f"{now.failed:,}",
        "-" if now.ttft_s is None else seconds(now.ttft_s),
        "-" if now.left_s is None else seconds(now.left_s),
    )
    return table
