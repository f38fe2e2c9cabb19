"""Orders of the waiting requests of an instance; preempted ones are before all others in any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest


def first_token_due(request: SimulatedRequest) -> int:
    """Return the instant at which the first token of a request is due, in ns: the key of earliest deadline first."""
    return request.due_ns


ORDERS: Final[Mapping[str, Callable[[SimulatedRequest], int] | None]] = {"fcfs": None, "edf": first_token_due}
"""The key by which waiting requests are sorted, by name; of equal ones the first placed is first. None: no sorting."""
