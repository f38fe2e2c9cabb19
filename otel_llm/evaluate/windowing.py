"""Event-time windows over streams in flight: charged while readers wait, closed after the lateness."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from otel_llm.evaluate.streams.stream_table import PARTS
from otel_llm.slo.ledger import MOST_WINDOWS, NOTHING, Charge, window_start
from otel_llm.slo.windows import WindowTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_llm.evaluate.streams.final_verdict import EndedStream
    from otel_llm.evaluate.streams.live_stream import LiveStream
    from otel_llm.evaluate.streams.stream_in_flight import Group, StreamInFlight
    from otel_llm.evaluate.streams.stream_table import StreamTable
    from otel_llm.slo.verdict import Verdict

GROUP_NAMES: Final = ("slo_class", "model", "instance", "measured_at")
Names: TypeAlias = tuple[str, str, str, str]
"""The names of `GROUP_NAMES`: a window is of all tenants together."""


@dataclass(slots=True)
class Windowing:
    """The open windows [k w, (k+1) w) of every group; instants are unix ns of the collector's clock.

    A window closes `lateness_ns` after its end. A later event is charged to the oldest open window and counted in
    `late`; so is a segment that covers a closed window. The watermark is the collector's clock; a stream whose sender's
    clock is off by more than the lateness is placed by its measured offset.
    """

    window_ns: int
    lateness_ns: int
    on_window: Callable[[dict[str, object]], None] | None = None
    late: int = 0
    _latest_ns: int = 0
    _open: dict[int, dict[Names, WindowTotals]] = field(default_factory=dict)
    _closed_until_ns: int | None = None
    _swept: int = 0
    """The number of parts that are charged early for the oldest open window."""

    def next_close(self) -> int | None:
        """Return the next instant of work on the oldest open window; None before the first stream."""
        if self._closed_until_ns is None:
            return None
        due_ns = self._closed_until_ns + self.window_ns + self.lateness_ns
        return due_ns - (PARTS - self._swept) * self._step_ns if self._swept < PARTS else due_ns

    @property
    def open_windows(self) -> int:
        """Return how many windows are open."""
        return len(self._open)

    @property
    def _step_ns(self) -> int:
        return self.lateness_ns // (2 * PARTS)

    @property
    def closed_until_ns(self) -> int | None:
        """Return the start of the oldest open window; None before the first stream."""
        return self._closed_until_ns

    def begin(self, now_ns: int) -> None:
        """Note the time, and open the first window: that of the earliest time that is not late at `now_ns`."""
        self._latest_ns = max(self._latest_ns, now_ns)
        if self._closed_until_ns is None:
            self._closed_until_ns = window_start(now_ns - self.lateness_ns, self.window_ns)

    def started(self, stream: LiveStream) -> None:
        """Count a request in the window in which it was committed."""
        if stream.begun:
            self._totals_of(stream, stream.stream.commit_ns).started()

    def ended(self, ended: Sequence[EndedStream[LiveStream]]) -> None:
        """Charge the rest of requests, window by window, and count each in the window of its end."""
        found: dict[int, tuple[WindowTotals, list[tuple[str, Verdict | None]], list[Charge]]] = {}
        for one in ended:
            totals, charge = self._charge_rest(one)
            _, endings, charges = found.setdefault(id(totals), (totals, [], []))
            endings.append((one.ending.outcome, one.verdict))
            charges.append(charge)
        for totals, endings, charges in found.values():
            totals.charge(charges)
            totals.ended(endings)

    def _charge_rest(self, ended: EndedStream[LiveStream]) -> tuple[WindowTotals, Charge]:
        """Charge the windows before that of a request's end; return the totals of that one, and its charge."""
        stream, ending, verdict, _, _ = ended
        end_ns = ending.end_ns if ending.end_ns is not None else stream.watermark_ns
        ledger = stream.windows
        if ledger is None or not stream.begun:
            return self._totals_of(stream, end_ns), NOTHING
        arithmetic = stream.stream
        end_ns = max(end_ns, arithmetic.last_ns)
        last = self._window_of(end_ns - stream.shift_ns)
        first = max(
            window_start(arithmetic.commit_ns - stream.shift_ns, self.window_ns),
            self._closed_until_ns or 0,
            last - MOST_WINDOWS * self.window_ns,
        )
        known_until_ns = stream.watermark_ns if verdict is None else end_ns
        unbroken = arithmetic.running.unbroken
        if first == last:  # else the next charge, or `_totals_of`, counts it
            self.late += ledger.learn(arithmetic.read_ns, known_until_ns)
        for start in range(first, last, self.window_ns):
            self._charge_through(stream, start, known_until_ns, unbroken=unbroken)
        return self._totals_of(stream, end_ns), ledger.close(verdict)

    def refund(self, stream: LiveStream, charge: Charge) -> None:
        """Refund a charge in the window of the stream's watermark, or the oldest open one."""
        self._totals_of(stream, stream.watermark_ns).charge((charge,))

    def move_start(self, stream: LiveStream, group: Group) -> None:
        """Move the count of a stream's start from `group` to its present group, if the window is still open."""
        if self.uncount_start(stream, group):
            self.started(stream)

    def uncount_start(self, stream: LiveStream, group: Group | None = None) -> bool:
        """Remove the count of a stream's start (default: from its group); return whether its window is still open."""
        if not stream.begun:
            return False
        totals = self._open.get(window_start(stream.stream.commit_ns - stream.shift_ns, self.window_ns), {})
        found = totals.get((stream.group if group is None else group)[:4])
        if found is None:
            return False
        found.requests_started -= 1
        return True

    def skip_to(self, now_ns: int) -> None:
        """Skip empty windows, while no stream is in flight and no window is open."""
        if self._closed_until_ns is not None and not self._open:
            until_ns = window_start(now_ns - self.lateness_ns, self.window_ns)
            if until_ns > self._closed_until_ns:
                self._closed_until_ns, self._swept = until_ns, 0

    def close_until(self, now_ns: int, table: StreamTable, judge_before: Callable[[int], None]) -> None:
        """Close every window that is due; first, `judge_before(end of the window)` judges the streams that ended in it.

        Streams whose watermark is past a window's end are charged early, in the second half of the lateness, in parts:
        all of them at once would take as long as a reader waits. The part of a stream depends on its request only, not
        on its slot: a charge before or after a change of the stream's group shows in windows, which must be the same
        after a restart.
        """
        self.begin(now_ns)
        while (due_ns := self.next_close()) is not None and due_ns <= now_ns:
            assert self._closed_until_ns is not None  # noqa: S101  else nothing would be due
            start = self._closed_until_ns
            if self._swept < PARTS:
                self._charge_known(start, table)
                continue
            judge_before(start + self.window_ns)
            for slot in np.flatnonzero(table.charged_ns < start + self.window_ns).tolist():
                stream = table.streams[slot]
                if stream is not None and stream.begun:
                    unbroken = stream.stream.running.unbroken
                    self._charge_through(stream, start, stream.known_until_ns, unbroken=unbroken)
            totals = self._open.pop(start, {})
            self._closed_until_ns = start + self.window_ns
            self._swept = 0
            self._emit(start, totals)

    def _charge_known(self, start: int, table: StreamTable) -> None:
        """Charge the window for the next part of the streams, if their watermark is past its end."""
        until = start + self.window_ns
        part = np.flatnonzero(table.part == self._swept)
        self._swept += 1
        part = part[table.in_flight[part] & (table.charged_ns[part] < until)]
        for slot, unbroken in zip(part.tolist(), table.unbroken(part).tolist(), strict=True):
            stream = table.streams[slot]
            if stream is not None and stream.watermark_ns >= until + stream.shift_ns:
                self._charge_through(stream, start, stream.watermark_ns, unbroken=unbroken)
                table.charged_ns[slot] = until

    def _charge_through(self, stream: StreamInFlight, start: int, known_until_ns: int, *, unbroken: bool) -> None:
        ledger, until = stream.windows, start + self.window_ns + stream.shift_ns
        if ledger is None or ledger.commit_ns >= until:
            return
        tokens = stream.stream
        self.late += ledger.learn(tokens.read_ns, known_until_ns)
        charge = ledger.advance(tokens.read_ns, until, known_until_ns, tokens.read_counts, unbroken=unbroken)
        if charge is not NOTHING:
            self._totals(start, stream.group).charge((charge,))

    def _totals_of(self, stream: StreamInFlight, instant_ns: int) -> WindowTotals:
        start = self._window_of(instant_ns - stream.shift_ns)
        if self._closed_until_ns is not None and start < self._closed_until_ns:
            self.late += 1
            start = self._closed_until_ns
        return self._totals(start, stream.group)

    def _window_of(self, instant_ns: int) -> int:
        """Return the start of the window of an instant; an instant in the future is in the latest window."""
        return window_start(min(instant_ns, self._latest_ns + self.lateness_ns), self.window_ns)

    def _totals(self, start: int, group: Group) -> WindowTotals:
        groups, names = self._open.setdefault(start, {}), group[:4]
        totals = groups.get(names)
        if totals is None:
            totals = groups[names] = WindowTotals()
        return totals

    def _emit(self, start: int, groups: Mapping[Names, WindowTotals]) -> None:
        if self.on_window is None:
            return
        filled = [group for group, totals in groups.items() if not totals.empty]
        for group in sorted(filled, key=lambda names: [(name == "", name) for name in names]):
            named = dict(zip(GROUP_NAMES, (name or None for name in group), strict=True))
            self.on_window(dict(groups[group].row(start, self.window_ns, named)))
