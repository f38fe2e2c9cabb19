"""The event loop: a fleet of instances from the first arrival until every request is over."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.scheduling.simulator.instance import Instance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from otel_llm.scheduling.iteration_profile import EngineProfile
    from otel_llm.scheduling.simulator.placing import Placement
    from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest

_END: Final = 0
_RETRY: Final = 1
_VISIBLE: Final = 2
"""Events of one instant by their order: iterations end, held requests are tried again, requests become visible."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The way of a context from a prefill to a decode instance: `latency_ns`, and `per_token_ns` of its input."""

    latency_ns: int = 0
    per_token_ns: Fraction = Fraction(0)

    def of(self, input_tokens: int) -> int:
        """Return the time of a transfer in ns, rounded once, half up."""
        numerator, denominator = (self.per_token_ns * input_tokens).as_integer_ratio()
        return self.latency_ns + (2 * numerator + denominator) // (2 * denominator)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The instances; of a disaggregated fleet the first `prefill` only prefill, and the others decode.

    Raises:
        ValueError: no instance, or a pool of a disaggregated fleet without one.
    """

    instances: int
    prefill: int = 0
    transfer: Transfer = field(default_factory=Transfer)

    def __post_init__(self) -> None:
        if self.instances < 1 or not 0 <= self.prefill < self.instances:
            raise ValueError(f"{self.prefill} prefill instances of {self.instances}: each pool needs at least one")


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A run: its requests by number, and its instances with the end of every iteration so far.

    `decisions`: placements; `end_ns`: the last event so far; `instance_ns`: the time of all instances together, or,
    if a placement frees idle ones (`Placement.frees_idle`), only that with requests.
    """

    requests: Sequence[SimulatedRequest]
    instances: Sequence[Instance]
    decisions: int
    end_ns: int
    instance_ns: int

    def token_times(self, request: SimulatedRequest) -> NDArray[np.int64]:
        """Return the times of a request's tokens (output,) int64, ns, from its runs of iterations; none if dropped."""
        times = np.empty(sum(run.tokens for run in request.runs), np.int64)
        at = 0
        for run in request.runs:
            ends = np.frombuffer(self.instances[run.instance].ends, np.int64)
            times[at : at + run.tokens] = ends[run.first : run.first + run.tokens]
            at += run.tokens
        return times

    def tokens_so_far(self, request: SimulatedRequest) -> NDArray[np.int64]:
        """Return the times of the tokens (T,) int64, ns, that a request has at the last event, in flight or not."""
        closed = self.token_times(request)
        for instance in self.instances:
            if request.number in instance.decoding:
                return np.concatenate([closed, np.frombuffer(instance.ends, np.int64)[request.first :]])
        return closed


def simulate(
    requests: Sequence[SimulatedRequest],
    profile: EngineProfile,
    fleet: Fleet,
    placement: Placement,
    progress: Callable[[int], None] | None = None,
    every: int = 1000,
    order: Callable[[SimulatedRequest], int] | None = None,
) -> SimulatedRun:
    """Serve all requests, sorted by arrival and numbered from 0, which changes them; a run is a function of these.

    `order`: the key by which an instance sorts its waiting requests, or a `PredictedOrder`; None: by their placement.
    `progress` is called with the number of requests that arrived, at each `every`.

    Raises:
        ValueError: requests that are not sorted or not numbered by position.
    """
    steps = simulate_in_steps(requests, profile, fleet, placement, every, order)
    for arrived in range(every, len(requests) + 1, every):
        next(steps)
        if progress is not None:
            progress(arrived)
    return next(steps)


def simulate_in_steps(
    requests: Sequence[SimulatedRequest],
    profile: EngineProfile,
    fleet: Fleet,
    placement: Placement,
    every: int = 1000,
    order: Callable[[SimulatedRequest], int] | None = None,
) -> Iterator[SimulatedRun]:
    """Serve requests as `simulate` does; yield the run so far when each `every` requests arrived, and the whole last.

    A run so far shows the state at the next step, too, from then on.

    Raises:
        ValueError: requests that are not sorted or not numbered by position.
    """
    for number, request in enumerate(requests):
        if request.number != number or (number and request.arrival_ns < requests[number - 1].arrival_ns):
            raise ValueError(f"request {request.number} at position {number}: sort by arrival, number from 0")
    return _Simulation(requests, profile, fleet, placement, order).steps(every)


