"""A simulated instance: it forms batches, ends iterations and reserves KV, without any work per token.

A decode has one token more at the end of every iteration, so the instance keeps only sums, and the iteration of the
last token of each decode.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, Protocol

from otel_llm.scheduling.polyserve.replica import Prefill
from otel_llm.scheduling.simulator.ordering import PredictedOrder
from otel_llm.scheduling.simulator.simulated_request import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_llm.scheduling.iteration_profile import EngineProfile
    from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest


class Observer(Protocol):
    """A policy that follows the requests of an instance."""

    def completed(self, request: SimulatedRequest, instance: Instance, tokens: int) -> None:
        """Note that a request, with so many tokens so far, decodes here from the next iteration on."""
        ...

    def preempted(self, request: SimulatedRequest, instance: Instance) -> None:
        """Note that a request lost its KV and waits again."""
        ...

    def ended(self, request: SimulatedRequest, instance: Instance) -> None:
        """Note that a request is over or leaves for the decode pool; it holds no KV here any more."""
        ...


class Instance:
    """An engine that runs iterations back to back while it has work.

    `decoding`: the running decodes by request number; `decode_context`: the sum of their contexts (input + output so
    far); `partial`: the started prefills by start number; `waiting`: the placed requests that have not started, in
    order; `kv_free`: free KV tokens. `prefill_tokens`: the tokens of partial and waiting requests that are in no
    iteration yet; `pending_context`: their contexts. `ends`: the end of every iteration so far, int64, ns;
    `begin_ns`: the begin of the latest one; `end_ns`: the end of the current one, None while idle; `busy_ns`: the time
    of all of them. `turn`: the number of the last placement here.

    Args:
        budget: returns the prefill tokens that the next batch may have, given this instance.
        key: waiting requests are sorted by it; None: by their placement. A `PredictedOrder` may also rearrange them.
        hands_over: after its first token a request leaves for the decode pool.
        observer: its methods are called at first tokens, preemptions and ends.
    """

    __slots__ = (
        "_added",
        "_budget",
        "_completing",
        "_finishing",
        "_iteration_ns",
        "_key",
        "_observer",
        "_order",
        "_starts",
        "begin_ns",
        "busy_ns",
        "decode_context",
        "decoding",
        "end_ns",
        "ends",
        "hands_over",
        "kv_free",
        "number",
        "partial",
        "pending_context",
        "preemptions",
        "prefill_tokens",
        "profile",
        "turn",
        "waiting",
    )

    def __init__(
        self,
        number: int,
        profile: EngineProfile,
        budget: Callable[[Instance], int],
        key: Callable[[SimulatedRequest], int] | None = None,
        *,
        hands_over: bool = False,
        observer: Observer | None = None,
    ) -> None:
        self.number = number
        self.profile = profile
        self.decoding: dict[int, SimulatedRequest] = {}
        self.decode_context = 0
        self.partial: list[SimulatedRequest] = []
        self.waiting: deque[SimulatedRequest] = deque()
        self.kv_free = profile.kv_tokens
        self.prefill_tokens = 0
        self.pending_context = 0
        self.ends = array("q")
        self.begin_ns = 0
        self.end_ns: int | None = None
        self.busy_ns = 0
        self.turn = 0
        self.preemptions = 0
        self._budget = budget
        self._key = key
        self._order = key if isinstance(key, PredictedOrder) else None
        self._added = False  # whether requests were added since the waiting ones were arranged
        self.hands_over = hands_over
        self._observer = observer
        self._iteration_ns = profile.iteration_ns
        self._starts = 0
        self._completing = 0  # the first so many of `partial` complete in the current iteration
        self._finishing: dict[int, list[SimulatedRequest]] = {}  # decodes by the iteration of their last token

    @property
    def requests(self) -> int:
        """Return the number of requests placed here that are not over."""
        return len(self.decoding) + len(self.partial) + len(self.waiting)

    @property
    def tokens(self) -> int:
        """Return the contexts of all requests placed here: prompts and output so far."""
        return self.decode_context + self.pending_context

    @property
    def decodes(self) -> int:
        """Return the number of running decodes."""
        return len(self.decoding)

    @property
    def iterations(self) -> int:
        """Return the number of iterations so far."""
        return len(self.ends)

    def prefills(self) -> Iterator[Prefill]:
        """Yield the requests that are to start or to complete their prefill, in the order of their chunks."""
        for request in self.partial:
            yield Prefill(request, request.context - request.prefilled, request.prefilled)
        for request in self.waiting:
            yield Prefill(request, 0 if request.ready else request.context, 0)

    def add(self, request: SimulatedRequest) -> None:
        """Add a request to the waiting ones, behind those with the same key; late ones are behind all others."""
        waiting, key = self.waiting, self._key
        place = len(waiting)
        # Those that were preempted here are before all others.
        while place and not waiting[place - 1].preemptions and _is_before(request, waiting[place - 1], key):
            place -= 1
        waiting.insert(place, request)
        self._added = True
        self.pending_context += request.context
        if not request.ready:
            self.prefill_tokens += request.context

    def form(self, now_ns: int) -> int | None:
        """Form a batch and start its iteration; return its end in ns, None if there is nothing to run.

        Raises:
            ValueError: the budget of an instance without decodes is below 1, so that it would never go on.
        """
        decoding = self.decoding
        self.begin_ns = now_ns
        if self.kv_free < len(decoding):
            self._preempt()
        self.kv_free -= len(decoding)
        chunk = prior = 0
        if self._added and self._order is not None and self._has_room():
            self._order.arrange(self.waiting, now_ns)
            self._added = False
        if self.partial or self.waiting:
            chunk, prior = self._schedule()
        if not chunk and not decoding:
            return None
        length_ns = self._iteration_ns(len(decoding), self.decode_context, chunk, prior)
        length_ns += self.profile.step_overhead_ns
        self.busy_ns += length_ns
        self.end_ns = now_ns + length_ns
        return self.end_ns

    def end(self, now_ns: int) -> list[SimulatedRequest]:
        """End the iteration: every decode and every complete prefill has a token more.

        Return the requests that leave for the decode pool, which hold no KV here any more.
        """
        iteration = len(self.ends)
        self.ends.append(now_ns)
        self.end_ns = None
        self.decode_context += len(self.decoding)
        for request in self._finishing.pop(iteration, ()):
            del self.decoding[request.number]
            context = request.input + request.output
            self.decode_context -= context
            self.kv_free += context
            self._close_run(request, iteration)
            self._finish(request, now_ns)
            if self._observer is not None:
                self._observer.ended(request, self)
        return self._complete_prefills(iteration, now_ns) if self._completing else []

    def _complete_prefills(self, iteration: int, now_ns: int) -> list[SimulatedRequest]:
        complete = self.partial[: self._completing]
        del self.partial[: self._completing]
        self._completing = 0
        leaving = []
        for request in complete:
            self.pending_context -= request.context
            request.first = iteration
            last = iteration + request.output - request.produced - 1
            if last > iteration and not self.hands_over:
                self.decode_context += request.context + 1
                self._decode_until(request, last)
                if self._observer is not None:
                    self._observer.completed(request, self, request.produced + 1)
                continue
            self.kv_free += request.context + 1
            self._close_run(request, iteration)
            if last == iteration:
                self._finish(request, now_ns)
            else:
                request.ready = True
                leaving.append(request)
            if self._observer is not None:
                self._observer.ended(request, self)
        return leaving

    def _has_room(self) -> bool:
        """Tell whether a waiting request could start: an order that is made before would count from too early."""
        if len(self.decoding) + len(self.partial) >= self.profile.max_batch:
            return False
        return any(one.context < self.kv_free for one in self.waiting)

    def _finish(self, request: SimulatedRequest, now_ns: int) -> None:
        request.end_ns = now_ns
        if self._order is not None:
            self._order.finish(request)

    def _decode_until(self, request: SimulatedRequest, last: int) -> None:
        self.decoding[request.number] = request
        self._finishing.setdefault(last, []).append(request)

    def _close_run(self, request: SimulatedRequest, last: int) -> None:
        count = last - request.first + 1
        request.runs.append(Run(self.number, request.first, count))
        request.produced += count
        request.context = request.input + request.produced

    def _schedule(self) -> tuple[int, int]:
        """Give prefill chunks and start waiting requests; return chunk and prior tokens of the batch."""
        chunk = weighted = 0
        budget = self._budget(self)
        if budget < 1 and not self.decoding and not (self.waiting and self.waiting[0].ready):
            raise ValueError(
                f"instance {self.number} has no decodes and a prefill budget of {budget}: it needs 1 or more"
            )
        for request in self.partial:
            if budget < 1:
                break
            take = min(request.context - request.prefilled, budget)
            chunk += take
            weighted += take * request.prefilled
            budget -= take
            self._prefill(request, take)
        waiting, room = self.waiting, self.profile.max_batch - len(self.decoding) - len(self.partial)
        while waiting and room > 0:
            request = waiting[0]
            if request.context >= self.kv_free or (budget < 1 and not request.ready):
                break
            waiting.popleft()
            self.kv_free -= request.context + 1
            self._starts += 1
            request.start = self._starts
            room -= 1
            if request.ready:
                self._join(request)
                continue
            take = min(request.context, budget)
            chunk += take
            budget -= take
            self.partial.append(request)
            self._prefill(request, take)
        self.prefill_tokens -= chunk
        return chunk, weighted // chunk if chunk else 0

    def _prefill(self, request: SimulatedRequest, take: int) -> None:
        request.prefilled += take
        # Tokens are given in order of start, so that those which complete are the first of all.
        self._completing += request.prefilled == request.context

    def _join(self, request: SimulatedRequest) -> None:
        """Add a request whose context is here to the decodes of the batch that is formed."""
        self.pending_context -= request.context
        self.decode_context += request.context
        request.first = len(self.ends)
        self._decode_until(request, request.first + request.output - request.produced - 1)
        if self._observer is not None:
            self._observer.completed(request, self, request.produced)

    def _preempt(self) -> None:
        """Preempt the latest starts until every decode left has a place for its next token."""
        while self.kv_free < len(self.decoding):
            latest = max(self.decoding.values(), key=_start)
            if self.partial and self.partial[-1].start > latest.start:
                latest = self.partial.pop()
                self.prefill_tokens += latest.prefilled
                self.kv_free += latest.context + 1
            else:
                self._stop_decode(latest)
            latest.prefilled = 0
            latest.preemptions += 1
            if self._observer is not None:
                self._observer.preempted(latest, self)
            self.preemptions += 1
            self.waiting.appendleft(latest)

    def _stop_decode(self, request: SimulatedRequest) -> None:
        del self.decoding[request.number]
        self._finishing[request.first + request.output - request.produced - 1].remove(request)
        self._close_run(request, len(self.ends) - 1)
        request.ready = False
        self.decode_context -= request.context
        self.pending_context += request.context
        self.prefill_tokens += request.context
        self.kv_free += request.context


def _is_before(
    request: SimulatedRequest, other: SimulatedRequest, key: Callable[[SimulatedRequest], int] | None
) -> bool:
    """Tell whether a new request starts before one that waits already."""
    if request.late != other.late:
        return other.late
    return key is not None and key(other) > key(request)


def _start(request: SimulatedRequest) -> int:
    return request.start
