"""Readers whose segments go to a real collector as they happen: for tests that watch streams in flight."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Thread
from types import TracebackType
from typing import Self

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.otlp import IDENTITY, Value, export, segment_span
from support.patience import WAIT_S

from otel_llm import semconv

EVERY_S = 0.25
NS = 1_000_000_000


@dataclass
class Reader:
    """One stream: `rate` tokens/s from `first_s` on, none between the ends of `stall`, over after `end_s`."""

    number: int
    model: str = "m"
    slo_class: str = "chat"
    instance: str = "a"
    rate: float = 20.0
    first_s: float = 0.2
    stall: tuple[float, float] = (1e9, 1e9)
    end_s: float = 1e9
    identity: Mapping[str, Value] = field(default_factory=dict)
    begun_ns: int = 0
    sent: int = 0
    seq: int = 0
    until_ns: int = 0
    done: bool = False

    def tokens_by(self, age_s: float) -> int:
        """Return how many tokens are there at an age."""
        stalled = max(0.0, min(age_s, self.stall[1]) - self.stall[0])
        return max(0, int((min(age_s, self.end_s) - stalled - self.first_s) * self.rate) + 1)

    def at_s(self, token: int) -> float:
        """Return the age at which a token is there."""
        age_s = self.first_s + token / self.rate
        return age_s if age_s < self.stall[0] else age_s + self.stall[1] - self.stall[0]

    def segments(self, now_ns: int) -> list[Span]:
        """Return what the recorder of this stream has to send now."""
        if self.done:
            return []
        spans = []
        if not self.begun_ns:
            self.begun_ns = self.until_ns = now_ns
            who: dict[str, Value] = {
                **IDENTITY,
                semconv.GEN_AI_REQUEST_MODEL: self.model,
                semconv.SLO_CLASS: self.slo_class,
                semconv.INSTANCE: self.instance,
                **self.identity,
            }
            spans.append(segment_span(request=self.number, start_ns=now_ns, attributes=who))
        age_s = (now_ns - self.begun_ns) / NS
        self.done = age_s >= self.end_s
        tokens = range(self.sent, max(self.sent, self.tokens_by(age_s)))
        times = [min(now_ns, self.begun_ns + round(self.at_s(token) * NS)) for token in tokens]
        if not times and now_ns - self.until_ns < NS and not self.done:
            return spans
        self.seq += 1
        said: dict[str, Value] = {}
        if self.done:
            said = {
                semconv.OUTCOME: "completed",
                semconv.TOKENS: tokens.stop,
                semconv.TOKEN_BASIS: "exact",
                semconv.SEGMENTS: self.seq + 1,
            }
        spans.append(
            segment_span(
                *(self.seq, self.sent, times),
                request=self.number,
                start_ns=self.until_ns,
                end_ns=now_ns,
                attributes=said,
            )
        )
        self.sent, self.until_ns = tokens.stop, now_ns
        return spans


class Load:
    """Sends the segments of readers to `http` (an OTLP/HTTP address) every 250 ms, until it is left."""

    def __init__(self, http: str, readers: Iterable[Reader] = (), token: str = "") -> None:
        self.readers: Sequence[Reader] = list(readers)
        self._url = f"http://{http}/v1/traces"
        self._token = token
        self._stop = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, where: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            now_ns = time.time_ns()
            spans = [span for reader in self.readers for span in reader.segments(now_ns)]
            if spans:
                with suppress(OSError):  # a test may stop the collector
                    post(self._url, export(*spans).SerializeToString(), self._token)


def post(url: str, message: bytes, token: str) -> None:
    """Send one export."""
    headers = {"Content-Type": "application/x-protobuf"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, data=message, headers=headers)
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        assert answer.status == 200
