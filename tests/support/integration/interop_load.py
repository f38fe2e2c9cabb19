"""A fleet of chat applications as a process: many streams at once, exported over gRPC until they are acknowledged.

    python tests/support/integration/interop_load.py --grpc 127.0.0.1:4317 --acknowledged acks.json --streams 40

What streams say follows from the seed; when they say it is real time. Every 250 ms each sender cuts what its streams
got into segments and sends them as one export request, again and again until the collector has it. SIGTERM: no new
stream begins, those in flight end; then FILE gets {trace id: [tokens sent, tokens acknowledged]} and the process ends.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import grpc
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2]))  # a script as well as a module
from support.integration import interop_wire as wire

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
FLUSH_S = 0.25
SEGMENT_TOKENS = 100
SILENCE_NS = 500_000_000
"""A stream that got no token for so long sends an empty segment: the reader waits, the sender lives."""
ATTEMPT_S = 10.0
RETRY_S = 0.05
LEFT = "left"
"""The model of the streams that never end: their process is gone."""

CHANNEL = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 200),
]


@dataclass(slots=True)
class Stream:
    """One reply: when its tokens come and how it ends, ns after its commit."""

    trace_id: bytes
    request_id: bytes
    identity: dict[str, wire.Value]
    tokens_ns: NDArray[np.int64]
    end_ns: int
    outcome: str | None
    """None: the end is never said."""
    spanned: bool
    """Whether a request span is sent as well."""
    commit_ns: int = 0
    sent_to_ns: int = 0
    seq: int = 0
    sent: int = 0


def plan(seed: int, number: int, instance: str, rate: float, mean_s: float, leaves: bool) -> Stream:
    """Return stream `number` of `seed`: `rate` tokens/s while it flows, for `mean_s` seconds on average."""
    chance = random.Random(f"{seed}/{number}")
    count = max(1, round(rate * mean_s * chance.uniform(0.2, 1.8)))
    gaps = np.random.default_rng([seed, number]).exponential(1 / rate, count)
    gaps[0] += chance.uniform(0.02, 0.3)
    for _ in range(chance.choice((0, 0, 1, 2))):
        gaps[chance.randrange(count)] += chance.uniform(0.3, 2.5)
    tokens_ns = np.cumsum((gaps * 1e9).astype(np.int64))
    gone = leaves and chance.random() < 0.05
    outcome = chance.choice(["completed"] * 7 + ["cancelled", "error", "disconnected"])
    said: dict[str, wire.Value] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": LEFT if gone else chance.choice(("large", "small")),
        "otel_llm.slo.class": chance.choice(("chat", "chat", "code", "voice")),
        "otel_llm.instance": instance,
        "otel_llm.measured_at": "client",
    }
    return Stream(
        trace_id=seed.to_bytes(8, "big") + number.to_bytes(8, "big"),
        request_id=(number + 1).to_bytes(8, "big"),
        identity=said,
        tokens_ns=tokens_ns,
        end_ns=int(tokens_ns[-1]) + chance.choice((0, 0, 5_000_000, 400_000_000)),
        outcome=None if gone else outcome,
        spanned=not gone and chance.random() < 0.5,
    )


@dataclass(slots=True)
class Export:
    """One request, and the tokens in it by stream."""

    raw: bytes
    tokens: Counter[str]


@dataclass(slots=True)
class Sender:
    """One application process, with an engine of its own: its streams, its queue, its connection."""

    name: str
    target: str
    live: list[Stream] = field(default_factory=list)
    queue: deque[Export] = field(default_factory=deque)
    acknowledged: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    failure: str | None = None
    closed: threading.Event = field(default_factory=threading.Event)

    def begin(self, stream: Stream, now_ns: int) -> bytes:
        """Commit a stream; return its segment 0."""
        stream.commit_ns = stream.sent_to_ns = now_ns
        self.live.append(stream)
        none = np.empty(0, dtype=np.int64)
        return wire.segment(stream.trace_id, stream.request_id, 0, 0, now_ns, now_ns, none, stream.identity)

    def flush(self, now_ns: int, new: list[Stream]) -> None:
        """Queue an export request of all that happened up to now, and of the streams that begin now."""
        tokens: Counter[str] = Counter()
        spans = [piece for stream in self.live for piece in cut(stream, now_ns, tokens)]
        self.live = [stream for stream in self.live if stream.commit_ns + stream.end_ns > now_ns]
        spans += [self.begin(stream, now_ns) for stream in new]
        if spans:
            self.sent.update(tokens)
            self.queue.append(Export(wire.export_request(self.name, spans), tokens))

    def run(self) -> None:
        """Send what is queued, in order, each until it is acknowledged."""
        with grpc.insecure_channel(self.target, options=CHANNEL) as channel:
            call = channel.unary_unary(EXPORT)
            while not (self.closed.is_set() and not self.queue):
                if not self.queue:
                    time.sleep(0.01)
                    continue
                export = self.queue[0]
                try:
                    call(export.raw, timeout=ATTEMPT_S, wait_for_ready=True)
                except grpc.RpcError as error:
                    self.retries += 1
                    if error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED):
                        self.failure = str(error)
                        return
                    time.sleep(RETRY_S)
                    continue
                self.acknowledged.update(export.tokens)
                self.queue.popleft()


def cut(stream: Stream, now_ns: int, tokens: Counter[str]) -> list[bytes]:
    """Return the segments of a stream since the last flush, and its request span once it ended."""
    ends = stream.commit_ns + stream.end_ns <= now_ns
    until_ns = stream.commit_ns + stream.end_ns if ends else now_ns
    fresh = stream.commit_ns + stream.tokens_ns[stream.sent :]
    fresh = fresh[: int(np.searchsorted(fresh, until_ns, "right"))]
    tokens[stream.trace_id.hex()] += len(fresh)
    if not ends and not len(fresh) and now_ns - stream.sent_to_ns < SILENCE_NS:
        return []
    pieces = [fresh[i : i + SEGMENT_TOKENS] for i in range(0, len(fresh), SEGMENT_TOKENS)] or [fresh]
    made = []
    for number, piece in enumerate(pieces, 1):
        last = number == len(pieces)
        stream.seq += 1
        end_ns = until_ns if last else int(piece[-1])
        total = stream.sent + len(piece)
        said: dict[str, wire.Value] = {}
        if last and ends and stream.outcome is not None:
            said = {
                "otel_llm.outcome": stream.outcome,
                "otel_llm.tokens": total,
                "otel_llm.token_basis": "exact",
                "otel_llm.segments": stream.seq + 1,
            }
        made.append(
            wire.segment(
                stream.trace_id, stream.request_id, stream.seq, stream.sent, stream.sent_to_ns, end_ns, piece, said
            )
        )
        stream.sent, stream.sent_to_ns = total, end_ns
        if said and stream.spanned:
            identity = stream.identity | said
            made.append(wire.request(stream.trace_id, stream.request_id, stream.commit_ns, end_ns, identity))
    return made


def main() -> int:
    """Run until told to stop; return 0 when everything was acknowledged."""
    options = argparse.ArgumentParser(description="Export streams over gRPC until they are acknowledged.")
    options.add_argument("--grpc", required=True, metavar="HOST:PORT")
    options.add_argument("--acknowledged", required=True, type=Path, metavar="FILE")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--streams", type=int, default=40, help="in flight at a time")
    options.add_argument("--rate", type=float, default=30.0, help="tokens/s of a stream")
    options.add_argument("--mean-s", type=float, default=3.0, help="length of a stream")
    options.add_argument("--senders", type=int, default=4)
    options.add_argument("--leave", action="store_true", help="some streams never end")
    given = options.parse_args()
    stop = threading.Event()

    def stopped(signum: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, stopped)
    signal.signal(signal.SIGINT, stopped)
    senders = [Sender(f"gpu-{number}", given.grpc) for number in range(given.senders)]
    threads = [threading.Thread(target=sender.run) for sender in senders]
    for thread in threads:
        thread.start()
    anchor_ns = time.time_ns() - time.monotonic_ns()
    started = 0
    while any(sender.live for sender in senders) or not stop.is_set():
        for number, sender in enumerate(senders):
            wanted = given.streams * (number + 1) // given.senders - given.streams * number // given.senders
            # Not all at once at the beginning: as many a flush as make the mean length.
            room = 0 if stop.is_set() else min(wanted - len(sender.live), max(1, round(wanted * FLUSH_S)))
            new = [
                plan(given.seed, started + extra, sender.name, given.rate, given.mean_s, given.leave)
                for extra in range(max(0, room))
            ]
            started += len(new)
            sender.flush(anchor_ns + time.monotonic_ns(), new)
            time.sleep(FLUSH_S / given.senders)
        if any(sender.failure for sender in senders):
            break
    for sender in senders:
        sender.closed.set()
    for thread in threads:
        thread.join()
    counts = {
        trace: [tokens, sender.acknowledged[trace]] for sender in senders for trace, tokens in sender.sent.items()
    }
    given.acknowledged.write_text(json.dumps(counts), encoding="utf-8")
    failures = [sender.failure for sender in senders if sender.failure]
    retries = sum(sender.retries for sender in senders)
    print(f"{started} streams, {sum(sent for sent, _ in counts.values())} tokens, {retries} retries", *failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
