"""CPU time of a collector with everything on, beside the floor for the same bytes."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from collector_load.classes import write_classes
from collector_load.floor import floor_cpu_s
from collector_load.sender import sending
from collector_load.service import collecting
from collector_load.spread import Spread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from collector_load.fleet import Sent
    from collector_load.forms import Form
    from collector_load.recording import Recording
    from collector_load.service import Collector

LEAD_S = 5.0
"""From the writing of the exports to when the first is due: the sender reads them and connects, ..."""
READ_BYTES_S = 50e6
"""... which takes a second more for so many bytes."""
IDLE_S = 2.0
"""So long it is watched doing nothing, at least."""


@dataclass(frozen=True, slots=True)
class Speed:
    """One measurement; `floor_cpu_s` and `cpu_s` (of all its processes) are for the same bytes."""

    tree: str
    """Which collector: `source` or `against`."""
    form: Form
    rules: str
    paced: bool
    tokens: int
    segments: int
    requests: int
    """Those that ended."""
    exports: int
    floor_cpu_s: float
    cpu_s: float
    idle_cores: float
    """CPU seconds a second that it takes before anything is sent; they are in `cpu_s`, too."""
    sending_s: float
    acknowledged: Spread
    refused: int
    unsent: int
    read_share: float
    """Tokens that the collector's metrics say were read, of those sent."""
    decisions: int

    @property
    def ratio(self) -> float:
        """Return how many times the floor the collector took."""
        return self.cpu_s / self.floor_cpu_s


def measure_speed(
    form: Form,
    recording: Recording,
    sent: Sent,
    *,
    tree: str,
    source: Path | None,
    paced: bool,
    rules: str,
    progress: Callable[[str], None],
) -> Speed:
    """Send recorded exports to one collector with one set of rules."""
    with tempfile.TemporaryDirectory(prefix="otel-llm-bench-") as name:
        folder = Path(name)
        slo = write_classes(folder / "slo.yaml", form.segment_tokens)
        exports = folder / "exports"
        with collecting(folder, slo=slo, source=source, rules=rules) as collector:
            start_ns = time.time_ns() + int((LEAD_S + len(recording.content) / READ_BYTES_S) * 1e9)
            recording.write(exports, start_ns)
            with sending(exports, collector.grpc, paced=paced) as sender:
                idle_cores = _idle_cores(collector, max(IDLE_S, (start_ns - time.time_ns()) / 1e9 - 0.2))
                progress(f"{tree}: sending {sent.tokens} tokens in {recording.exports} messages")
                before = collector.cpu_s()
                sender.go()
                delivery = sender.done()
                cpu_s = collector.when_quiet() - before
            read = collector.metric("otel_llm_tokens_read_total")
            decisions = collector.decisions.read_bytes().count(b"\n")
        progress("measuring the floor")
        floor_s = floor_cpu_s(exports)
    return Speed(
        tree,
        form,
        rules,
        paced,
        sent.tokens,
        sent.segments,
        sent.requests,
        recording.exports,
        floor_s,
        cpu_s,
        idle_cores,
        delivery.seconds,
        Spread.of(wait_s * 1e3 for _, wait_s in delivery.waits),
        delivery.refused,
        delivery.unsent,
        read / sent.tokens,
        decisions,
    )


def _idle_cores(collector: Collector, seconds: float) -> float:
    """Wait, and return the CPU seconds a second that the collector took meanwhile."""
    before, began = collector.cpu_s(), time.monotonic()
    time.sleep(seconds)
    return (collector.cpu_s() - before) / (time.monotonic() - began)


HEADING = (
    f"{'profile':<11}{'rules':<8}{'encoding':<9}{'shape':<9}{'reply':>6}{'segment':>8}{'streams':>8}"
    f"{'a message':>10}{'tree':>8}{'k tok/s':>8}{'cores':>7}{'idle':>7}{'floor M/s':>10}{'M tok/cpu-s':>12}"
    f"{'x floor':>9}{'us/segment':>11}{'us/request':>11}{'ack p99':>11}{'decided':>9}  remarks"
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
    form = one.form
    return (
        f"{form.profile:<11}{one.rules:<8}{form.encoding:<9}{form.shape:<9}{form.reply_tokens:>6}"
        f"{form.segment_tokens:>8}{form.streams:>8}"
        f"{one.segments / one.exports:>10.1f}{one.tree:>8}{one.tokens / one.sending_s / 1e3:>8.0f}"
        f"{one.cpu_s / one.sending_s:>7.2f}{one.idle_cores:>7.3f}{one.tokens / one.floor_cpu_s / 1e6:>10.2f}"
        f"{one.tokens / one.cpu_s / 1e6:>12.3f}{one.ratio:>9.2f}{one.cpu_s / one.segments * 1e6:>11.1f}"
        f"{one.cpu_s / max(1, one.requests) * 1e6:>11.1f}"
        f"{one.acknowledged.p99:>8.0f} ms{one.decisions:>9}  {'; '.join(remarks)}"
    )


_ROW = "{:>6}{:>8} {:<9}{:<9}{:<8}{:>10}"


def table(found: Sequence[Speed]) -> str:
    """Return how many times the floor each collector took: a row for each form, a column for each profile.

    Repetitions are given as their median and range. The quotient is source / against: below 1 the collector of
    `--source` takes less.
    """
    profiles = [*dict.fromkeys(one.form.profile for one in found)]
    head = _ROW.format("reply", "segment", "encoding", "shape", "rules", "a message")
    lines = ["times the floor, CPU of all processes", head + "".join(f"  {profile:>40}" for profile in profiles)]
    rows: dict[tuple[str, str, str, str, str, int], list[Speed]] = {}
    for one in found:
        form = one.form
        key = (str(form.reply_tokens), str(form.segment_tokens), form.encoding, form.shape, one.rules, form.streams)
        rows.setdefault(key, []).append(one)
    for key, own in rows.items():
        message = statistics.mean(one.segments / one.exports for one in own)
        cells = (_cell([one for one in own if one.form.profile == profile]) for profile in profiles)
        lines.append(_ROW.format(*key[:5], f"{message:.1f}") + "".join(f"  {cell:>40}" for cell in cells))
    if any(one.read_share != 1.0 for one in found):
        lines.append("!: it did not evaluate all that was to be sent, and takes more than this for the whole")
    return "\n".join(lines)


def _cell(found: Sequence[Speed]) -> str:
    mark = " !" if any(one.read_share != 1.0 for one in found) else ""
    ratios = {tree: [one.ratio for one in found if one.tree == tree] for tree in ("source", "against")}
    source, against = ratios["source"], ratios["against"]
    if not source or not against:
        return _spread(source or against) + mark
    quotient = statistics.median(source) / statistics.median(against)
    return f"{_spread(source)} / {_spread(against)} = {quotient:.2f}{mark}"


def _spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return "-"
    middle = f"{statistics.median(ratios):.2f}"
    return f"{middle} ({min(ratios):.2f}-{max(ratios):.2f})" if len(ratios) > 1 else middle
