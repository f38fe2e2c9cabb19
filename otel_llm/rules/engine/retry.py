"""An action that was refuted, as a migration whose source went on first: due again at the next flip of `when`.

That is the next instant after the refutation at which `when`, having not held, holds, within the same firing. `for` is
not waited for again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_llm.rules.engine.history import run_start

if TYPE_CHECKING:
    from otel_llm.rules.files.ruleset import Rule
    from otel_llm.rules.language.snapshot import Snapshot


@dataclass(slots=True)
class Retry:
    """One action of a rule that fires: when it was last tried, and whether it waits to be tried again.

    `tried_ns`: the flip of its last try, on the stream's axis. `refuted_ns`: when this was refuted, on the collector's
    axis, None while it is not. `seen_ns`: up to where the stream was looked at since, on its own axis, None before the
    first look; `held`: whether `when` held there.
    """

    tried_ns: int
    refuted_ns: int | None = None
    seen_ns: int | None = None
    held: bool = True

    def refute(self, now_ns: int) -> None:
        """Wait for the next flip after an instant on the collector's axis."""
        self.refuted_ns, self.seen_ns, self.held = now_ns, None, True

    def tried_again(self, flip_ns: int) -> None:
        """Wait no longer: the action was decided again at this flip."""
        self.tried_ns, self.refuted_ns = flip_ns, None

    def begin_anew(self, x_ns: int) -> None:
        """Look back no further than this instant, on the stream's axis."""
        if self.seen_ns is not None:
            self.seen_ns = max(self.seen_ns, x_ns)

    def look(self, rule: Rule, now: Snapshot, x_ns: int, truth: bool | None) -> int | None:
        """Look at the stream at its now, where `when` has this truth; return the flip that makes the action due."""
        if truth is None and rule.on_missing == "hold":
            # What these instants were is looked back at when the facts are there again.
            self.seen_ns = x_ns if self.seen_ns is None else self.seen_ns
            return None
        holds = rule.on_missing == "fire" if truth is None else truth
        seen_ns, held = self.seen_ns, self.held
        self.seen_ns, self.held = x_ns, holds
        if seen_ns is None or not holds:
            return None
        start_ns = seen_ns if truth is None else run_start(rule.when, now, x_ns, value=True, floor_ns=seen_ns)
        if start_ns > seen_ns:
            return start_ns
        return None if held else x_ns
