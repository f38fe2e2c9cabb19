"""PolyServe in the relay: the policy of `scheduling.polyserve` on models of the backends.

The queue holds the requests that have to wait, and asks again; an engine's own chunk budget is not changed.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from otel_llm.relay.queueing.replica_model import PlacedRequest, ReplicaModel
from otel_llm.scheduling.output_lengths import EXPECTED_OUTPUT
from otel_llm.scheduling.polyserve.policy import PolyServe
from otel_llm.scheduling.polyserve.settings import PolyServeSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from otel_llm.relay.backends.backend import Backend
    from otel_llm.relay.backends.backends import Backends
    from otel_llm.scheduling.release_order import WaitingRequest

SETTINGS: Final = PolyServeSettings(chunking="engine")


class Placement:
    """The life of a request on the backend that the policy gave it: its tokens and its end, each noted once."""

    __slots__ = ("_over", "_placer", "_replica", "_request")

    def __init__(self, placer: PolyServePlacer, request: PlacedRequest, replica: ReplicaModel) -> None:
        self._placer = placer
        self._request = request
        self._replica = replica
        self._over = False

    def read(self, tokens: int, now_ns: int) -> None:
        """Note tokens that were read."""
        if not self._over:
            self._placer.read(self._request, self._replica, tokens, now_ns)

    def end(self, *, whole: bool) -> None:
        """Note that the backend serves it no longer; `whole`: to its end."""
        if not self._over:
            self._over = True
            self._placer.end(self._request, self._replica, whole=whole)


class PolyServePlacer:
    """The policy, its models and its tiers.

    `token_times_ns`: the times a token that classes promise, each a tier. `freed` is called when a first token may have
    made room for a request that waits; set by the queue. Raises ValueError without such a class or without profiles.
    """

    def __init__(self, backends: Backends, token_times_ns: Collection[int], now_ns: Callable[[], int]) -> None:
        models, profiles = [], []
        for number, backend in enumerate(backends):
            if backend.profile is None:
                raise ValueError(f"{backend.name} has no profile")
            profiles.append(backend.profile)
            models.append(ReplicaModel(number, backend, backends, backend.profile))
        self._models = {model.backend.name: model for model in models}
        self._tiers_ns = sorted(set(token_times_ns))
        if not self._tiers_ns:
            raise ValueError("no class promises a time a token")
        self._now_ns = now_ns
        self._policy: PolyServe[PlacedRequest, ReplicaModel] = PolyServe(
            SETTINGS, profiles[0], self._tiers_ns, models, EXPECTED_OUTPUT
        )
        self.freed: Callable[[], None] = _nothing

    def request(self, waiting: WaitingRequest) -> PlacedRequest:
        """Return a request as the policy sees it; one whose class promises no first token or no pace is best effort.

        A time a token that is no tier, of a class that was reloaded, counts as the next tighter one.
        """
        late = waiting.token_ns is None or waiting.first_ns is None
        tier = len(self._tiers_ns) - 1
        if waiting.token_ns is not None:
            tier = max(0, bisect_right(self._tiers_ns, waiting.token_ns) - 1)
        due_ns = waiting.arrival_ns + (waiting.first_ns or 0)
        return PlacedRequest(waiting.number, tier, waiting.input, due_ns, late=late)

    def find(self, request: PlacedRequest, free: Sequence[Backend], *, others_wait: bool) -> Backend | None:
        """Return the backend that a request goes to, one of those with a free slot; None if it has to wait."""
        now_ns, names = self._now_ns(), {one.name for one in free}
        for name, model in self._models.items():
            model.is_open = name in names
            model.advance(now_ns)
        found = self._policy.find(request, now_ns, others_wait=others_wait)
        return None if found is None else found.backend

    def place(self, request: PlacedRequest, backend: Backend) -> Placement:
        """Return the life of a request on the backend that was found, behind its place in `Backends`."""
        model = self._models[backend.name]
        model.place(request, self._now_ns())
        return Placement(self, request, model)

    def read(self, request: PlacedRequest, model: ReplicaModel, tokens: int, now_ns: int) -> None:
        """Note tokens of a request."""
        if model.read(request, tokens, now_ns):
            self._policy.completed(request, model, tokens)
            self.freed()

    def end(self, request: PlacedRequest, model: ReplicaModel, *, whole: bool) -> None:
        """Note the end of a request; only the length of a whole one is learned."""
        model.end(request)
        self._policy.ended(request, model, request.produced if whole else None)


def _nothing() -> None:
    """Do nothing."""
