"""The turn of one owned request in the queue: it waits there once, before its first backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm import semconv
from otel_llm.shared.clock import monotonic_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.relay.backends.backend import Backend, Needs
    from otel_llm.relay.queueing.polyserve_placer import Placement
    from otel_llm.relay.queueing.request_queue import Entry, RequestQueue
    from otel_llm.relay.recording.recorded import Recorded
    from otel_llm.scheduling.placement import Demand


class QueueTurn:
    """The turn of the request that `recorded` is of; `prompt` and `output` are its expected tokens.

    `client`: whose it is. `close` it when the request has ended: its slot counts to the client until then.
    """

    def __init__(self, queue: RequestQueue, recorded: Recorded, prompt: int, output: int, client: str) -> None:
        self._queue = queue
        self._recorded = recorded
        self._prompt = prompt
        self._output = output
        self._client = client
        self._placed = False
        self._entry: Entry | None = None
        self._placement: Placement | None = None
        self.placed: Callable[[], object] = _nothing
        """Called when it has a slot."""

    async def place(self, demand: Demand, needs: Needs) -> Backend:
        """Return the backend that has a slot for it; raises NotQueuedError. The wait is recorded in any case."""
        recorded, begun_ns = self._recorded, monotonic_ns()
        entry = self._entry = self._queue.entry(
            recorded.slo, recorded.commit_ns, self._prompt, self._output, demand, needs, self._client
        )
        try:
            backend = await self._queue.place(entry)
        finally:
            self._entry = None
            recorded.state({semconv.GEN_AI_LATENCY_QUEUE: (monotonic_ns() - begun_ns) / 1e9})
        self._placement = entry.placement
        self._placed = True
        self.placed()
        return backend

    def close(self) -> None:
        """Note that the request has ended."""
        if self._placed:
            self._queue.ended(self._client)

    def leave(self, reason: str) -> None:
        """End the wait: no backend gets the request."""
        if self._entry is not None:
            self._entry.leave(reason)

    def take_placement(self) -> Placement | None:
        """Return the slot by the policy of the queue, for the backend that gets the request first; once."""
        placement, self._placement = self._placement, None
        return placement


def _nothing() -> None:
    """Do nothing."""
