"""A queue with slots and fixed service as a source of probes: M/D/c, or bursty arrivals; its waits are exact."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from otel_llm.bench.capacity.objective import HELD, MISSED
from otel_llm.bench.capacity.observations import Observations, ProbeEnd
from otel_llm.bench.capacity.statistics.virtual_queue import REFERENCE_REQUESTS, Load


@dataclass(frozen=True)
class SlotQueue:
    """First come, first served by `slots` servers of 1 s each; a request is met if it waits at most `patience` s."""

    slots: int
    patience: float
    cv: float

    def arrivals(self, rate: float, requests: int, draw: np.random.Generator) -> np.ndarray:
        shape = 1 / self.cv**2
        gaps = draw.gamma(shape, 1 / (rate * shape), requests)
        gaps[0] = 0.0
        return np.cumsum(gaps)

    def waits(self, at: np.ndarray) -> np.ndarray:
        free = [0.0] * self.slots
        found = np.empty(len(at))
        for number, now in enumerate(at.tolist()):
            start = max(now, free[0])
            heapq.heapreplace(free, start + 1.0)
            found[number] = start - now
        return found

    def attainment(self, rate: float, requests: int, seed: int) -> float:
        waits = self.waits(self.arrivals(rate, requests, np.random.default_rng(seed)))
        return float((waits <= self.patience).mean())


class QueueSource:
    def __init__(self, queue: SlotQueue, seed: int) -> None:
        self.queue = queue
        self.seed = seed
        self.probes = 0

    def begin(self, rate: float, limit: float) -> QueueProbe:
        self.probes += 1
        at = self.queue.arrivals(rate, int(limit), np.random.default_rng([self.seed, self.probes]))
        return QueueProbe(at, self.queue.waits(at), self.queue.patience)

    def reference(self) -> Load:
        at = self.queue.arrivals(1.0, REFERENCE_REQUESTS, np.random.default_rng([self.seed, 0]))
        return Load(at, np.ones(len(at)), np.ones(len(at)))


class QueueProbe:
    def __init__(self, at: np.ndarray, waits: np.ndarray, patience: float) -> None:
        self.at = at
        self.waits = waits
        self.patience = patience
        self.ends = at + waits + 1.0
        ordered = np.sort(self.ends)
        self.in_flight = (np.arange(len(at)) - np.searchsorted(ordered, at, side="right")).astype(float)
        self.known_at = at + np.minimum(waits, patience)
        self.sent = 0
        self.most_requests = len(at)

    def observe(self, requests: int) -> Observations | None:
        if self.sent == len(self.at):
            return None
        self.sent = min(len(self.at), requests)
        now = self.at[self.sent - 1]
        unknown = np.flatnonzero(self.known_at[: self.sent] > now)
        known = int(unknown[0]) if len(unknown) else self.sent
        ones = np.ones(self.sent)
        waits = self.waits[:known]
        return Observations(
            Load(self.at[: self.sent], ones, ones),
            self.in_flight[: self.sent],
            np.minimum(self.ends[: self.sent], now) - self.at[: self.sent],
            np.where(waits <= self.patience, HELD, MISSED).astype(np.int8)[None, :],
            np.minimum(waits, now - self.at[:known]),
        )

    def end(self) -> ProbeEnd:
        seconds = float(self.ends[: self.sent].max())
        return ProbeEnd(cost=self.sent, seconds=seconds, requests=self.sent)
