"""How long after a reader runs dry the decision is written, with many streams in flight."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from collector_load import replies
from collector_load.classes import write_classes
from collector_load.fleet import Slots, write_for_soon
from collector_load.sender import sending
from collector_load.service import DRY_RULE, collecting
from collector_load.spread import Spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from collector_load.service import Collector

SEGMENT_TOKENS = 8
WRITING_SHARE = {1_000: 1.0, 20_000: 0.2}
OTHER_WRITING_SHARE = 0.02
"""Streams that get tokens: 32 a second in four segments. The others wait and say so once a second, as the protocol
wants: what one core can be asked to take in, for so many streams."""
SAMPLES_AT_A_TIME = 256
RAMP_STREAMS_S = 4_000
SETTLE_S = 5.0
LAST_WORD_NS = 500_000_000


@dataclass(frozen=True, slots=True)
class Latency:
    """One measurement; `seen` of `expected` samples led to a decision.

    `decided`: from the flip as the record places it on the collector's clock to the time of its writing. `dry`: from
    the instant at which the script lets the reader run dry, on the clock of this machine that both processes read.
    `acknowledged`: from an export's due time to its acknowledgement. `cores`: CPU seconds a second; `waiting`: seconds
    a second that its threads were ready and the machine did something else.
    """

    streams: int
    writing: int
    silent: int
    in_flight: float
    exports_s: float
    segments_s: float
    tokens_s: float
    cores: float
    waiting: float
    seen: int
    expected: int
    decided: Spread
    dry: Spread
    acknowledged: Spread
    refused: int
    unsent: int


def measure_latency(
    streams: int,
    *,
    writing: float | None,
    silent: float,
    seconds: float,
    together: int,
    source: Path | None,
    progress: Callable[[str], None],
    ramp_streams_s: int = RAMP_STREAMS_S,
) -> Latency:
    """Hold `streams` in flight, and let the readers of some more run dry for `seconds`.

    `ramp_streams_s`: how many begin a second until all are in flight.
    """
    share = WRITING_SHARE.get(streams, OTHER_WRITING_SHARE) if writing is None else writing
    writers = round(streams * share)
    silenced = round(streams * silent)
    ramp_s = max(2.0, streams / ramp_streams_s)
    begin_s = ramp_s + SETTLE_S
    mix = [
        Slots(streams - writers - silenced, replies.quiet, ramp_s, 1.0),
        Slots(silenced, replies.parked, ramp_s, 0.3),
        Slots(writers, partial(replies.healthy, segment_tokens=SEGMENT_TOKENS), ramp_s, 4.0),
        Slots(SAMPLES_AT_A_TIME, replies.sample, ramp_s, 3.0),
    ]
    with tempfile.TemporaryDirectory(prefix="otel-llm-bench-") as name:
        folder = Path(name)
        config = folder / "config.yaml"
        config.write_text("version: 1\nlimits: {streams_in_flight: 250000}\n", encoding="utf-8")
        slo = write_classes(folder / "slo.yaml", SEGMENT_TOKENS)
        options = ("--rules", str(DRY_RULE), "--config", str(config))
        with collecting(folder, *options, slo=slo, source=source) as collector:
            progress(f"{streams} in flight, {writers} of them writing: encoding")
            sent, start_ns = write_for_soon(folder / "exports", mix, begin_s + seconds, together)
            begin_ns, end_ns = start_ns + int(begin_s * 1e9), start_ns + int((begin_s + seconds) * 1e9)
            with sending(folder / "exports", collector.grpc) as sender:
                progress(f"sending {sent.segments} segments, {sent.bytes / 1e6:.0f} MB, {ramp_s:.0f} s of ramp")
                sender.go()
                _sleep_until(begin_ns)
                cpu_s, waited_s, began = collector.cpu_s(), collector.waited_s(), time.monotonic()
                _sleep_until(end_ns)
                lasted_s = time.monotonic() - began
                cores, waiting = (collector.cpu_s() - cpu_s) / lasted_s, (collector.waited_s() - waited_s) / lasted_s
                in_flight = collector.metric("otel_llm_streams_in_flight")
                delivery = sender.done()
            collector.when_quiet()
            wanted = {trace for trace, dry_ns in sent.dry_ns.items() if begin_ns <= dry_ns < end_ns - LAST_WORD_NS}
            decided_ms, dry_ms = _delays_ms(collector, sent.dry_ns, wanted)
    exports_s, segments_s, tokens_s = sent.rates(begin_ns, end_ns)
    return Latency(
        streams=streams,
        writing=writers,
        silent=silenced,
        in_flight=in_flight,
        exports_s=exports_s,
        segments_s=segments_s,
        tokens_s=tokens_s,
        cores=cores,
        waiting=waiting,
        seen=len(decided_ms),
        expected=len(wanted),
        decided=Spread.of(decided_ms),
        dry=Spread.of(dry_ms),
        acknowledged=Spread.of(wait_s * 1e3 for due_ns, wait_s in delivery.waits if due_ns >= begin_ns),
        refused=delivery.refused,
        unsent=delivery.unsent,
    )


HEADING = (
    f"{'':68}{'from the flip, ms':^25}{'from the dry reader, ms':^25}\n"
    f"{'in flight':>9}{'writing':>9}{'silent':>8}{'exp/s':>8}{'seg/s':>8}{'k tok/s':>9}{'cores':>7}{'waiting':>9}"
    f" {'p50':>8}{'p99':>8}{'max':>9}{'p50':>8}{'p99':>8}{'max':>9}{'ack p99':>11}{'decided':>9}  remarks"
)


def line(one: Latency) -> str:
    """Return one row of the table."""
    remarks = []
    if one.seen != one.expected:
        remarks.append(f"{one.expected - one.seen} of {one.expected} not decided")
    if not one.in_flight >= one.streams:
        remarks.append(f"only {one.in_flight:.0f} in flight")
    if one.refused:
        remarks.append(f"{one.refused} exports refused and sent again")
    if one.unsent:
        remarks.append(f"{one.unsent} exports never taken")
    return (
        f"{one.streams:>9}{one.writing:>9}{one.silent:>8}{one.exports_s:>8.0f}{one.segments_s:>8.0f}"
        f"{one.tokens_s / 1e3:>9.0f}{one.cores:>7.2f}{one.waiting:>9.2f} {one.decided}{one.dry}"
        f"{one.acknowledged.p99:>8.0f} ms{one.seen:>9}  {'; '.join(remarks)}"
    )


def _delays_ms(collector: Collector, dry_ns: dict[str, int], wanted: set[str]) -> tuple[list[float], list[float]]:
    decided, dry = [], []
    for record in collector.decided("RanDry"):
        if record["trace_id"] in wanted:  # once each: their tokens come at one instant, so nothing is ever refuted
            written_ns = record["time_unix_nano"]
            flip_ns = record["flip_unix_nano"] - record["now_offset_nano"]
            decided.append((written_ns - flip_ns) / 1e6)
            dry.append((written_ns - dry_ns[record["trace_id"]]) / 1e6)
    return decided, dry


def _sleep_until(unix_ns: int) -> None:
    time.sleep(max(0.0, (unix_ns - time.time_ns()) / 1e9))
