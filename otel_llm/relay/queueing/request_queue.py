"""The queue before the backends: it owns the requests that wait, and gives each free slot to the next of them.

It is used in one event loop. A slot is taken from the choice of a backend on, see `Backends.in_flight`.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Final

from otel_llm.core.fair_shares import has_room
from otel_llm.relay.answers import NO_BACKEND, QUEUE_FULL, QUEUE_TIMEOUT
from otel_llm.relay.backends.backend import ANYTHING
from otel_llm.relay.queueing.annealed_order import AnnealedOrder
from otel_llm.scheduling.annealing.whole_iterations import predictor_of
from otel_llm.scheduling.release_order import BY_PROFILE, WaitingRequest, rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.relay.backends.backend import Backend, Needs
    from otel_llm.relay.backends.backends import Backends
    from otel_llm.relay.metrics import RelayMetrics
    from otel_llm.relay.queueing.polyserve_placer import Placement, PolyServePlacer
    from otel_llm.relay.queueing.replica_model import PlacedRequest
    from otel_llm.relay.settings import Queue
    from otel_llm.scheduling.annealing import Predictor
    from otel_llm.scheduling.placement import Demand
    from otel_llm.slo.classes import SloClass

EVALUATION_EVERY_S: Final = 0.5
"""The interval of checks for a free slot while requests wait: the end of an ejection is no event."""

TRIED: Final = 16
"""The most requests in time that polyserve tries at one event: it asks each backend of a tier for each of them."""


class NotQueuedError(Exception):
    """A request gets no slot; `reason` is one word: `queue_full`, `queue_timeout`, `unavailable`, or the caller's."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Entry:
    """One request of a client that waits; `placed` gets its backend, `key` sorts it.

    `needs`: which backends can serve it.
    `tiered`: the request as polyserve sees it, and `placement` its slot there; None with other placements.
    """

    __slots__ = ("client", "demand", "key", "needs", "placed", "placement", "request", "tiered")

    def __init__(
        self,
        request: WaitingRequest,
        demand: Demand,
        needs: Needs,
        key: tuple[int, int, int],
        client: str,
        tiered: PlacedRequest | None = None,
    ) -> None:
        self.request = request
        self.client = client
        self.demand = demand
        self.needs = needs
        self.key = key
        self.tiered = tiered
        self.placement: Placement | None = None
        self.placed: asyncio.Future[Backend] = asyncio.get_running_loop().create_future()

    def leave(self, reason: str) -> None:
        """End the wait without a slot."""
        if not self.placed.done():
            self.placed.set_exception(NotQueuedError(reason))


