"""The backends of a relay: who can take streams, and how much each has. State without I/O; instants are passed in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_llm.scheduling.placement import Load, rank

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from otel_llm.scheduling.placement import Candidate

FAILURES: Final = 3
"""Failures in a row after which a backend is ejected."""


@dataclass(slots=True, eq=False)
class Backend:
    """One replica; `models`: what it serves and the longest context of each, None where it does not say."""

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


class Backends:
    """All backends of a relay. `changed` is called when one has come, gone, or serves other models."""

    def __init__(self, backends: Iterable[Backend], now_s: Callable[[], float], eject_s: float = 5.0) -> None:
        self._all = {backend.name: backend for backend in backends}
        self._now_s = now_s
        self._eject_s = eject_s
        self._turn = 0
        self.changed: Callable[[], None] = _nothing

    def __iter__(self) -> Iterator[Backend]:
        return iter(self._all.values())

    def get(self, name: str) -> Backend:
        """Return a backend by name; raises KeyError for an unknown one."""
        return self._all[name]

    # Who can take a stream.

    def is_open(self, backend: Backend) -> bool:
        """Tell whether a backend takes new streams now."""
        return backend.healthy and not backend.draining and backend.ejected_until_s <= self._now_s()

    def open_to(self, group: str | None = None, exclude: Collection[str] = ()) -> list[Backend]:
        """Return the backends that take new streams, of one group or of all."""
        return [
            backend
            for backend in self._all.values()
            if backend.name not in exclude and group in (None, backend.group) and self.is_open(backend)
        ]

    def rank(self, policy: str, backends: Sequence[Backend]) -> list[Candidate]:
        """Return backends in the order in which a placement policy prefers them; equal ones take turns."""
        if not backends:
            return []
        self._turn += 1
        turned = self._turn % len(backends)
        in_turn = (*backends[turned:], *backends[:turned])
        return rank(policy, [Load(one.name, one.streams, one.tokens) for one in in_turn])

    def choose(self, policy: str, exclude: Collection[str]) -> Backend | None:
        """Return the backend that a placement policy prefers among those that take new streams; None without one."""
        ranked = self.rank(policy, self.open_to(exclude=exclude))
        return self._all[ranked[0].name] if ranked else None

    # What is told of them.

    def begin(self, backend: Backend, tokens: int) -> None:
        """Count a stream; `tokens`: of its prompt and what it has so far."""
        backend.streams += 1
        backend.tokens += tokens

    def grow(self, backend: Backend, tokens: int) -> None:
        """Count output tokens of a stream in flight."""
        backend.tokens += tokens

    def end(self, backend: Backend, tokens: int) -> None:
        """Count a stream no longer; `tokens`: all that were counted of it."""
        backend.streams -= 1
        backend.tokens -= tokens

    def worked(self, backend: Backend) -> None:
        """Note that a backend served a request to its end."""
        backend.failures = 0

    def failed(self, backend: Backend) -> None:
        """Note that a backend did not serve a request; several in a row eject it for a while."""
        backend.failures += 1
        if backend.failures >= FAILURES:
            backend.failures = 0
            backend.ejected_until_s = self._now_s() + self._eject_s
            self.changed()

    def found(self, backend: Backend, *, healthy: bool) -> None:
        """Note what a look at its health found."""
        if healthy is not backend.healthy:
            backend.healthy = healthy
            self.changed()

    def readmit(self, backend: Backend) -> None:
        """Tell of an ejection that has ended: nothing else happens at that instant."""
        if 0.0 < backend.ejected_until_s <= self._now_s():
            backend.ejected_until_s = 0.0
            self.changed()

    def serves(self, backend: Backend, models: Mapping[str, int | None]) -> None:
        """Note which models a backend serves."""
        if models != backend.models:
            backend.models = models
            self.changed()

    def drain(self, name: str, *, draining: bool = True) -> bool:
        """Send a backend no new streams, or again; return whether there is one of this name."""
        backend = self._all.get(name)
        if backend is None:
            return False
        if backend.draining is not draining:
            backend.draining = draining
            self.changed()
        return True

    def rows(self) -> list[dict[str, object]]:
        """Return what is shown of each."""
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


def _nothing() -> None:
    """Tell nobody."""