class _Simulation:
    def __init__(
        self,
        requests: Sequence[SimulatedRequest],
        profile: EngineProfile,
        fleet: Fleet,
        placement: Placement,
        order: Callable[[SimulatedRequest], int] | None,
    ) -> None:
        self.requests = requests
        self.profile = profile
        self.transfer = fleet.transfer
        self.placement = placement
        self.order = order
        self.instances: list[Instance] = []
        self.arrivals: list[Instance] = []
        self.decoders = [] if fleet.prefill else self.arrivals
        for number in range(fleet.instances):
            self._grow(number >= fleet.prefill)
        placement.begin(self.arrivals, self.decoders, self._grow)
        self.events: list[tuple[int, int, int]] = []
        self.retry_ns = -1
        self.decisions = 0

    def steps(self, every: int) -> Iterator[SimulatedRun]:
        events, instances, requests = self.events, self.instances, self.requests
        self._push_arrival(0)
        idle: dict[int, Instance] = {}
        now = arrived = 0
        due = every
        while events:
            now, kind, number = heappop(events)
            if kind == _END:
                instance = instances[number]
                for request in instance.end(now):
                    heappush(events, (now + self.transfer.of(request.input), _VISIBLE, request.number))
                idle[number] = instance
                if self.placement.holds and self.retry_ns != now:
                    self.retry_ns = now
                    heappush(events, (now, _RETRY, 0))
            elif kind == _RETRY:
                for request, instance in self.placement.retry(now):
                    self._add(request, instance)
                    if instance.end_ns is None:
                        idle[instance.number] = instance
            else:
                request = requests[number]
                if not request.produced:
                    self._push_arrival(number + 1)
                    arrived = number + 1
                placed = self._place(request, now)
                if placed is not None and placed.end_ns is None:
                    idle[placed.number] = placed
            # All ends and placements of an instant stand before the batches that form at it.
            if idle and (not events or events[0][0] > now):
                for instance in idle.values():
                    end_ns = instance.form(now)
                    if end_ns is not None:
                        heappush(events, (end_ns, _END, instance.number))
                idle.clear()
            if arrived == due:
                due += every
                yield self._so_far(now)
        yield self._so_far(now)

    def _so_far(self, now: int) -> SimulatedRun:
        """Return the run up to an instant."""
        in_use_ns = sum(one.busy_ns for one in self.instances)
        instance_ns = in_use_ns if self.placement.frees_idle else len(self.instances) * now
        return SimulatedRun(self.requests, self.instances, self.decisions, now, instance_ns)

    def _push_arrival(self, number: int) -> None:
        if number < len(self.requests):
            visible = self.requests[number].arrival_ns + self.profile.request_overhead_ns
            heappush(self.events, (visible, _VISIBLE, number))

    def _place(self, request: SimulatedRequest, now: int) -> Instance | None:
        if request.input + request.output > self.profile.kv_tokens:
            request.dropped = True
            request.end_ns = now
            return None
        pool = self.decoders if request.ready else self.arrivals
        instance = self.placement.place(request, pool, now)
        if instance is not None:
            self._add(request, instance)
        return instance

    def _add(self, request: SimulatedRequest, instance: Instance) -> None:
        self.decisions += 1
        instance.turn = self.decisions
        instance.add(request)

    def _grow(self, is_decoder: bool) -> Instance:
        """Add an idle instance to the decode pool (of a colocated fleet, to the only one) or to the prefill pool."""
        placement, hands_over = self.placement, not is_decoder
        order = (placement.prefill_order or self.order) if hands_over else self.order
        instance = Instance(
            len(self.instances),
            self.profile,
            placement.budget,
            order,
            hands_over=hands_over,
            observer=placement.observer,
        )
        self.instances.append(instance)
        (self.decoders if is_decoder else self.arrivals).append(instance)
        return instance
