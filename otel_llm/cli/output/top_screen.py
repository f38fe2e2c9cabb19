"""The screen of `otel-llm top`: its state, what its keys do, what it shows; without terminal and network."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from otel_llm.cli.output.keys import END
from otel_llm.cli.output.live_view import held, runway_bar, seconds, share, text, verdicts
from otel_llm.live.selection import SORTS, row_key
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
    """Why there is no newer snapshot; None where there is."""
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
        """Return the screen for a terminal of so many lines and columns."""
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
    """Return how full the buffer was from the request to now, in `width` blocks; · where it was empty."""
    levels = []
    for part in range(width):
        instant_s = age_s * (part + 1) / width
        delivered = bisect_right(curve["delivered_s"], instant_s)
        read = bisect_right(curve["read_s"], instant_s)
        levels.append((curve["n"][delivered - 1] if delivered else 0) - (curve["n"][read - 1] if read else 0))
    most = max([1, *levels])
    blocks = (_BLOCKS[max(1, round(level / most * 8))] if level > 0 else "·" for level in levels)
    return f"{''.join(blocks)} {most} at most"
