"""Counts of a process's recordings, for `otel-llm doctor`: a few additions for each stream, none for a token."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_llm.export import threads

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_NAMES: Final = 64
"""The most names of one kind that are counted separately; more are counted as `OTHERS`."""
OTHERS: Final = "(others)"
GIVEN_UP: Final = "given up"
"""The outcome of a stream whose recording was stopped."""


@dataclass(slots=True)
class Stats:
    """Plain counters of one process.

    `begun`, `ended`: streams, by stack. `tokens`, `segments`: of ended streams, by stack. `outcomes`: of ended streams.
    `classes`: begun streams, by SLO class. `unrecorded`: streams that passed unrecorded, by description. `changed` is
    called after each change; it may be set at any time.
    """

    begun: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    segments: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)
    unrecorded: Counter[str] = field(default_factory=Counter)
    changed: Callable[[], None] | None = None
    _lock: Any = field(default_factory=threads.lock)  # the garbage collector may end a stream meanwhile

    def begin(self, stack: str, slo_class: str | None) -> None:
        """Count a stream whose segment 0 was sent."""
        with self._lock:
            self.begun[stack] += 1
            if slo_class is not None:
                _add(self.classes, slo_class)
        self._notify()

    def end(self, stack: str, outcome: str, tokens: int, segments: int) -> None:
        """Count a stream that ended."""
        with self._lock:
            self.ended[stack] += 1
            self.outcomes[outcome] += 1
            self.tokens[stack] += tokens
            self.segments[stack] += segments
        self._notify()

    def pass_by(self, what: str, count: int = 1) -> None:
        """Count a stream that passed unrecorded; -1 takes one back."""
        with self._lock:
            _add(self.unrecorded, what, count)
        self._notify()

    def snapshot(self) -> dict[str, Any]:
        """Return the counters as plain objects."""
        with self._lock:
            return {
                name: {key: value for key, value in getattr(self, name).items() if value}
                for name in ("begun", "ended", "tokens", "segments", "outcomes", "classes", "unrecorded")
            }

    def _notify(self) -> None:
        if self.changed is not None:
            self.changed()


def _add(counter: Counter[str], name: str, count: int = 1) -> None:
    counter[name if name in counter or len(counter) < MAX_NAMES else OTHERS] += count
