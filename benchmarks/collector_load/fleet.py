"""A fleet's exports, encoded as an instrumented application does, before any clock starts.

An application has up to 256 streams, unless told otherwise, and one export every 250 ms: what each of them has to say,
with the request spans of those that ended. (A real one also sends commits and the first token after a silence at once,
in exports of their own.) The applications' flushes are spread over the 250 ms.
"""

from __future__ import annotations

import random
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from collector_load.replies import FLUSH_NS, Script
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanContext, TraceFlags

from otel_llm import semconv
from otel_llm.export.records import AttributeValue, Origin, Record, RequestRecord
from otel_llm.export.wire import export_request
from otel_llm.instrumentation.segments.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Export = tuple[int, int, bytes]  # due (unix ns), application, message

APPLICATION_STREAMS = 256
COMMIT_BEFORE_FLUSH_NS = 1_000_000
FOREVER_NS = 2**63
ENCODING_S = 25e-6
"""About what one segment takes to encode."""
HEAD = struct.Struct("<QII")
"""Before each export in a file: when it is due (unix ns), its application, its length."""


@dataclass(frozen=True, slots=True)
class Slots:
    """So many streams at a time that do the same, the first of them begun over `ramp_s`; one that ends is replaced.

    `segments_s`: how many segments each sends a second, about: how long the encoding will take follows from it.
    `in_turn`: application after application begins its streams, not every one of them some all the time.
    """

    count: int
    write: Callable[[np.random.Generator], Script]
    ramp_s: float
    segments_s: float
    in_turn: bool = False


@dataclass(slots=True)
class Sent:
    """What a fleet's exports hold."""

    segments: int = 0
    tokens: int = 0
    requests: int = 0
    """Those that ended."""
    bytes: int = 0
    dry_ns: dict[str, int] = field(default_factory=dict)
    """When a reader runs dry (unix ns, the sender's clock), by trace id."""
    log: list[tuple[int, int, int]] = field(default_factory=list)
    """When each export is due (unix ns), its segments and tokens."""

    def rates(self, begin_ns: int, end_ns: int) -> tuple[float, float, float]:
        """Return exports, segments and tokens per second between two instants."""
        between = [(segments, tokens) for due_ns, segments, tokens in self.log if begin_ns <= due_ns < end_ns]
        seconds = (end_ns - begin_ns) / 1e9
        return (
            len(between) / seconds,
            sum(one for one, _ in between) / seconds,
            sum(one for _, one in between) / seconds,
        )


class Reply:
    """One stream on its way: a script, read through the product's own timeline of segments."""

    def __init__(self, script: Script, commit_ns: int, resource: Resource, draw: random.Random) -> None:
        context = SpanContext(draw.getrandbits(128) or 1, draw.getrandbits(64) or 1, False, TraceFlags(1))
        self.script = script
        self.commit_ns = commit_ns
        self.origin = Origin(context, resource)
        self.timeline = Timeline(0, commit_ns, self.origin, draw.getrandbits)
        self.told = 0
        self.done = False
        self.wake_ns = 0
        self.identity: dict[str, AttributeValue] = {
            semconv.GEN_AI_OPERATION_NAME: "chat",
            semconv.GEN_AI_PROVIDER_NAME: "openai",
            semconv.GEN_AI_REQUEST_MODEL: "qwen3-235b",
            semconv.SERVER_ADDRESS: "llm.example",
            semconv.SERVER_PORT: 8000,
            semconv.SLO_CLASS: script.slo_class,
            semconv.INSTANCE: f"replica-{draw.randrange(16)}",
        }

    def begin(self) -> list[Record]:
        return [self.timeline.commit(self.identity)]

    def flush(self, now_ns: int) -> list[Record]:
        """Return what is to be reported at `now_ns` (unix ns)."""
        if now_ns < self.wake_ns:
            return []
        times, end_ns, first = self.script.tokens_ns, self.script.end_ns, self.told
        elapsed_ns = now_ns - self.commit_ns
        while self.told < len(times) and times[self.told] <= elapsed_ns:
            self.told += 1
        if self.told > first:
            self.timeline.take([self.commit_ns + t for t in times[first : self.told]])
        if end_ns is not None and end_ns <= elapsed_ns:
            self.done = True
            return self._end(self.commit_ns + end_ns)
        reported: list[Record] = [*self.timeline.cut(now_ns)]
        self.wake_ns = self._wake_ns()
        return reported

    def _wake_ns(self) -> int:
        """Return before when it has nothing to say."""
        script, ahead = self.script, []
        if self.told < len(script.tokens_ns):
            ahead.append(self.commit_ns + script.tokens_ns[self.told])
        elif script.end_ns is not None:
            ahead.append(self.commit_ns + script.end_ns)
        if self.timeline.due_ns is not None and (script.tells_silence or not self.told):
            ahead.append(self.timeline.due_ns)
        return min(ahead, default=FOREVER_NS)

    def _end(self, end_ns: int) -> list[Record]:
        last = self.timeline.last(end_ns, "completed", "exact", {})
        ours = {key: last[-1].attributes[key] for key in (semconv.OUTCOME, semconv.TOKENS, semconv.SEGMENTS)}
        answer: dict[str, AttributeValue] = {
            semconv.GEN_AI_RESPONSE_ID: f"chatcmpl-{self.origin.parent.span_id:016x}",
            semconv.GEN_AI_RESPONSE_MODEL: "qwen3-235b",
            semconv.GEN_AI_RESPONSE_FINISH_REASONS: ("stop",),
            semconv.GEN_AI_USAGE_INPUT_TOKENS: 300,
            semconv.GEN_AI_USAGE_OUTPUT_TOKENS: self.timeline.tokens,
            semconv.TOKEN_BASIS: "exact",
        }
        span = RequestRecord(
            *(self.origin.parent, None, self.origin.resource, "chat qwen3-235b", self.commit_ns, end_ns + 50_000),
            *({**self.identity, **answer, **ours}, None),
        )
        return [*last, span]


