"""The last minutes of what readers felt: a sample a second by class and place of measurement, for sparklines."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

Key = tuple[str, str]
"""(slo_class, measured_at): views of one request from two places are never summed."""

SAMPLES: Final = 300
"""Five minutes at a sample a second."""
MOST_KEYS: Final = 24
"""The most classes and places of measurement that are shown; further ones are counted."""
FIELDS: Final = ("key", "in_flight", "waiting", "met", "missed", "tokens_read", "smooth_tokens", "idle_s")
"""The numbers of one key in a sample; all from `met` on are increases since the sample before."""


class Totals(NamedTuple):
    """Counters of one key since the start; `smooth_tokens`: tokens read less the penalty of idle time, plus refunds."""

    met: int = 0
    missed: int = 0
    tokens_read: int = 0
    smooth_tokens: float = 0.0
    idle_ns: int = 0

    def plus(self, other: Totals) -> Totals:
        """Return the sum."""
        return Totals(
            self.met + other.met,
            self.missed + other.missed,
            self.tokens_read + other.tokens_read,
            self.smooth_tokens + other.smooth_tokens,
            self.idle_ns + other.idle_ns,
        )


class Load(NamedTuple):
    """The state of one key at an instant."""

    in_flight: int = 0
    waiting: int = 0
    totals: Totals = Totals()


class History:
    """The samples of the last minutes; single-threaded.

    A sample is a list: its instant (unix s), then for each key a list of `FIELDS`. `keys`: by index.
    """

    def __init__(self, most_samples: int = SAMPLES, most_keys: int = MOST_KEYS) -> None:
        self.keys: list[Key] = []
        self.left_out = 0
        """Keys of the last sample that are not shown, since there were too many."""
        self._most_keys = most_keys
        self._samples: deque[list[Any]] = deque(maxlen=most_samples)
        self._before: list[Totals] = []

    @property
    def samples(self) -> list[list[Any]]:
        """Return the samples, oldest first."""
        return list(self._samples)

    def add(self, now_ns: int, loads: Mapping[Key, Load]) -> list[Any]:
        """Add and return the sample of an instant (unix ns); the first counts from its own totals on."""
        for key, load in loads.items():
            if key not in self.keys and len(self.keys) < self._most_keys:
                self.keys.append(key)
                self._before.append(Totals() if self._samples else load.totals)
        self.left_out = sum(key not in self.keys for key in loads)
        sample: list[Any] = [now_ns / 1e9]
        for at, key in enumerate(self.keys):
            if key in loads:
                now = loads[key]
                sample.append([at, now.in_flight, now.waiting, *self._increase(at, now.totals)])
        self._samples.append(sample)
        return sample

    def _increase(self, at: int, totals: Totals) -> list[float]:
        before, self._before[at] = self._before[at], totals
        met, missed, read, smooth, idle_ns = (now - then for now, then in zip(totals, before, strict=True))
        return [met, missed, read, round(smooth, 3), round(idle_ns / 1e9, 3)]
