"""The prefill replicas of a disaggregated fleet: shared by all tiers, earliest deadline first (sections 4.2, 4.7)."""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, Generic

from otel_llm.scheduling.polyserve.batch_budget import BatchBudget
from otel_llm.scheduling.polyserve.due_times import DueTimes
from otel_llm.scheduling.polyserve.prefill_time import PrefillTime, alone_ns
from otel_llm.scheduling.polyserve.replica import ReplicaT, RequestT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from otel_llm.scheduling.iteration_profile import IterationProfile
    from otel_llm.scheduling.polyserve.settings import PolyServeSettings


class PrefillPool(Generic[RequestT, ReplicaT]):
    """The policy of the prefill replicas. Their engines start waiting prompts by `due_ns`, late ones last.

    A request is aimed at TTFT - TPOT, so that its second token has the time of two; at TTFT if no idle replica could
    make that. Calls are as those of `PolyServe`.
    """

    def __init__(
        self,
        settings: PolyServeSettings,
        profile: IterationProfile,
        tpots_ns: Sequence[int],
        replicas: Iterable[ReplicaT],
        grow: Callable[[], ReplicaT] | None = None,
    ) -> None:
        self._settings = settings
        self._profile = profile
        self._promised_ns = tpots_ns
        self._replicas = list(replicas)
        self._grow = grow
        self._budgets = BatchBudget(settings, profile)
        margin = settings.kv_margin
        self._most_kv = profile.kv_tokens * (margin.denominator - margin.numerator) // margin.denominator
        self._waiting: list[tuple[int, int, RequestT]] = []
        self._late: deque[RequestT] = deque()
        self._changed: dict[int, ReplicaT] = {}

    @property
    def holds(self) -> int:
        """Return the number of requests that wait for a replica."""
        return len(self._waiting) + len(self._late)

    def place(self, request: RequestT, now_ns: int) -> ReplicaT | None:
        """Return the replica of a new request, None if it waits."""
        replica = self._find(request, now_ns, self._replicas)
        if replica is None and self._settings.unlimited and self._grow is not None and _empty(self._replicas) is None:
            self._replicas.append(self._grow())
            replica = self._find(request, now_ns, self._replicas[-1:])
        if replica is not None:
            return replica
        latest_ns = request.due_ns - alone_ns(self._profile, self._settings, request.context)
        if latest_ns >= now_ns and _empty(self._replicas) is None:
            insort(self._waiting, (latest_ns, request.number, request))
            return None
        request.late = True
        replica = None if self.holds else _empty(self._replicas)
        if replica is None:
            self._late.append(request)
        return replica

    def retry(self, now_ns: int) -> Iterator[tuple[RequestT, ReplicaT]]:
        """Yield the waiting requests that have a replica now, those first that could wait the least."""
        changed = list(self._changed.values())
        if not changed:
            return
        self._changed.clear()
        kept = []
        for entry in self._waiting:
            latest_ns, _, request = entry
            replica = self._find(request, now_ns, changed) if latest_ns >= now_ns else None
            if replica is not None:
                yield request, replica
            elif latest_ns < now_ns or _empty(changed) is not None:
                request.late = True
                self._late.append(request)
            else:
                kept.append(entry)
        self._waiting = kept
        while self._late and not self._waiting and (empty := _empty(changed)) is not None:
            yield self._late.popleft(), empty

    def ended(self, replica: ReplicaT) -> None:
        """Note that a request left a replica, or was over with its first token."""
        self._changed[replica.number] = replica

    def budget(self, replica: ReplicaT, now_ns: int) -> int:
        """Return the prefill tokens of the batch that a replica forms now."""
        return self._budgets.of(replica, DueTimes(), 0, now_ns)

    def _find(self, request: RequestT, now_ns: int, replicas: Sequence[ReplicaT]) -> ReplicaT | None:
        """Return a replica where the request and all that it overtakes are in time: the fullest of a pool that grows.

        In a pool of a fixed size the emptiest is taken: an idle replica saves nothing, and an early first token leaves
        time for the second.
        """
        gradient = self._settings.load_gradient and self._settings.unlimited
        for replica in sorted(replicas, key=_fullest if gradient else _emptiest):
            if self._is_in_time(request, replica, now_ns):
                return replica
        return None

    def _is_in_time(self, request: RequestT, replica: ReplicaT, now_ns: int) -> bool:
        if replica.tokens + request.context > self._most_kv:
            return False
        begin_ns = now_ns if replica.end_ns is None else replica.end_ns
        prediction = PrefillTime(self._profile, self._settings, begin_ns, 0, 0, None, None, joins=False)
        is_placed = False
        for other, remaining, prior in replica.prefills():
            if not is_placed and remaining == other.context and (other.late or other.due_ns > request.due_ns):
                if not self._completes(prediction, request, now_ns):
                    return False
                is_placed = True
            if other.late and is_placed:
                break
            done_ns = prediction.add(remaining, prior, other.context)
            if is_placed and (done_ns is None or done_ns > other.due_ns):
                return False
        return is_placed or self._completes(prediction, request, now_ns)

    def _completes(self, prediction: PrefillTime, request: RequestT, now_ns: int) -> bool:
        """Add a request behind those that are predicted; tell whether it completes by its aim."""
        context = request.context
        done_ns = prediction.add(context, 0, context)
        if done_ns is None or done_ns > request.due_ns:
            return False
        aim_ns = request.due_ns - self._promised_ns[request.tier]
        return done_ns <= aim_ns or now_ns + alone_ns(self._profile, self._settings, context) > aim_ns


def _fullest(replica: ReplicaT) -> tuple[int, int, int]:
    return -replica.tokens, -replica.requests, replica.number


def _emptiest(replica: ReplicaT) -> tuple[int, int, int]:
    return replica.tokens, replica.requests, replica.number


def _empty(replicas: Iterable[ReplicaT]) -> ReplicaT | None:
    """Return an idle replica: a request that it refuses has no use in waiting."""
    return next((one for one in replicas if not one.requests), None)
