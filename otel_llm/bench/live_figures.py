"""The figures of a run while it goes on: rate, requests in flight, readers waiting now, time to the first token."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_llm.slo.quantiles import P50, nearest_rank
from otel_llm.slo.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.bench.client.load_run import LoadRun
    from otel_llm.bench.client.observed_request import ObservedRequest
    from otel_llm.slo.classes import SloClass

RECENT_NS: Final = 10 * 10**9
"""How far back rate and first tokens look."""


@dataclass(frozen=True, slots=True)
class LiveSnapshot:
    """The figures of one instant.

    `rate`: requests sent a second, over the last 10 s; `waiting`: readers in flight who have nothing left to read;
    `ttft_s`: median of the first tokens of the last 10 s, None if there were none; `left_s`: until the last request
    is sent, None if it is not known.
    """

    sent: int
    ended: int
    failed: int
    in_flight: int
    waiting: int
    rate: float
    ttft_s: float | None
    left_s: float | None


class LiveFigures:
    """The figures of one run.

    Args:
        slo: the class whose reader reads.
        length_ns: how long requests are sent, None if it is not known.
    """

    def __init__(self, slo: SloClass, length_ns: int | None) -> None:
        self._slo = slo
        self._length_ns = length_ns
        self._streams: dict[int, Stream] = {}
        self._sent: deque[int] = deque()
        self._firsts: deque[tuple[int, int]] = deque()
        self._total = self._ended = self._failed = 0

    def observe(self, changed: Sequence[ObservedRequest]) -> None:
        """Take over what has changed."""
        for request in changed:
            stream = self._streams.get(request.number)
            if stream is None:
                stream = self._streams[request.number] = Stream(self._slo, request.intended_ns)
                self._sent.append(request.sent_ns)
                self._total += 1
            if request.times_ns and not stream.times_ns:
                self._firsts.append((request.times_ns[0], request.times_ns[0] - request.intended_ns))
            if request.end_ns is not None:
                del self._streams[request.number]
                self._ended += 1
                self._failed += request.error is not None
                continue
            known = len(stream.times_ns)
            stream.extend(request.times_ns[known:], request.kinds[known:])

    def snapshot(self, run: LoadRun) -> LiveSnapshot:
        """Return the figures at the run's watermark."""
        now_ns = run.watermark_ns
        since_ns = max(now_ns - RECENT_NS, run.started_ns)
        while self._sent and self._sent[0] < since_ns:
            self._sent.popleft()
        while self._firsts and self._firsts[0][0] < since_ns:
            self._firsts.popleft()
        ttft_ns = nearest_rank(sorted(one for _, one in self._firsts), P50)
        left_ns = None if self._length_ns is None else run.started_ns + self._length_ns - now_ns
        return LiveSnapshot(
            sent=self._total,
            ended=self._ended,
            failed=self._failed,
            in_flight=len(self._streams),
            waiting=sum(stream.at(now_ns).runway_ns < 0 for stream in self._streams.values()),
            rate=len(self._sent) / max((now_ns - since_ns) / 1e9, 1e-9) if now_ns > since_ns else 0.0,
            ttft_s=None if ttft_ns is None else ttft_ns / 1e9,
            left_s=None if left_ns is None else max(0.0, left_ns / 1e9),
        )
