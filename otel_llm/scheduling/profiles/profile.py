"""A profile: how long an iteration of an engine lasts, and what the engine has room for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Profile(ABC):
    """An engine as the scheduler and the simulator know it.

    Sizes are in tokens, `max_batch` in requests, overheads in ns.
    """

    name: str
    model: str
    accelerator: str
    engine: str
    tensor_parallel: int
    source: str
    """Where the numbers are from."""
    kv_tokens: int
    """The KV cache holds this many tokens."""
    max_batch: int
    """The most requests that run at once."""
    max_batched_tokens: int
    """The most tokens of an iteration: one a decode, and the prefill chunks."""
    step_overhead_ns: int
    """Each iteration lasts this much longer than `iteration_ns`."""
    request_overhead_ns: int
    """A request reaches the engine's queue this long after it was sent."""

    @property
    def batch_edges(self) -> tuple[int, ...]:
        """The batches between which `iteration_ns(batch, batch x context)` is a line in the batch, but for a floor."""
        return ()

    @property
    def chunk_edges(self) -> tuple[int, ...]:
        """The chunks between which `iteration_ns(0, 0, chunk, prior)` is a line in the chunk, but for a floor."""
        return ()

    @abstractmethod
    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
        """Return how long one iteration lasts, without `step_overhead_ns`; any numbers from 0 are answered.

        Args:
            decodes: requests that each get one token.
            kv_tokens: the tokens of their contexts, together.
            chunk: prefill tokens.
            prior: the tokens of those prompts that were prefilled before.
        """
