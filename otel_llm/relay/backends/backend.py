"""One backend as the relay knows it, and what a request needs of one. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final

from otel_llm.relay.backends.failures import Failures
from otel_llm.relay.backends.first_token_times import FirstTokenTimes
from otel_llm.scheduling.gap_history import GapHistory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.scheduling.profiles.profile import Profile

MISSES: Final = 3
"""Probes in a row that a backend may answer late or wrongly until it is unhealthy."""


@dataclass(slots=True, eq=False)
class Backend:
    """One replica; `models`: what it serves and the longest context of each, None where it states none.

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
