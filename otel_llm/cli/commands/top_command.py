"""`otel-llm top`: the live view of a running collector or relay."""

from __future__ import annotations

import signal
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from otel_llm.cli.option_types import KnownRange
from otel_llm.cli.output.echo import echo
from otel_llm.cli.output.keys import END, pressed_keys
from otel_llm.cli.output.live_view import held, runway_bar, seconds, share, text, verdicts, view
from otel_llm.cli.output.terminal_console import WIDTH, SafeConsole, wide_console
from otel_llm.cli.web_client import Source, UnreachableError, WebClientError
from otel_llm.config.secret_files import exposed
from otel_llm.config.yaml_file import ConfigError
from otel_llm.live.selection import SORTS, row_key
from otel_llm.shared.clock import monotonic_s
from otel_llm.shared.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType


FILTERS: Final = {"c": "slo_class", "m": "model", "i": "instance"}
"""The keys that filter, and the names that they filter by."""
KEYS: Final = "↑↓ select  Enter open  Esc close  s sort  c class  m model  i instance  x all  q quit"
_NAMES: Final = {"slo_class": "slo_classes", "model": "models", "instance": "instances"}
_AROUND: Final = 12
"""The lines of a screen beside the streams: head, columns, verdicts or details, keys."""
_LEAST_ROWS: Final = 5
_WIDE: Final = 120
"""The columns of a terminal from which on the table has its longest head; names get what the numbers leave."""
_PAGE: Final = 10
_VERDICTS: Final = 6
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_GRAPH: Final = 60
_LONGEST_NAME: Final = 24
_LONGEST_LINE: Final = 200


