"""The backends of a relay: which can take streams, and the load of each. State without I/O; instants are passed in."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Final

from otel_llm.relay.backends.backend import ANYTHING, MISSES
from otel_llm.scheduling.placement import POLICIES, Demand, Load, best, rank

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from otel_llm.relay.backends.backend import Backend, Needs
    from otel_llm.scheduling.placement import Candidate

STREAMING_S: Final = 2.0
"""How long a backend counts as alive behind each byte of a reply, whatever its health path says (s)."""
COMING_S: Final = 1.0
"""How long a stream that was placed counts in the load of its backend while it has not begun there (s)."""
STARVING_S: Final = 0.05
"""How long a count of starving streams is cached (s): it asks every stream, and rules place hundreds at one instant."""
NO_DEMAND: Final = Demand()
log = logging.getLogger(__name__)


class Backends:
    """All backends of a relay.

    `changed` is called when a backend is added or lost, or serves other models, `freed` when one has a stream or
    another request less; `starving` returns the number of
    starving streams by backend, and is called for policies that need it. `seed`: of random policies, None for any.
    `max_share`: the share of a group that may be ejected at one time.
    """

    def __init__(
        self,
        backends: Iterable[Backend],
        now_s: Callable[[], float],
        eject_s: float = 5.0,
        max_share: float = 0.5,
        seed: int | None = None,
    ) -> None:
        self._all = {backend.name: backend for backend in backends}
        self._now_s = now_s
        self._eject_s = eject_s
        self._max_share = max_share
        self._panics: set[str] = set()
        self._warned: set[str] = set()
        """The groups whose panic was logged, until a health path of theirs answers."""
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
        """Call `changed` as the class says; `freed` behind it, and wherever a slot becomes free."""
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

    def able(self, needs: Needs) -> list[Backend]:
        """Return the backends that list the model and can hold the request; if none can, those that say why."""
        every = list(self._all.values())
        listed = [one for one in every if needs.listed(one)]
        return [one for one in listed if needs.held(one)] or listed or every

    def open_to(
        self, group: str | None = None, exclude: Collection[str] = (), needs: Needs = ANYTHING
    ) -> list[Backend]:
        """Return the backends that take new streams, of one group or of all, but those to `exclude`.

        Without one that is well: those that are only ejected; if none is well, excluded or not, the least bad. Those
        that are drained take none in any case.
        """
        found = [one for one in self.able(needs) if group in (None, one.group) and not one.draining]
        well = [one for one in found if self.is_well(one)]
        left = [one for one in well if one.name not in exclude]
        if left:
            return left
        bad = [one for one in found if one.name not in exclude and (one.healthy or not well)]
        least = min(map(_badness, bad), default=0)
        return [one for one in bad if _badness(one) == least]

    def steadiest(self, backends: Sequence[Backend]) -> list[Backend]:
        """Return those of some backends with the fewest recent failures."""
        now_s = self._now_s()
        failures = [one.failures.recent(now_s) for one in backends]
        return [one for one, count in zip(backends, failures, strict=True) if count == min(failures)]

    @property
    def alike(self) -> bool:
        """Tell whether all backends list the same models: then any of them serves any request."""
        listed = [one.models.keys() for one in self._all.values()]
        return all(one == listed[0] for one in listed)

    @property
    def panics(self) -> int:
        """Return the number of groups in panic: no backend is healthy, and requests go to the least bad."""
        return len(self._panics)

    def rank(self, policy: str, backends: Sequence[Backend], demand: Demand = NO_DEMAND) -> list[Candidate]:
        """Return backends in the order in which a placement policy prefers them; equal ones alternate.

        The first counts as chosen: the stream is in its load from now on, until `begin` counts it or `COMING_S` have
        passed. So streams that are placed at one instant do not all go to the backend with the least load before it.
        """
        ranked = rank(policy, self._loads(policy, backends, demand), demand, self._draw)
        if ranked:
            self.take_place(self._all[ranked[0].name], demand.tokens)
        return ranked

    def _loads(self, policy: str, backends: Sequence[Backend], demand: Demand) -> list[Load]:
        """Return the loads of backends, with what a policy needs."""
        needs, now_s = POLICIES[policy], self._now_s()
        if needs.counts_starving and self._starving_until_s <= now_s:
            self._starving, self._starving_until_s = self.starving(), now_s + STARVING_S
        starving = self._starving if needs.counts_starving else {}
        tokens = demand.tokens if needs.predicts else None
        return [_load(one, now_s, starving.get(one.name, 0), tokens) for one in backends]

    def take_place(self, backend: Backend, tokens: int) -> None:
        """Count a request as placed on a backend, with its tokens, until it begins there."""
        self._turn += 1
        backend.turn = self._turn
        backend.coming.append((self._now_s() + COMING_S, tokens))

    def choose(
        self, policy: str, exclude: Collection[str], demand: Demand = NO_DEMAND, needs: Needs = ANYTHING
    ) -> Backend | None:
        """Return the backend that a placement policy prefers among those that take new streams; None without one."""
        found = self.open_to(exclude=exclude, needs=needs)
        return self.pick(policy, found, demand) if found else None

    def pick(self, policy: str, backends: Sequence[Backend], demand: Demand = NO_DEMAND) -> Backend:
        """Return the first of `rank`, of one or more backends; it counts as chosen too."""
        found = best(POLICIES[policy], self._loads(policy, backends, demand), demand, self._draw)
        backend = self._all[found.name]
        self.take_place(backend, demand.tokens)
        return backend

    def in_flight(self, backend: Backend) -> int:
        """Return the streams and other requests of a backend, with those that were placed and have not begun."""
        return backend.streams + len(_coming(backend, self._now_s()))

    def tokens_in_flight(self, backend: Backend) -> int:
        """Return the tokens of the requests that `in_flight` counts: of their prompts, and their output so far."""
        return backend.tokens + sum(tokens for _, tokens in _coming(backend, self._now_s()))

    def pace(self, backend: Backend, tokens: int) -> float | None:
        """Return the tokens a second that one stream more would have, of so many tokens; None if it is not known."""
        streams, in_flight = self.in_flight(backend) + 1, self.tokens_in_flight(backend) + tokens
        iteration_s = _iteration_s(backend, streams, in_flight, self._now_s())
        return None if not iteration_s else 1.0 / iteration_s

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
        backend.failures.served()

    def seen_to_fail(self, backend: Backend) -> None:
        """Note that a backend did not serve a request, which may be the request's fault."""
        backend.failures.see(self._now_s())

    def failed(self, backend: Backend, client: str) -> None:
        """Count a failure of a backend's own, with a request of this client; several eject it for a while."""
        now_s = self._now_s()
        if not backend.failures.count(client, now_s):
            return
        by = backend.failures.only_client
        if self._may_eject(backend, by, now_s):
            backend.failures.forget()
            backend.ejected_until_s, backend.ejected_by = now_s + self._eject_s, by
            self._notify()

    def _may_eject(self, backend: Backend, by: str | None, now_s: float) -> bool:
        """Tell whether a backend may be ejected, `by` one client or by several.

        At most a share of its group is ejected, never the last that is open, and one client alone ejects one at a time:
        it may have found requests that fail on some backends only.
        """
        others = [one for one in self._all.values() if one.group == backend.group and one is not backend]
        ejected = [one for one in others if one.ejected_until_s > now_s]
        most = int(self._max_share * (len(others) + 1) + 1e-9)
        if len(ejected) >= most or not any(map(self.is_open, others)):
            return False
        return by is None or all(one.ejected_by != by for one in ejected)

    def heard(self, backend: Backend, now_s: float) -> None:
        """Note a byte of a reply: its backend is alive."""
        backend.heard_s = now_s
        if not backend.healthy and not backend.refuses:
            self._is(backend, healthy=True)

    def answered(self, backend: Backend) -> None:
        """Note that a backend's health path says that it is well."""
        backend.refuses = False
        self._warned.discard(backend.group)
        self._is(backend, healthy=True)

    def missed(self, backend: Backend) -> None:
        """Note that a backend's health path is late, or says that it is not well."""
        backend.refuses = False
        if backend.heard_s > self._now_s() - STREAMING_S:
            self._is(backend, healthy=True)
            return
        backend.missed += 1
        if backend.missed >= MISSES:
            self._is(backend, healthy=False)

    def refused(self, backend: Backend) -> None:
        """Note that a backend takes no connections."""
        backend.refuses = True
        self._is(backend, healthy=False)

    def _is(self, backend: Backend, *, healthy: bool) -> None:
        if healthy:
            backend.missed = 0
        if healthy is not backend.healthy:
            backend.healthy = healthy
            self._notify()

    def _notify(self) -> None:
        """Tell that a backend was added or lost; log once if a group has no healthy one any more."""
        open_to = {one.group for one in self._all.values() if self.is_open(one)}
        self._panics = {one.group for one in self._all.values() if not one.draining} - open_to
        for group in sorted(self._panics - self._warned):
            self._warned.add(group)
            log.warning("no backend%s is healthy: requests go to the least bad", f" of {group}" if group else "")
        self.changed()

    def readmit(self, backend: Backend) -> None:
        """Call `changed` for an ejection that has ended: no other event happens at that instant."""
        if 0.0 < backend.ejected_until_s <= self._now_s():
            backend.ejected_until_s = 0.0
            self._notify()

    def serves(self, backend: Backend, models: Mapping[str, int | None]) -> None:
        """Note which models a backend serves."""
        if models != backend.models:
            backend.models = models
            self.changed()

    def continues(self, backend: Backend, *, chats: bool | None) -> None:
        """Note whether the chat endpoint of a backend goes on from ids; None if that is to be found out anew."""
        if chats is not backend.continues_chats:
            backend.continues_chats = chats
            self.changed()

    def drain(self, name: str, *, draining: bool = True) -> bool:
        """Stop sending new streams to a backend, or resume; return whether the name is known."""
        backend = self._all.get(name)
        if backend is None:
            return False
        if backend.draining is not draining:
            backend.draining = draining
            self._notify()
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
                "continues_chats": one.continues_chats,
            }
            for one in self._all.values()
        ]


def _badness(backend: Backend) -> int:
    """Return how unlikely a backend is to serve: it is ejected only, its probes are late, it takes no connections."""
    return 0 if backend.healthy else 1 + backend.refuses


def _load(backend: Backend, now_s: float, starving: int, new_tokens: int | None) -> Load:
    """Return a backend's load; its iteration is predicted with a stream of so many tokens more, if they are given."""
    coming = _coming(backend, now_s)
    streams, tokens = backend.streams + len(coming), sum(tokens for _, tokens in coming)
    in_flight = backend.tokens + tokens
    return Load(
        name=backend.name,
        requests=streams,
        tokens=in_flight,
        prefill_tokens=backend.waiting_tokens + tokens,
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
