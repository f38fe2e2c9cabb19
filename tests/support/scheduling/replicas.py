"""Replicas and a profile for the policy alone, so that its cases can be worked by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from otel_llm.scheduling.polyserve.replica import Prefill


@dataclass(frozen=True)
class LineProfile:
    """An iteration lasts 100 + KV + 2 chunk + chunk x prior / 100, without overhead."""

    kv_tokens: int = 10_000
    max_batch: int = 8
    max_batched_tokens: int = 100
    step_overhead_ns: int = 0

    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
        del decodes
        return 100 + kv_tokens + 2 * chunk + chunk * prior // 100


class FlatProfile(LineProfile):
    """The same without the cost of prior tokens."""

    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
        del prior
        return super().iteration_ns(decodes, kv_tokens, chunk)


@dataclass
class Wanted:
    """A request with its first token due at `due_ns`."""

    number: int
    tier: int = 0
    context: int = 10
    due_ns: int = 1000
    ready: bool = False
    late: bool = False


@dataclass
class StandIn:
    """A replica that does what the test says."""

    number: int = 0
    end_ns: int | None = None
    iterations: int = 0
    running: list[Wanted] = field(default_factory=list)
    queue: list[Prefill] = field(default_factory=list)

    @property
    def decodes(self) -> int:
        return len(self.running)

    @property
    def decode_context(self) -> int:
        return sum(one.context for one in self.running)

    @property
    def requests(self) -> int:
        return len(self.running) + len(self.queue)

    @property
    def tokens(self) -> int:
        return self.decode_context + sum(one.request.context for one in self.queue)

    def prefills(self) -> Iterator[Prefill]:
        return iter(self.queue)

    def add(self, request: Wanted) -> None:
        self.queue.append(Prefill(request, request.context, 0))

    def decode(self, request: Wanted) -> None:
        """Let a queued request decode."""
        self.queue = [one for one in self.queue if one.request is not request]
        self.running.append(request)

    def drop(self, request: Wanted) -> None:
        self.queue = [one for one in self.queue if one.request is not request]
        self.running = [one for one in self.running if one is not request]
