"""One backend as the relay knows it, and what a request needs of one. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import TYPE_CHECKING, Final

from otel_llm.scheduling.gap_history import GapHistory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.scheduling.profiles.profile import Profile

MISSES: Final = 3
"""Probes in a row that a backend may answer late or wrongly until it is unhealthy."""
EJECTS: Final = 3
"""A backend is ejected when its failures exceed the requests that it has served since by this number."""
RECENT_S: Final = 30.0
"""The age at which a failure no longer counts (s)."""
MOST_SEEN: Final = 16
KEPT: Final = 32
"""The number of times that are kept for each length: the last ones."""
LENGTHS: Final = 24
"""The number of lengths: each is up to twice as long as the one before, the last has no end (8,388,608 tokens)."""


class FirstTokenTimes:
    """The times to the first token of one backend, with what its queue adds: from the request to the first token.

    Prompts of like length, within a factor of two, share a median, so one stall does not change it. For a length that
    was not observed, the prediction is linear between the nearest ones that were. Below the least it is the least's;
    beyond the largest it grows in proportion to the length.

    `observe` costs well under a microsecond, `median` some 10.
    """

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times: dict[int, deque[tuple[int, float]]] = {}
        """By length: the tokens and the time of each prompt (s)."""

    def observe(self, tokens: int, seconds: float) -> None:
        """Note that a request with a prompt of so many tokens had its first token after so long."""
        if tokens < 0 or seconds < 0.0 or not isfinite(seconds):
            return
        length = _length(tokens)
        times = self._times.get(length)
        if times is None:
            times = self._times[length] = deque(maxlen=KEPT)
        times.append((tokens, seconds))

    def median(self, tokens: int) -> float | None:
        """Return the median time for prompts of about so many tokens (s); None if nothing was observed."""
        if not self._times:
            return None
        length = _length(tokens)
        if length in self._times:
            return self._medians(length)[1]
        below = max((known for known in self._times if known < length), default=None)
        above = min((known for known in self._times if known > length), default=None)
        if below is None:
            assert above is not None  # noqa: S101
            return self._medians(above)[1]
        low, low_s = self._medians(below)
        if above is None:
            return low_s * tokens / max(1.0, low)
        high, high_s = self._medians(above)
        return low_s + (high_s - low_s) * (tokens - low) / (high - low)

    def kept(self) -> int:
        """Return how many times are kept."""
        return sum(map(len, self._times.values()))

    def _medians(self, length: int) -> tuple[float, float]:
        """Return the median of the tokens, and that of the times."""
        times = self._times[length]
        return _median([tokens for tokens, _ in times]), _median([seconds for _, seconds in times])


def _length(tokens: int) -> int:
    """Return the length that a number of tokens counts as."""
    return min(max(tokens, 0).bit_length(), LENGTHS - 1)


def _median(values: list[int] | list[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2.0


class Failures:
    """The last failures of one backend; `client` is the name of a client."""

    __slots__ = ("_counted", "_seen")

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=MOST_SEEN)
        """The instants of all failures, whatever their cause was."""
        self._counted: deque[tuple[float, str]] = deque(maxlen=EJECTS)
        """The instants and the clients of those that the backend is to blame for."""

    def see(self, now_s: float) -> None:
        """Note a failure whose cause is not known."""
        self._seen.append(now_s)

    def recent(self, now_s: float) -> int:
        """Return the number of recent failures, whatever their cause was; `MOST_SEEN` for more."""
        return sum(at_s > now_s - RECENT_S for at_s in self._seen)

    def count(self, client: str, now_s: float) -> bool:
        """Count a failure of the backend's own; return whether there are enough to eject it."""
        self._counted.append((now_s, client))
        return len(self._counted) == EJECTS and self._counted[0][0] > now_s - RECENT_S

    def served(self) -> None:
        """Note a request that was served to its end: it makes up for one failure."""
        if self._counted:
            self._counted.popleft()

    @property
    def only_client(self) -> str | None:
        """Return the client of all counted failures; None if there are several clients."""
        clients = {client for _, client in self._counted}
        return clients.pop() if len(clients) == 1 else None

    def forget(self) -> None:
        """Begin anew after an ejection."""
        self._counted.clear()


@dataclass(slots=True, eq=False)
class Backend:
    """One replica; `models`: what it serves and the longest context of each, None if it states none.

    `continues_chats`: whether its chat endpoint goes on from the ids of a prompt and an output, None if not yet known.
    `tokens`: of its streams' prompts and output; `waiting_tokens`: of the prompts of those without a token yet; `turn`:
    the number of the last placement on it; `coming`: the streams that were placed on it and have not begun: until when
    each counts (s), and its tokens; `gaps`: the times of its iterations; `profile`: how long they last, if it is known.
    `missed`: its last probes that failed, of a backend that never answered all but one; `refuses`: it takes no
    connections; `heard_s`: the instant of its last byte of a reply; `ejected_by`: the client whose requests alone
    ejected it.
    """

    name: str
    url: str
    kind: str = "vllm"
    group: str = ""
    models: Mapping[str, int | None] = field(default_factory=dict)
    continues_chats: bool | None = None
    healthy: bool = True
    draining: bool = False
    missed: int = MISSES - 1
    refuses: bool = False
    heard_s: float = -inf
    ejected_until_s: float = 0.0
    ejected_by: str | None = None
    failures: Failures = field(default_factory=Failures)
    streams: int = 0
    tokens: int = 0
    waiting_tokens: int = 0
    turn: int = 0
    coming: deque[tuple[float, int]] = field(default_factory=deque)
    gaps: GapHistory = field(default_factory=GapHistory)
    first_tokens: FirstTokenTimes = field(default_factory=FirstTokenTimes)
    profile: Profile | None = None

    @property
    def is_probed(self) -> bool:
        """Tell whether it has a health path; without one it is healthy, and its failures alone eject it."""
        return self.kind != "openai"


@dataclass(frozen=True, slots=True)
class Needs:
    """What a request asks of its backend: the model, "" for any, and room for its prompt and reply (tokens)."""

    model: str = ""
    tokens: int = 0

    def listed(self, backend: Backend) -> bool:
        """Tell whether a backend serves the model, or lists none at all."""
        return not self.model or not backend.models or self.model in backend.models

    def held(self, backend: Backend) -> bool:
        """Tell whether the prompt and the reply are not longer than a backend states for the model."""
        return self.tokens <= (backend.models.get(self.model) or inf)


ANYTHING: Final = Needs()
