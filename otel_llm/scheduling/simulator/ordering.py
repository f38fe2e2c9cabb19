"""Orders of the waiting requests of an instance; preempted ones are before all others in any of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Mapping

    from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest


class WaitingOrder(ABC):
    """An order that keeps state over a run: the sort key of a request, and what else an instance reports to it."""

    @abstractmethod
    def __call__(self, request: SimulatedRequest) -> int:
        """Return the key by which a waiting request is sorted; of equal ones the first placed is first."""

    def arrange(self, waiting: deque[SimulatedRequest], now_ns: int) -> None:  # noqa: B027 - most orders only sort
        """Reorder the waiting requests before a batch forms in which one could start.

        It is called if requests were added since the last call. Those that were preempted are the first, and stay so.
        """

    def finish(self, request: SimulatedRequest) -> None:  # noqa: B027 - most orders do not learn
        """Note that a request has all its tokens."""


def first_token_due(request: SimulatedRequest) -> int:
    """Return the instant at which the first token of a request is due, in ns: the key of earliest deadline first."""
    return request.due_ns


ORDERS: Final[Mapping[str, Callable[[SimulatedRequest], int] | None]] = {"fcfs": None, "edf": first_token_due}
"""Orders without state: the key by which waiting requests are sorted, by name. None: no sorting."""
