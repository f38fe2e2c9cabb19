"""The resident memory of a collector that holds many streams."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from collector_load import replies
from collector_load.classes import write_classes
from collector_load.fleet import Slots, write_for_soon
from collector_load.sender import sending
from collector_load.service import collecting

if TYPE_CHECKING:
    from collections.abc import Callable

RAMP_STREAMS_S = 8_000
LAST_SEGMENT_S = 2.0
PATIENCE = ("--lost-after", "1h")
"""They say nothing more once they have their tokens, and are not to be given up before they are counted."""


@dataclass(frozen=True, slots=True)
class Memory:
    """One measurement, MB (10^6 bytes) of the process tree."""

    streams: int
    in_flight: float
    tokens: int
    empty_mb: float
    resident_mb: float
    highest_mb: float
    cpu_s: float
    sending_s: float


def measure_memory(streams: int, *, source: Path | None, progress: Callable[[str], None]) -> Memory:
    """Begin `streams`, give each 40 tokens in five segments, and look."""
    ramp_s = max(2.0, streams / RAMP_STREAMS_S)
    with tempfile.TemporaryDirectory(prefix="otel-llm-bench-") as name:
        folder = Path(name)
        config = folder / "config.yaml"
        config.write_text("version: 1\nlimits: {streams_in_flight: 250000}\n", encoding="utf-8")
        slo = write_classes(folder / "slo.yaml", 8)
        with collecting(folder, "--config", str(config), *PATIENCE, slo=slo, source=source) as collector:
            empty_mb, _ = collector.memory_mb()
            progress(f"{streams} in flight: encoding")
            mix = [Slots(streams, replies.parked, ramp_s, 0.3, in_turn=True)]
            sent, _ = write_for_soon(folder / "exports", mix, ramp_s + LAST_SEGMENT_S)
            with sending(folder / "exports", collector.grpc, patience_s=900.0) as sender:
                progress(f"sending {sent.segments} segments, {sent.bytes / 1e6:.0f} MB, {ramp_s:.0f} s of ramp")
                before = collector.cpu_s()
                sender.go()
                delivery = sender.done()
            cpu_s = collector.when_quiet() - before
            resident_mb, highest_mb = collector.memory_mb()
            in_flight = collector.metric("otel_llm_streams_in_flight")
    return Memory(streams, in_flight, sent.tokens, empty_mb, resident_mb, highest_mb, cpu_s, delivery.seconds)


HEADING = (
    f"{'in flight':>9}{'k tokens':>10}{'MB empty':>10}{'MB now':>9}{'MB highest':>12}{'KB a stream':>13}{'cpu s':>8}"
    "  remarks"
)


def line(one: Memory) -> str:
    """Return one row of the table."""
    remark = "" if one.in_flight == one.streams else f"only {one.in_flight:.0f} in flight"
    return (
        f"{one.streams:>9}{one.tokens / 1e3:>10.0f}{one.empty_mb:>10.0f}{one.resident_mb:>9.0f}{one.highest_mb:>12.0f}"
        f"{(one.resident_mb - one.empty_mb) * 1e3 / one.streams:>13.1f}{one.cpu_s:>8.1f}  {remark}"
    )
