"""Tokens per CPU-second of a collector with everything on, beside the floor for the same bytes."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from collector_load import replies
from collector_load.classes import write_classes
from collector_load.fleet import Slots, write_for_soon
from collector_load.floor import floor_cpu_s
from collector_load.sender import sending
from collector_load.service import collecting
from collector_load.spread import Spread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FLUSHES_A_SECOND = 4
LOAD_TOKENS_S = 128_000
"""The fleet's tokens per second where no number of streams is given: what five to twenty busy nodes make."""
PROFILES = {"healthy": replies.healthy, "starving": replies.starving}


@dataclass(frozen=True, slots=True)
class Speed:
    """One measurement; `floor_cpu_s` and `cpu_s` are for the same bytes."""

    profile: str
    rules: str
    segment_tokens: int
    streams: int
    paced: bool
    tokens: int
    segments: int
    exports: int
    floor_cpu_s: float
    cpu_s: float
    sending_s: float
    acknowledged: Spread
    refused: int
    unsent: int
    read_share: float
    """Tokens that the collector's metrics say were read, of those sent."""
    decisions: int


def streams_for(segment_tokens: int) -> int:
    """Return how many streams make the usual load with such segments."""
    return max(1, LOAD_TOKENS_S // (FLUSHES_A_SECOND * segment_tokens))


def measure_speed(
    profile: str,
    segment_tokens: int,
    *,
    streams: int,
    seconds: float,
    together: int,
    paced: bool,
    source: Path | None,
    rules: str,
    progress: Callable[[str], None],
) -> Speed:
    """Send one fleet to one collector with one set of rules."""
    ramp_s = min(replies.REPLY_TOKENS / segment_tokens / FLUSHES_A_SECOND, seconds / 4)
    mix = [Slots(streams, partial(PROFILES[profile], segment_tokens=segment_tokens), ramp_s, FLUSHES_A_SECOND)]
    with tempfile.TemporaryDirectory(prefix="otel-llm-bench-") as name:
        folder = Path(name)
        slo = write_classes(folder / "slo.yaml", segment_tokens)
        exports = folder / "exports"
        with collecting(folder, slo=slo, source=source, rules=rules) as collector:
            progress(f"{profile}, {rules} rules, {segment_tokens} tokens a segment, {streams} streams: encoding")
            sent, start_ns = write_for_soon(exports, mix, seconds, together)
            with sending(exports, collector.grpc, paced=paced) as sender:
                if paced:
                    time.sleep(max(0.0, (start_ns - time.time_ns()) / 1e9 - 0.2))
                progress(f"sending {sent.tokens} tokens in {sent.segments} segments, {sent.bytes / 1e6:.0f} MB")
                before = collector.cpu_s()
                sender.go()
                delivery = sender.done()
                cpu_s = collector.when_quiet() - before
            read = collector.metric("otel_llm_tokens_read_total")
            decisions = collector.decisions.read_bytes().count(b"\n")
        progress("measuring the floor")
        floor_s = floor_cpu_s(exports)
    return Speed(
        profile,
        rules,
        segment_tokens,
        streams,
        paced,
        sent.tokens,
        sent.segments,
        len(sent.log),
        floor_s,
        cpu_s,
        delivery.seconds,
        Spread.of(wait_s * 1e3 for _, wait_s in delivery.waits),
        delivery.refused,
        delivery.unsent,
        read / sent.tokens,
        decisions,
    )


def together(found: Sequence[Speed]) -> str:
    """Say what several measurements come to: on a noisy machine one of them says little."""
    times = sorted(one.cpu_s / one.floor_cpu_s for one in found)
    middle = statistics.median(times)
    best = min(one.cpu_s for one in found) / min(one.floor_cpu_s for one in found)
    return (
        f"{found[0].profile}, {found[0].segment_tokens} tokens a segment, {len(found)} times: {middle:.2f} times the "
        f"floor in the median ({times[0]:.2f} to {times[-1]:.2f}), the best by the best floor {best:.2f}"
    )


HEADING = (
    f"{'profile':<9}{'rules':<8}{'segment':>8}{'streams':>9}{'k tok/s':>9}{'cores':>7}"
    f"{'floor M/s':>11}{'M tok/cpu-s':>13}{'x floor':>9}{'us/segment':>12}{'ack p99':>10}{'decided':>9}  remarks"
)


def line(one: Speed) -> str:
    """Return one row of the table."""
    remarks = []
    if one.read_share != 1.0:
        remarks.append(f"{one.read_share:.1%} of the tokens evaluated")
    if one.refused:
        remarks.append(f"{one.refused} exports refused and sent again")
    if one.unsent:
        remarks.append(f"{one.unsent} exports never taken")
    return (
        f"{one.profile:<9}{one.rules:<8}{one.segment_tokens:>8}{one.streams:>9}{one.tokens / one.sending_s / 1e3:>9.0f}"
        f"{one.cpu_s / one.sending_s:>7.2f}{one.tokens / one.floor_cpu_s / 1e6:>11.2f}"
        f"{one.tokens / one.cpu_s / 1e6:>13.3f}{one.cpu_s / one.floor_cpu_s:>9.2f}"
        f"{one.cpu_s / one.segments * 1e6:>12.1f}{one.acknowledged.p99:>7.0f} ms{one.decisions:>9}"
        f"  {'; '.join(remarks)}"
    )
