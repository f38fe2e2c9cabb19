"""What policies and the simulated engine need of a profile: an engine's limits, and the time of an iteration."""

from __future__ import annotations

from typing import Protocol


class IterationProfile(Protocol):
    """The limits of an engine in tokens and requests, and the time of an iteration in ns."""

    @property
    def kv_tokens(self) -> int:
        """Return the KV tokens of an instance."""
        ...

    @property
    def max_batch(self) -> int:
        """Return the most requests that run at once."""
        ...

    @property
    def max_batched_tokens(self) -> int:
        """Return the most tokens of a batch: one for each decode, and the chunk."""
        ...

    @property
    def step_overhead_ns(self) -> int:
        """Return the time added to every iteration."""
        ...

    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
        """Return the time of an iteration without its overhead."""
        ...


class EngineProfile(IterationProfile, Protocol):
    """A profile with the time before an engine sees a request."""

    @property
    def request_overhead_ns(self) -> int:
        """Return the time from the arrival of a request until it is visible."""
        ...
