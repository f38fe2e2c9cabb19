"""What a collector costs and how fast it sees, black box: a real `otel-llm collect`, a fleet over real gRPC.

    python benchmarks/collector.py [--only speed|latency|memory] [--repetitions N] [--json OUT]

Journal, windows, five stream rules and the file of decisions are on, and the process tree is what is measured; with
`--rules none,five,shipped` speed is measured with each of these sets of rules, one after the other. Every stream sends
a segment every 250 ms, empty ones as the protocol says; what is sent is encoded before any clock starts.

`speed`: tokens per CPU-second for segments of several sizes, beside the floor for the same bytes: the standard parse
and reading each event's time, on one thread. Replies have 512 tokens. `healthy` streams read on, but for three in a
hundred that stall; the reader of a `starving` one outruns its model all the time, and each stalls every few seconds.

`latency`: from the instant a reader runs dry to the decision record. Some streams write, the others wait and say so
once a second; 256 more run dry again and again. Where `waiting` is not near 0 the machine was busy with other things,
and the delays are theirs.

`memory`: with streams in flight that hold 40 tokens each.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collector_load import latency, memory, speed
from collector_load.service import RULE_SETS

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTS = ("speed", "latency", "memory")


def progress(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def rule_sets(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in RULE_SETS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}: known are {', '.join(RULE_SETS)}")
    return names


def speeds(chosen: argparse.Namespace) -> Iterator[tuple[Any, str]]:
    for profile in [chosen.profile] if chosen.profile else speed.PROFILES:
        for size in chosen.segment_tokens:
            for streams, rules in product(chosen.streams or [speed.streams_for(size)], chosen.rules):
                found = []
                for _ in range(chosen.repetitions):
                    one = speed.measure_speed(
                        profile,
                        size,
                        streams=streams,
                        seconds=chosen.seconds,
                        together=chosen.together,
                        paced=not chosen.flood,
                        source=chosen.source,
                        rules=rules,
                        progress=progress,
                    )
                    found.append(one)
                    yield one, speed.line(one)
                if len(found) > 1:
                    print(speed.together(found), flush=True)


def latencies(chosen: argparse.Namespace) -> Iterator[tuple[Any, str]]:
    for streams in chosen.streams or [1_000, 20_000, 100_000]:
        seen = latency.measure_latency(
            streams,
            writing=chosen.writing,
            silent=chosen.silent,
            seconds=chosen.seconds,
            together=chosen.together,
            source=chosen.source,
            progress=progress,
            ramp_streams_s=chosen.ramp,
        )
        yield seen, latency.line(seen)


def memories(chosen: argparse.Namespace) -> Iterator[tuple[Any, str]]:
    for streams in chosen.streams or [10_000, 200_000]:
        held = memory.measure_memory(streams, source=chosen.source, progress=progress)
        yield held, memory.line(held)


def main() -> None:
    options = argparse.ArgumentParser(description="Measure a collector from outside.")
    options.add_argument("--only", choices=PARTS)
    options.add_argument("--streams", type=numbers, help="streams in flight, comma-separated")
    options.add_argument("--seconds", type=float, default=20.0, help="speed, latency: how long is measured")
    options.add_argument("--repetitions", type=int, default=1, help="speed: so often, and the median of all")
    options.add_argument("--together", type=int, default=256, help="streams of one application: in one export, at most")
    options.add_argument("--segment-tokens", type=numbers, default=[64, 16, 8], help="speed: comma-separated")
    options.add_argument("--profile", choices=list(speed.PROFILES), help="speed: one of them")
    options.add_argument(
        "--rules", type=rule_sets, default=["five"], help="speed: none, five, shipped; comma-separated"
    )
    options.add_argument("--flood", action="store_true", help="speed: send as fast as acknowledged, not at the pace")
    options.add_argument("--writing", type=float, help="latency: share of the streams that get tokens")
    options.add_argument("--silent", type=float, default=0.0, help="latency: share of the streams that went silent")
    options.add_argument(
        "--ramp",
        type=int,
        default=latency.RAMP_STREAMS_S,
        help="latency: streams that begin a second until all are in flight (default: %(default)s)",
    )
    options.add_argument(
        "--source", type=Path, help="source tree whose collector is measured, if not the one installed"
    )
    options.add_argument("--json", type=Path, help="write all figures here too")
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is stopped
    parts = {
        "speed": (speed.HEADING, speeds),
        "latency": (latency.HEADING, latencies),
        "memory": (memory.HEADING, memories),
    }
    figures: dict[str, list[dict[str, Any]]] = {}
    for name, (heading, measure) in parts.items():
        if chosen.only in {None, name}:
            print(f"{name}\n{heading}", flush=True)
            for one, line in measure(chosen):
                print(line, flush=True)
                figures.setdefault(name, []).append(dataclasses.asdict(one))
            print()
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