class RequestQueue:
    """The requests that wait; made in the running loop.

    A slot goes to the client that has the fewest requests on backends; among the requests of such clients the order
    decides. One client leaves an eighth of the queue to others.

    `placement`: the policy that chooses among the backends with a free slot; `placer` replaces it if it is given,
    and may have a request wait though there is a slot. `now_ns`: the clock of arrivals.
    """

    def __init__(
        self,
        settings: Queue,
        placement: str,
        backends: Backends,
        metrics: RelayMetrics,
        now_ns: Callable[[], int],
        placer: PolyServePlacer | None = None,
    ) -> None:
        self._settings = settings
        self._placement = placement
        self._backends = backends
        self._metrics = metrics
        self._placer = placer
        if placer is not None:
            placer.freed = self.release
        self._numbers = count(1)
        self._waiting: list[Entry] = []
        """In the order of their release, but for the clients' turns."""
        self._by_client: Counter[str] = Counter()
        """The requests that have a slot."""
        self._timer: asyncio.TimerHandle | None = None
        self._predictor = _predictor(backends) if settings.order in BY_PROFILE else None
        self._annealed: AnnealedOrder | None = None
        if settings.order == "anneal" and self._predictor is not None:
            self._annealed = AnnealedOrder(self._predictor, self._slots, self._requests, self._reorder, now_ns)

    def __len__(self) -> int:
        return len(self._waiting)

    def entry(
        self,
        slo: SloClass,
        arrival_ns: int,
        prompt: int,
        output: int,
        demand: Demand,
        needs: Needs = ANYTHING,
        client: str = "",
    ) -> Entry:
        """Return the entry of a request that arrived; `prompt` and `output` are its expected tokens."""
        request = WaitingRequest(
            next(self._numbers),
            arrival_ns,
            max(1, prompt),
            output,
            slo.first_token_ns,
            slo.token_time_ns,
            slo.deadline.first_ns if slo.first_token_ns is None else None,
        )
        tiered = None if self._placer is None else self._placer.request(request)
        key = rank(self._settings.order, request, self._predictor)
        return Entry(request, demand, needs, key, client, tiered)

    async def place(self, entry: Entry) -> Backend:
        """Return the backend that has a slot for a request: at once if there is one and no other request waits.

        The slot is the request's: the caller sends it there in the same step of the loop. A request that is cancelled
        gives up its turn, or its slot; the end of one that was placed is noted by `ended`. Raises NotQueuedError.
        """
        if not self._backends.open_to(needs=entry.needs):
            raise NotQueuedError(NO_BACKEND)
        insort(self._waiting, entry, key=_key)
        self.release()
        if entry.placed.done():
            self._metrics.queued(0.0)
            return entry.placed.result()
        own = sum(one.client == entry.client for one in self._waiting) - 1
        if not has_room(own, len(self._waiting) - 1, self._settings.max_waiting):
            self._waiting.remove(entry)
            self._metrics.not_queued(QUEUE_FULL)
            raise NotQueuedError(QUEUE_FULL)
        self._changed()
        begun_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._settings.max_wait_s):
                backend = await entry.placed
        except TimeoutError:
            self._withdraw(entry)
            reason = QUEUE_TIMEOUT if self._backends.open_to(needs=entry.needs) else NO_BACKEND
            self._metrics.not_queued(reason)
            raise NotQueuedError(reason) from None
        except BaseException:
            self._withdraw(entry)
            raise
        self._metrics.queued(asyncio.get_running_loop().time() - begun_s)
        self._changed()
        return backend

    def release(self) -> None:
        """Give free slots to those who wait: a slot or a backend may have become free."""
        if self._placer is not None:
            self._release_by(self._placer)
            return
        while self._has_place and (found := self._next()) is not None:
            entry, free = found
            self._waiting.remove(entry)
            self._give(entry, self._backends.pick(self._placement, free, entry.demand))

    def _next(self) -> tuple[Entry, list[Backend]] | None:
        """Return the next request and the backends with a slot for it; the client with the fewest in turn goes first.

        One whose backends have no slot, as it waits for another model, holds up none behind it.
        """
        for entry in sorted(self._waiting, key=self._turn):  # the first of equals
            if entry.placed.done():  # its client has left in this very instant
                self._waiting.remove(entry)
            elif free := self._free(entry.needs):
                return entry, free
        return None

    def ended(self, client: str) -> None:
        """Note the end of a client's request that had a slot."""
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]

    def close(self) -> None:
        """Stop evaluating; those who wait are the caller's to end."""
        if self._timer is not None:
            self._timer.cancel()
        if self._annealed is not None:
            self._annealed.close()

    # Internals.

    def _turn(self, entry: Entry) -> int:
        return self._by_client[entry.client]

    def _give(self, entry: Entry, backend: Backend) -> None:
        self._by_client[entry.client] += 1
        entry.placed.set_result(backend)

    @property
    def _has_place(self) -> bool:
        """Tell whether any backend has a slot."""
        most = self._settings.in_flight
        return most is None or any(self._backends.in_flight(one) < most for one in self._backends)

    def _free(self, needs: Needs) -> list[Backend]:
        """Return the backends that take a request with these needs, and have a slot."""
        most, found = self._settings.in_flight, self._backends.open_to(needs=needs)
        return [one for one in found if most is None or self._backends.in_flight(one) < most]

    def _release_by(self, placer: PolyServePlacer) -> None:
        """Give slots to those for whom the policy has one: the first few in time, then, if none waits, late ones."""
        if not self._waiting:
            return
        waiting = sorted(self._waiting, key=self._turn)
        in_time = [one for one in waiting if one.tiered is not None and not one.tiered.late]
        for entry in in_time[:TRIED]:
            self._try(placer, entry, others_wait=True)
        for entry in [one for one in waiting if one.tiered is not None and one.tiered.late]:
            others_wait = any(one.tiered is not None and not one.tiered.late for one in self._waiting)
            if not self._try(placer, entry, others_wait=others_wait):
                return

    def _try(self, placer: PolyServePlacer, entry: Entry, *, others_wait: bool) -> bool:
        """Give a request the slot that the policy has for it; return whether there was one."""
        free = self._free(entry.needs)
        if entry.tiered is None or entry.placed.done() or not free:
            return False
        backend = placer.find(entry.tiered, free, others_wait=others_wait)
        if backend is None:
            return False
        self._waiting.remove(entry)
        self._backends.take_place(backend, entry.demand.tokens)
        entry.placement = placer.place(entry.tiered, backend)
        self._give(entry, backend)
        return True

    def _withdraw(self, entry: Entry) -> None:
        """Give up the turn of a request, or the slot that it got in the very instant in which it left."""
        placed = entry.placed
        if entry in self._waiting:
            self._waiting.remove(entry)
        elif placed.done() and not placed.cancelled() and placed.exception() is None:
            if entry.placement is not None:
                entry.placement.end(whole=False)
            self.ended(entry.client)
            self._backends.withdraw(placed.result())
            self.release()
        self._changed()

    def _changed(self) -> None:
        """Look again later while requests wait, and plan their order anew."""
        if not self._waiting:
            return
        if self._annealed is not None:
            self._annealed.changed()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVALUATION_EVERY_S, self._evaluate)

    def _evaluate(self) -> None:
        self._timer = None
        self.release()
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(EVALUATION_EVERY_S, self._evaluate)

    # For the annealed order.

    def _slots(self) -> int:
        """Return the slots of all backends that take requests: the plan is for one engine with all of them."""
        each = self._predictor.profile.max_batch if self._predictor is not None else 1
        return max(1, len(self._backends.open_to())) * (self._settings.in_flight or each)

    def _requests(self) -> list[WaitingRequest]:
        """Return the requests that wait, by arrival."""
        return sorted((entry.request for entry in self._waiting), key=lambda one: one.number)

    def _reorder(self, order: list[int]) -> None:
        """Sort by a plan; those that arrived since stay behind it, by arrival."""
        position = {number: at for at, number in enumerate(order)}
        for entry in self._waiting:
            number = entry.request.number
            entry.key = (0, position[number], number) if number in position else (1, 0, number)
        self._waiting.sort(key=_key)


def _predictor(backends: Backends) -> Predictor:
    """Return the predictor by the first backend's profile: the settings see to it that each has one."""
    profile = next(iter(backends)).profile
    if profile is None:
        raise ValueError("the order of the queue needs a profile of every backend")
    return predictor_of(profile)


def _key(entry: Entry) -> tuple[int, int, int]:
    return entry.key