class Application:
    """One process of the fleet: its slots, flushed together."""

    def __init__(self, number: int, slots: list[tuple[Slots, int]], rng: np.random.Generator) -> None:
        self.resource = Resource(
            {
                semconv.SERVICE_NAME: "chat",
                semconv.SERVICE_INSTANCE_ID: f"app-{number}",
                "telemetry.sdk.language": "python",
                "telemetry.sdk.name": "opentelemetry",
                "telemetry.sdk.version": "1.40.0",
            }
        )
        self.number = number
        self.slots = slots
        self.replies: list[Reply | None] = [None] * len(slots)
        self.rng = rng
        self.draw = random.Random(number)

    def flush(self, now_ns: int, ramped_ns: int, sent: Sent) -> list[Record]:
        """Return what its streams have to say; new ones begin, those whose start is at most `ramped_ns` away."""
        records: list[Record] = []
        for at, (slots, start_ns) in enumerate(self.slots):
            reply = self.replies[at]
            if reply is None or reply.done:
                if start_ns > ramped_ns:
                    continue
                script = slots.write(self.rng)
                reply = Reply(script, now_ns - COMMIT_BEFORE_FLUSH_NS, self.resource, self.draw)
                self.replies[at] = reply
                if script.dry_ns is not None:
                    sent.dry_ns[f"{reply.origin.parent.trace_id:032x}"] = reply.commit_ns + script.dry_ns
                records += reply.begin()
            else:
                before = reply.told
                reported = reply.flush(now_ns)
                records += reported
                sent.tokens += reply.told - before
                sent.segments -= reply.done  # the request span is none
                sent.requests += reply.done
        sent.segments += len(records)
        return records


def exports_of(
    mix: Sequence[Slots], start_ns: int, seconds: float, sent: Sent, together: int = APPLICATION_STREAMS
) -> Iterator[Export]:
    """Yield all exports of a fleet in order of when they are due, the first at `start_ns`, and count them in `sent`."""
    for due_ns, application in flushes(applications_of(mix, together), start_ns, seconds):
        segments, tokens = sent.segments, sent.tokens
        records = application.flush(due_ns, due_ns - start_ns, sent)
        if records:
            raw = export_request(records)
            sent.log.append((due_ns, sent.segments - segments, sent.tokens - tokens))
            sent.bytes += len(raw)
            yield due_ns, application.number, raw


def write_exports(
    path: Path, mix: Sequence[Slots], start_ns: int, seconds: float, together: int = APPLICATION_STREAMS
) -> Sent:
    """Write all exports of a fleet to a file, in order of when they are due, the first at `start_ns`."""
    sent = Sent()
    with path.open("wb") as file:
        for due_ns, application, raw in exports_of(mix, start_ns, seconds, sent, together):
            file.write(HEAD.pack(due_ns, application, len(raw)))
            file.write(raw)
    return sent


def write_for_soon(
    path: Path, mix: Sequence[Slots], seconds: float, together: int = APPLICATION_STREAMS
) -> tuple[Sent, int]:
    """Write a fleet's exports to be sent when they are written; return also when the first is due (unix ns).

    `together`: streams of one application at most.
    """
    lead_s = 4.0 + ENCODING_S * sum(slots.count * slots.segments_s for slots in mix) * seconds
    while True:
        began = time.monotonic()
        start_ns = time.time_ns() + int(lead_s * 1e9)
        sent = write_exports(path, mix, start_ns, seconds, together)
        taken_s = time.monotonic() - began
        if taken_s + 2.0 < lead_s:
            return sent, start_ns
        lead_s = taken_s * 1.3 + 4.0


def read_exports(path: Path) -> Iterator[Export]:
    """Return (due unix ns, application, bytes) of each export."""
    with path.open("rb") as file:
        while head := file.read(HEAD.size):
            due_ns, application, length = HEAD.unpack(head)
            yield due_ns, application, file.read(length)


def applications_of(mix: Sequence[Slots], together: int) -> list[Application]:
    """Return the applications that have these streams, at most `together` each."""
    count = max(1, -(-sum(slots.count for slots in mix) // together))
    rng = np.random.default_rng(7)
    shares: list[list[tuple[Slots, int]]] = [[] for _ in range(count)]
    for slots in mix:
        for i in range(slots.count):
            share = shares[i * count // slots.count if slots.in_turn else i % count]
            share.append((slots, int(i / slots.count * slots.ramp_s * 1e9)))
    return [Application(number, share, rng) for number, share in enumerate(shares)]


def flushes(applications: list[Application], start_ns: int, seconds: float) -> Iterator[tuple[int, Application]]:
    """Yield each application at each of its flushes (unix ns), spread over the 250 ms."""
    for flush in range(int(seconds * 1e9) // FLUSH_NS):
        for application in applications:
            phase_ns = application.number * FLUSH_NS // len(applications)
            yield start_ns + flush * FLUSH_NS + phase_ns, application
