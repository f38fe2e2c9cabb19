"""The order in which waiting requests are released: by arrival, deadline, length, or annealing. No I/O, no clock.

The caller owns the requests that wait. It asks for the key by which they are sorted, or for a plan of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

from otel_llm.scheduling.annealing import Job
from otel_llm.scheduling.annealing.jobs import NS_PER_S, SHORTEST_S
from otel_llm.scheduling.annealing.search import Cooling, anneal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.scheduling.annealing import Predictor

Order = Literal["fcfs", "edf", "sjf", "anneal"]
ORDERS: Final[tuple[str, ...]] = get_args(Order)
BY_PROFILE: Final = frozenset({"sjf", "anneal"})
"""Orders that predict how long a request lasts."""
DEFAULT_ORDER: Final[Order] = "fcfs"
BRIEF: Final = Cooling(1.0, 0.02, 0.9, 10, relative=True)
"""A tenth of the moves of `scaled`, for requests that wait meanwhile: 380. It reaches 94 % and more of its G."""
WINDOW: Final = 32
"""The most requests that a plan is made for."""


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that waits: its expected lengths (tokens, from 1) and its promises (ns from the arrival, inclusive).

    `number`: unique, in order of arrival. `first_ns`: its first token; `token_ns`: each further one; `whole_ns`: the
    last one. None if nothing is promised.
    """

    number: int
    arrival_ns: int
    input: int
    output: int
    first_ns: int | None = None
    token_ns: int | None = None
    whole_ns: int | None = None

    @property
    def due_ns(self) -> int | None:
        """Return the instant at which its first promise is due; None if nothing is promised."""
        promised_ns = self.whole_ns if self.first_ns is None else self.first_ns
        return None if promised_ns is None else self.arrival_ns + promised_ns


def rank(order: str, request: WaitingRequest, predictor: Predictor | None) -> tuple[int, int, int]:
    """Return the key of a waiting request: the lowest is released first, of equal ones the first that arrived.

    `edf`: by `due_ns`, those without a promise last; `sjf`: by the predicted time alone on an idle engine, as the
    start of annealing (section 4.3) has it; `fcfs`, and `anneal` before there is a plan: by arrival.

    Raises: ValueError for an order of `BY_PROFILE` without a predictor.
    """
    if order in BY_PROFILE and predictor is None:
        raise ValueError(f"the order {order} predicts how long a request lasts: give a predictor")
    if order == "edf":
        due_ns = request.due_ns
        return (int(due_ns is None), due_ns or 0, request.number)
    if order == "sjf" and predictor is not None:
        return (0, predictor.times([Job(request.input, request.output)]).ends_ns[0], request.number)
    return (int(order == "anneal"), 0, request.number)


def plan(
    waiting: Sequence[WaitingRequest],
    predictor: Predictor,
    places: int,
    now_ns: int,
    *,
    window: int = WINDOW,
    schedule: str | Cooling = BRIEF,
    seed: int = 0,
) -> list[int]:
    """Return the numbers of the waiting requests in the order of their release.

    The first `window` of them have the order of an annealed plan, for an engine with so many places (1 or more): its
    batches run one after another from now on, and what was promised is less by the time that has passed. Those that
    are late already stand behind all others. One that does not fit into the engine's KV is the last of the window.
    `schedule`: of the search. The arguments decide the plan.
    """
    profile = predictor.profile
    # Otherwise those that are late would fill the window of an overloaded queue for good.
    waiting = sorted(waiting, key=lambda one: one.due_ns is not None and one.due_ns <= now_ns)
    fitting = [one for one in waiting[:window] if one.input + one.output <= profile.kv_tokens]
    others = [one.number for one in waiting[:window] if one.input + one.output > profile.kv_tokens]
    jobs = [_job(one, now_ns) for one in fitting]
    found = anneal(jobs, predictor, min(places, profile.max_batch), seed, schedule)
    planned = [fitting[index].number for batch in found.batches for index in batch]
    return [*planned, *others, *(one.number for one in waiting[window:])]


def _job(request: WaitingRequest, now_ns: int) -> Job:
    """Return a request as the search sees it; a promise that is past cannot be met."""
    waited_ns = now_ns - request.arrival_ns

    def left_s(promised_ns: int | None) -> float | None:
        return None if promised_ns is None else max(SHORTEST_S, (promised_ns - waited_ns) / NS_PER_S)

    return Job(
        request.input,
        request.output,
        e2e=left_s(request.whole_ns),
        ttft=left_s(request.first_ns),
        tpot=None if request.token_ns is None else max(SHORTEST_S, request.token_ns / NS_PER_S),
    )