@dataclass(slots=True)
class Screen:
    """What is selected, and the last snapshot; `press` and `show` change it, `draw` shows it."""

    sort: str = SORTS[0]
    names: dict[str, str] = field(default_factory=dict)
    """The wanted names, by filter."""
    selected: str | None = None
    opened: str | None = None
    problem: str | None = None
    """Why there is no newer snapshot; None if there is."""
    snapshot: dict[str, Any] = field(default_factory=dict)

    def query(self) -> dict[str, str]:
        """Return the parameters of `/v1/streams`."""
        stream = {} if self.opened is None else {"stream": self.opened}
        return {"sort": self.sort, **self.names, **stream}

    def show(self, snapshot: dict[str, Any]) -> None:
        """Take a snapshot of `/v1/streams`; the selection follows its stream, or stays in its place."""
        before = self._keys()
        place = before.index(self.selected) if self.selected in before else 0
        self.snapshot, self.problem = snapshot, None
        keys = self._keys()
        if self.selected not in keys:
            self.selected = keys[min(place, len(keys) - 1)] if keys else None

    def lost(self, problem: str) -> None:
        """Note that there is no newer snapshot, and why; the last one stays."""
        self.problem = problem

    def press(self, key: str) -> bool:
        """Do what a key does; return False for the end."""
        if key == "enter":
            self.opened = self.selected
        elif key == "escape":
            self.opened = None
        elif key == "s":
            self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        elif key in FILTERS:
            self._next_name(FILTERS[key])
        elif key == "x":
            self.names.clear()
        else:
            self._move(key)
        return key != END

    def draw(self, height: int, width: int) -> RenderableType:
        """Return the screen for a terminal with this number of lines and columns."""
        rows = max(_LEAST_ROWS, height - _AROUND)
        parts: list[RenderableType] = [self._head(), self._table(rows, wide=width >= _WIDE)]
        if self.opened is None:
            parts += [Text("judged:", style="bold"), verdicts(self.snapshot["recent"][-_VERDICTS:])]
        else:
            parts += self._details()
        return Group(*parts, Text(KEYS, style="dim"))

    def _keys(self) -> list[str]:
        return [row_key(row) for row in self.snapshot.get("streams", ())]

    def _move(self, key: str) -> None:
        keys = self._keys()
        at = keys.index(self.selected) if self.selected in keys else 0
        places = {
            "up": at - 1,
            "down": at + 1,
            "page up": at - _PAGE,
            "page down": at + _PAGE,
            "home": 0,
            "end": len(keys),
        }
        if key in places and keys:
            self.selected = keys[min(max(0, places[key]), len(keys) - 1)]

    def _next_name(self, name: str) -> None:
        """Filter by the next of the names in flight; after the last by none."""
        known = list(self.snapshot.get(_NAMES[name], ()))
        now = self.names.pop(name, None)
        after = known if now is None else known[known.index(now) + 1 :] if now in known else []
        if after:
            self.names[name] = after[0]

    def _head(self) -> Text:
        snapshot = self.snapshot
        wanted = "".join(f", {name} {printable(value, _LONGEST_NAME)}" for name, value in self.names.items())
        head = Text(
            f"{snapshot['in_flight']} in flight, {snapshot['starving']} waiting, {snapshot['judged']} judged, "
            f"{len(snapshot['decisions'])} decisions; {snapshot['matching']} by {self.sort}{wanted}",
            style="bold",
        )
        if self.problem is not None:
            head.append(f"\n{printable(self.problem, _LONGEST_LINE)}", style="bold red")
        return head

    def _table(self, rows: int, *, wide: bool) -> Table:
        table = Table(expand=False, box=None, pad_edge=False)
        table.add_column("", no_wrap=True)
        for name in ("class", "model", "instance"):
            table.add_column(Text(name, no_wrap=True, overflow="ellipsis"))  # rich narrows columns that may wrap
        for name, side in (("trace", "left"), ("tokens", "right"), ("age", "right"), ("idle", "right")):
            table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
        table.add_column("runway: unread text, in seconds of reading" if wide else "runway, s", no_wrap=True)
        streams, keys = self.snapshot["streams"], self._keys()
        at = keys.index(self.selected) if self.selected in keys else 0
        first = max(0, min(at - rows // 2, len(streams) - rows))
        for one, key in list(zip(streams, keys, strict=True))[first : first + rows]:
            table.add_row(
                "›" if key == self.selected else "",
                *(_name(one[name]) for name in ("slo_class", "model", "instance")),
                one["trace_id"][:6],
                text(one["tokens"]),
                f"{one['age_s']:.1f}",
                Text(seconds(one["idle_s"]), style="red" if one["idle_s"] > 0 else ""),
                runway_bar(one["runway_s"]) + Text(held(one), style="cyan"),
                style="reverse" if key == self.selected else "",
            )
        return table

    def _details(self) -> list[RenderableType]:
        """Return the facts of the open stream and its buffer over its life, or its verdict."""
        followed = self.snapshot.get("followed")
        if followed is not None:
            return [_facts(followed)]
        judged = [row for row in self.snapshot["recent"] if row["choice"] is not None and row_key(row) == self.opened]
        return [Text("the stream is no longer in flight", style="bold"), *([verdicts(judged)] if judged else ())]


def _name(value: str) -> Text:
    return Text(printable(value or None, _LONGEST_NAME), no_wrap=True, overflow="ellipsis")


def _facts(followed: dict[str, Any]) -> Table:
    row, table = followed["row"], Table(expand=False, box=None, pad_edge=False, show_header=False)
    names = (row[name] or None for name in ("slo_class", "model", "instance", "measured_at"))
    facts = {
        "trace": f"{row['trace_id']} span {row['span_id']} choice {row['choice']}",
        "of": " · ".join(printable(one, _LONGEST_NAME) for one in names),
        "tokens": f"{row['tokens']}, {row['tokens_read']} for the reader",
        "times": f"first text {seconds(row['ttfo_s'])}, TTFT {seconds(row['ttft_s'])}, gap {seconds(row['gap_s'])}, "
        f"idle {seconds(row['idle_s'])} s",
        "fluidity": share(row["fluidity_index"]),
        "rules": ", ".join(row["rules"]) or "none fires",
        "buffer": buffer_line(followed["curve"], row["age_s"]),
    }
    for name, value in facts.items():
        table.add_row(Text(name, style="dim"), Text(printable(value, _LONGEST_LINE)))
    return table


def buffer_line(curve: dict[str, Any], age_s: float, width: int = _GRAPH) -> str:
    """Return how full the buffer was from the request to now, in `width` blocks; · if it was empty."""
    levels = []
    for part in range(width):
        instant_s = age_s * (part + 1) / width
        delivered = bisect_right(curve["delivered_s"], instant_s)
        read = bisect_right(curve["read_s"], instant_s)
        levels.append((curve["n"][delivered - 1] if delivered else 0) - (curve["n"][read - 1] if read else 0))
    most = max([1, *levels])
    blocks = (_BLOCKS[max(1, round(level / most * 8))] if level > 0 else "·" for level in levels)
    return f"{''.join(blocks)} {most} at most"


@click.command()
@click.argument("url", default="http://127.0.0.1:9464")
@click.option("--every", "every_s", type=KnownRange(0.1, 60), default=0.25, show_default=True, help="Seconds.")
@click.option("--once", is_flag=True, help="Print one view and exit.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="File with a bearer token of the collector (auth); its own tokens file will do.",
)
@click.option(
    "--ca",
    type=click.Path(path_type=Path),
    help="PEM file of the authority of the collector's certificate. [default: those this machine trusts]",
)
def top(url: str, every_s: float, once: bool, token_file: Path | None, ca: Path | None) -> None:
    """Watch the streams in flight of the collector or relay at URL (its web port), closest to starving first.

    Keys: arrows select, Enter opens a stream, Escape closes it; s sorts (runway, idle, age, tokens); c, m, i filter by
    class, model, instance, x shows all again; q ends. A collector that restarts is shown again when it is back.
    docs/glossary.md explains the terms.

    \b
    Examples:
      otel-llm top http://127.0.0.1:9464
      otel-llm top http://127.0.0.1:9465             # the relay's
      otel-llm top https://collector.example:9464 --token-file token.txt --ca ca.pem
    """
    try:
        source = Source(url, token_file=token_file, ca=ca)
        first = source.streams()
    except UnreachableError as problem:
        raise click.UsageError(f"{problem}; start one: otel-llm collect, or otel-llm relay") from problem
    except (WebClientError, ConfigError, ValueError) as problem:
        raise click.UsageError(str(problem)) from problem
    warning = None if token_file is None else exposed(token_file)
    if warning is not None:
        echo(f"warning: {warning}", err=True)
    console = SafeConsole()
    if once:
        wide_console(max(WIDTH, console.width)).print(view(first, steady=console.is_terminal))
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends it as Ctrl-C does: the terminal is restored
    try:
        _watch(source, console, first, every_s)
    except KeyboardInterrupt:
        return


def _watch(source: Source, console: SafeConsole, first: dict[str, Any], every_s: float) -> None:
    """Show the streams until the key for the end; a service that does not answer is asked again."""
    screen = Screen()
    screen.show(first)
    due_s = monotonic_s() + every_s
    with pressed_keys() as read, Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            live.update(screen.draw(console.height, console.width), refresh=True)
            asked = screen.query()
            if not all(screen.press(key) for key in read(max(0.0, due_s - monotonic_s()))):
                return
            if screen.query() == asked and monotonic_s() < due_s:
                continue  # at most the selection has moved
            due_s = monotonic_s() + every_s
            try:
                screen.show(source.streams(screen.query()))
            except WebClientError as problem:
                screen.lost(f"{problem}; asking again")
