"""What a collector costs and how fast it sees, black box: a real `otel-llm collect`, a fleet over real gRPC.

    python benchmarks/collector.py [--only speed|latency|memory] [--repetitions N] [--json OUT]
    python benchmarks/collector.py --only speed --encoding sdk,sparse,rotel --shape segments,whole,small,single
    python benchmarks/collector.py --only speed --source NEW --against OLD --repetitions 3
    python benchmarks/collector.py --only speed --reply-tokens 8,32,128 --segment-tokens 8,64

Journal, windows, five stream rules and the file of decisions are on, and the process tree is what is measured; with
`--rules none,five,shipped` speed is measured with each of these sets of rules, one after the other. Every stream sends
a segment every 250 ms, empty ones as the protocol says; what is sent is encoded before any clock starts.

`speed`: CPU time of all processes of the collector for segments of several sizes, beside the floor for the same bytes:
the standard parse and reading each event's time, on one thread. `--encoding`, `--shape` and `--profile` say in which
forms they come, `--against` measures a second collector in turns with the first. The last
table has the ratios alone. `idle` is what the collector takes (cores) before anything is sent: of a small load most.

`latency`: from the instant a reader runs dry to the decision record. Some streams write, the others wait and say so
once a second; 256 more run dry again and again. If `waiting` is not near 0 the machine was busy with other things,
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
from collector_load.fleet import APPLICATION_STREAMS
from collector_load.forms import PROFILES, add_form_options, explained, form_of, names, numbers
from collector_load.service import RULE_SETS

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTS = ("speed", "latency", "memory")


def progress(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)


def speeds(chosen: argparse.Namespace) -> Iterator[tuple[Any, str]]:
    trees = {"source": chosen.source, **({"against": chosen.against} if chosen.against else {})}
    found: list[speed.Speed] = []
    sizes = product(chosen.profile, chosen.reply_tokens, chosen.segment_tokens)
    for (profile, reply, size), encoding, shape, streams in product(
        sizes, chosen.encoding, chosen.shape, chosen.streams or [None]
    ):
        form = form_of(profile, size, encoding, shape, streams=streams, together=chosen.together, reply_tokens=reply)
        progress(f"{form.name}, {form.streams} streams: encoding")
        recording, sent = form.record(chosen.seconds)
        for rules, repetition in product(chosen.rules, range(chosen.repetitions)):
            for tree in reversed(trees) if repetition % 2 else trees:
                one = speed.measure_speed(
                    *(form, recording, sent),
                    tree=tree,
                    source=trees[tree],
                    paced=not chosen.flood,
                    rules=rules,
                    progress=progress,
                )
                found.append(one)
                yield one, speed.line(one)
    print(f"\n{speed.table(found)}", flush=True)


def latencies(chosen: argparse.Namespace) -> Iterator[tuple[Any, str]]:
    for streams in chosen.streams or [1_000, 20_000, 100_000]:
        seen = latency.measure_latency(
            streams,
            writing=chosen.writing,
            silent=chosen.silent,
            seconds=chosen.seconds,
            together=chosen.together or APPLICATION_STREAMS,
            source=chosen.source,
            progress=progress,
            ramp_streams_s=chosen.ramp,
        )
        yield seen, latency.line(seen)


def memories(chosen: argparse.Namespace) -> Iterator[tuple[Any, str]]:
    for streams in chosen.streams or [10_000, 200_000]:
        held = memory.measure_memory(streams, source=chosen.source, progress=progress)
        yield held, memory.line(held)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=explained("--encoding", "--shape", "--profile"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_form_options(parser, encodings=["sdk"], shapes=["segments"])
    add = parser.add_argument
    add("--only", choices=PARTS, help="one part; all three otherwise")
    add("--streams", type=numbers, metavar="N,..", help="streams in flight (default of speed: the load of the shape)")
    add("--seconds", type=float, default=20.0, help="speed, latency: how long is measured (default: %(default)s)")
    add("--repetitions", type=int, default=1, help="speed: so often; the last table has medians and ranges")
    add("--together", type=int, help=f"streams of one application at most (default: {APPLICATION_STREAMS})")
    profiles = ["healthy", "one-in-ten"]
    text = f"speed: how readers fare, explained below (default: {','.join(profiles)})"
    add("--profile", type=names(PROFILES), metavar="NAME,..", default=profiles, help=text)
    add("--rules", type=names(RULE_SETS), metavar="NAME,..", default=["five"], help="speed: none, five, shipped")
    add("--flood", action="store_true", help="speed: send as fast as acknowledged, not at the pace")
    add("--writing", type=float, help="latency: share of the streams that get tokens")
    add("--silent", type=float, default=0.0, help="latency: share of the streams that went silent")
    add(
        "--ramp",
        type=int,
        default=latency.RAMP_STREAMS_S,
        help="latency: streams that begin a second until all are in flight (default: %(default)s)",
    )
    add("--source", type=Path, metavar="TREE", help="source tree whose collector is measured, if not the one installed")
    add(
        "--against",
        type=Path,
        metavar="TREE",
        help="speed: another, measured in turns with it; prints the quotient, too",
    )
    add("--json", type=Path, help="write all figures here too")
    return parser


def main() -> None:
    chosen = options().parse_args()
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
