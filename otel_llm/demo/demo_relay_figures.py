"""The measurements of the relay's demo: the readers' waits by the audit's arithmetic, side by side."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_llm.shared.formatting import seconds, share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from otel_llm.demo.demo_readers import Reply

WAITED_S: Final = 0.1
"""A shorter wait is not noticed (Nielsen, Usability Engineering, 1993, section 5.5)."""
BARS: Final = 8
"""Rows of the picture at most."""
BAR_WIDTH: Final = 24
_NAME, _COLUMN = 42, 26


@dataclass(frozen=True, slots=True)
class Figures:
    """One run as its clients measured it. `waits_s`: of each recorded reader in mid-reply, the longest first."""

    readers: int
    waits_s: tuple[float, ...]
    completed: int
    same: int
    moves: Counter[str]
    """Outcomes of the migrations that were decided."""

    @classmethod
    def of(
        cls,
        rows: Sequence[Mapping[str, Any]],
        replies: Sequence[Reply],
        undisturbed: Sequence[Reply],
        decisions: Sequence[Mapping[str, Any]] = (),
    ) -> Figures:
        """Return the figures from an audit's rows, the readers' replies, and the decision records."""
        felt = [row for row in rows if row["measured_at"] == "client"]
        return cls(
            readers=len(replies),
            waits_s=tuple(sorted((row["idle_decode_s"] or 0.0 for row in felt), reverse=True)),
            completed=sum(row["outcome"] == "completed" for row in felt),
            same=sum(one.same(other) for one, other in zip(replies, undisturbed, strict=True)),
            moves=Counter(one["outcome"] for one in decisions if one["action"] == "migrate"),
        )

    @property
    def waited(self) -> int:
        """The readers who noticed a wait."""
        return sum(wait >= WAITED_S for wait in self.waits_s)

    @property
    def exact(self) -> bool:
        """Whether every reader was recorded and got the undisturbed reply."""
        return self.readers == len(self.waits_s) == self.completed == self.same


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return decision records; none where no file was written."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def lines(straight: Figures, relayed: Figures) -> Iterator[str]:
    """Yield the figures of both runs and a bar for each of the longest waits, as plain text."""
    both = (straight, relayed)
    yield _row("", "straight", "through the relay")
    yield _row(f"readers who waited in mid-reply (> {seconds(WAITED_S)})", *(_of(one.waited, one) for one in both))
    yield _row("longest wait of a reader", *(seconds(max(one.waits_s, default=None)) for one in both))
    yield _row("replies that came whole", *(share(one.completed / one.readers) for one in both))
    yield _row("replies identical, token for token", *(_of(one.same, one) for one in both))
    yield _row("moved to the other server in mid-reply", "-", _moves(relayed.moves))
    most = max((*straight.waits_s, *relayed.waits_s), default=0.0)
    shown = min(BARS, max(straight.waited, relayed.waited))
    yield ""
    if shown == 0:
        return
    yield f"{'the longest waits, a reader a row:':<{_NAME + 2}}straight, and through the relay"
    for i in range(shown):
        bars = [_bar(one.waits_s[i] if i < len(one.waits_s) else None, most) for one in both]
        yield f"  {bars[0]:<{_NAME}}{bars[1]}".rstrip()
    yield ""


def _row(name: str, *values: str) -> str:
    return f"{name:<{_NAME}}  " + "".join(f"{value:<{_COLUMN}}" for value in values).rstrip()


def _of(count: int, figures: Figures) -> str:
    return f"{count} of {figures.readers}"


def _moves(moves: Counter[str]) -> str:
    others = ", ".join(f"{count} {outcome}" for outcome, count in sorted(moves.items()) if outcome != "done")
    return f"{moves['done']}" + (f" (and {others})" if others else "")


def _bar(wait_s: float | None, most_s: float) -> str:
    if wait_s is None:
        return ""
    return f"{'#' * round(BAR_WIDTH * wait_s / most_s)} {seconds(wait_s)}".lstrip()
