"""The backends of a relay: which can take streams, and the load of each. State without I/O; instants are passed in."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_llm.scheduling.gap_history import GapHistory
from otel_llm.scheduling.placement import POLICIES, Demand, Load, rank

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from otel_llm.scheduling.placement import Candidate
    from otel_llm.scheduling.profiles.profile import Profile

FAILURES: Final = 3
"""Failures in a row after which a backend is ejected."""
COMING_S: Final = 1.0
"""How long a stream that was placed counts in the load of its backend while it has not begun there (s)."""
STARVING_S: Final = 0.05
"""How long a count of starving streams is cached (s): it asks every stream, and rules place hundreds at one instant."""
NO_DEMAND: Final = Demand()


@dataclass(slots=True, eq=False)
class Backend:
    """One replica; `models`: what it serves and the longest context of each, None where it states none.

    `tokens`: of its streams' prompts and output; `waiting_tokens`: of the prompts of those without a token yet; `turn`:
    the number of the last placement on it; `coming`: the streams that were placed on it and have not begun: until when
    each counts (s), and its tokens; `gaps`: the times of its iterations; `profile`: how long they last, if it is known.
    """

    name: str
    url: str
    kind: str = "vllm"
    group: str = ""
    models: Mapping[str, int | None] = field(default_factory=dict)
    healthy: bool = True
    draining: bool = False
    ejected_until_s: float = 0.0
    failures: int = 0
    streams: int = 0
    tokens: int = 0
    waiting_tokens: int = 0
    turn: int = 0
    coming: deque[tuple[float, int]] = field(default_factory=deque)
    gaps: GapHistory = field(default_factory=GapHistory)
    profile: Profile | None = None


class Backends:
    """All backends of a relay.

    `changed` is called when a backend is added or lost, or serves other models, `freed` when one has a stream or
    another request less; `starving` returns the number of
    starving streams by backend, and is called for policies that need it. `seed`: of random policies, None for any.
    """

    def __init__(
        self,
        backends: Iterable[Backend],
        now_s: Callable[[], float],
        eject_s: float = 5.0,
        seed: int | None = None,
    ) -> None:
        self._all = {backend.name: backend for backend in backends}
        self._now_s = now_s
        self._eject_s = eject_s
        self._draw = random.Random(seed)  # noqa: S311  it balances load
        self._turn = 0
        self.changed: Callable[[], None] = _nothing
        self.freed: Callable[[], None] = _nothing
        self.starving: Callable[[], Mapping[str, int]] = dict
        self._starving: Mapping[str, int] = {}
        self._starving_until_s = now_s()

    def __iter__(self) -> Iterator[Backend]:
        return iter(self._all.values())

    def __contains__(self, name: object) -> bool:
        return name in self._all

    def get(self, name: str) -> Backend:
        """Return a backend by name; raises KeyError for an unknown one."""
        return self._all[name]

    def watched_by(self, changed: Callable[[], None], freed: Callable[[], None] | None) -> None:
        """Call `changed` as the class says; `freed` behind it, and wherever a place becomes free."""
        self.changed = changed
        if freed is None:
            return

        def both() -> None:
            changed()
            freed()

        self.changed, self.freed = both, freed

    # Who can take a stream.

    def is_open(self, backend: Backend) -> bool:
        """Tell whether a backend takes new streams now."""
        return self.is_well(backend) and not backend.draining

    def is_well(self, backend: Backend) -> bool:
        """Tell whether a backend serves, if only the streams that it has."""
        return backend.healthy and backend.ejected_until_s <= self._now_s()

    def open_to(self, group: str | None = None, exclude: Collection[str] = ()) -> list[Backend]:
        """Return the backends that take new streams, of one group or of all."""
        return [
            backend
            for backend in self._all.values()
            if backend.name not in exclude and group in (None, backend.group) and self.is_open(backend)
        ]

    def rank(self, policy: str, backends: Sequence[Backend], demand: Demand = NO_DEMAND) -> list[Candidate]:
        """Return backends in the order in which a placement policy prefers them; equal ones alternate.

        The first counts as chosen: the stream is in its load from now on, until `begin` counts it or `COMING_S` have
        passed. So streams that are placed at one instant do not all go to the backend with the least load before it.
        """
        if not backends:
            return []
        needs, now_s = POLICIES[policy], self._now_s()
        if needs.counts_starving and self._starving_until_s <= now_s:
            self._starving, self._starving_until_s = self.starving(), now_s + STARVING_S
        starving = self._starving if needs.counts_starving else {}
        ranked = rank(
            policy,
            [
                _load(one, now_s, starving.get(one.name, 0), demand.tokens if needs.predicts else None)
                for one in backends
            ],
            demand,
            self._draw,
        )
        self.take_place(self._all[ranked[0].name], demand.tokens)
        return ranked

    def take_place(self, backend: Backend, tokens: int) -> None:
        """Count a request as placed on a backend, with its tokens, until it begins there."""
        self._turn += 1
        backend.turn = self._turn
        backend.coming.append((self._now_s() + COMING_S, tokens))

    def choose(self, policy: str, exclude: Collection[str], demand: Demand = NO_DEMAND) -> Backend | None:
        """Return the backend that a placement policy prefers among those that take new streams; None without one."""
        found = self.open_to(exclude=exclude)
        return self.pick(policy, found, demand) if found else None

    def pick(self, policy: str, backends: Sequence[Backend], demand: Demand = NO_DEMAND) -> Backend:
        """Return the one of some backends, one or more, that a placement policy prefers."""
        return self._all[self.rank(policy, backends, demand)[0].name]

    def in_flight(self, backend: Backend) -> int:
        """Return the streams and other requests of a backend, with those that were placed and have not begun."""
        return backend.streams + len(_coming(backend, self._now_s()))

    def tokens_in_flight(self, backend: Backend) -> int:
        """Return the tokens of the requests that `in_flight` counts: of their prompts, and their output so far."""
        return backend.tokens + sum(tokens for _, tokens in _coming(backend, self._now_s()))

    def withdraw(self, backend: Backend) -> None:
        """Count a request no longer that was placed and will not begin."""
        if backend.coming:
            backend.coming.popleft()

    # Events.

    def begin(self, backend: Backend, tokens: int, waiting: int = 0) -> None:
        """Count a stream; `tokens`: of its prompt and what it has so far; `waiting`: those to be prefilled."""
        if backend.coming:
            backend.coming.popleft()
        backend.streams += 1
        backend.tokens += tokens
        backend.waiting_tokens += waiting

    def prefilled(self, backend: Backend, waiting: int) -> None:
        """Note that a stream has its first token; `waiting`: as it was begun with."""
        backend.waiting_tokens -= waiting

    def grow(self, backend: Backend, tokens: int) -> None:
        """Count output tokens of a stream in flight."""
        backend.tokens += tokens

    def end(self, backend: Backend, tokens: int, waiting: int = 0) -> None:
        """Count a stream no longer; `tokens`: all that were counted for it; `waiting`: those not prefilled yet."""
        backend.streams -= 1
        backend.tokens -= tokens
        backend.waiting_tokens -= waiting
        self.freed()

    def worked(self, backend: Backend) -> None:
        """Note that a backend served a request to its end."""
        backend.failures = 0

    def failed(self, backend: Backend) -> None:
        """Note that a backend failed to serve a request; several failures in a row eject it for a while."""
        backend.failures += 1
        if backend.failures >= FAILURES:
            backend.failures = 0
            backend.ejected_until_s = self._now_s() + self._eject_s
            self.changed()

    def found(self, backend: Backend, *, healthy: bool) -> None:
        """Note the result of a health probe."""
        if healthy is not backend.healthy:
            backend.healthy = healthy
            self.changed()

    def readmit(self, backend: Backend) -> None:
        """Call `changed` for an ejection that has ended: no other event happens at that instant."""
        if 0.0 < backend.ejected_until_s <= self._now_s():
            backend.ejected_until_s = 0.0
            self.changed()

    def serves(self, backend: Backend, models: Mapping[str, int | None]) -> None:
        """Note which models a backend serves."""
        if models != backend.models:
            backend.models = models
            self.changed()

    def drain(self, name: str, *, draining: bool = True) -> bool:
        """Stop sending new streams to a backend, or resume; return whether the name is known."""
        backend = self._all.get(name)
        if backend is None:
            return False
        if backend.draining is not draining:
            backend.draining = draining
            self.changed()
        return True

    def rows(self) -> list[dict[str, object]]:
        """Return the row of each backend for the web port."""
        return [
            {
                "name": one.name,
                "kind": one.kind,
                "group": one.group,
                "healthy": one.healthy,
                "ejected": one.ejected_until_s > self._now_s(),
                "draining": one.draining,
                "open": self.is_open(one),
                "streams": one.streams,
                "tokens": one.tokens,
                "models": dict(one.models),
            }
            for one in self._all.values()
        ]


def _load(backend: Backend, now_s: float, starving: int, new_tokens: int | None) -> Load:
    """Return a backend's load; its iteration is predicted with a stream of so many tokens more, if they are given."""
    coming = _coming(backend, now_s)
    streams, tokens = backend.streams + len(coming), sum(tokens for _, tokens in coming)
    in_flight = backend.tokens + tokens
    return Load(
        name=backend.name,
        streams=streams,
        tokens=in_flight,
        waiting_tokens=backend.waiting_tokens + tokens,
        starving=starving,
        iteration_s=None if new_tokens is None else _iteration_s(backend, streams + 1, in_flight + new_tokens, now_s),
        turn=backend.turn,
    )


def _coming(backend: Backend, now_s: float) -> deque[tuple[float, int]]:
    """Return the requests that were placed on a backend and have not begun; those placed long ago never will."""
    coming = backend.coming
    while coming and coming[0][0] <= now_s:
        coming.popleft()
    return coming


def _iteration_s(backend: Backend, streams: int, tokens: int, now_s: float) -> float | None:
    """Predict an iteration of so many streams and tokens: by the profile, else by the backend's last gaps."""
    profile = backend.profile
    if profile is None:
        return backend.gaps.predict(streams, now_s)
    return (profile.iteration_ns(streams, tokens) + profile.step_overhead_ns) / 1e9


def _nothing() -> None:
    """Do nothing."""
