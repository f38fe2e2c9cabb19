"""Event-time windows over streams in flight: charged while readers wait, closed when nothing more is expected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_llm.slo.ledger import MOST_WINDOWS
from otel_llm.slo.windows import Charge, WindowTotals, window_start

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_llm.collector.streams import LiveStream
    from otel_llm.readers.assemble import Resolved, StreamKey
    from otel_llm.slo.verdict import Verdict

Group = tuple[str, str, str, str]
GROUP_NAMES: Final = ("slo_class", "model", "instance", "measured_at")


@dataclass(slots=True)
class Windowing:
    """Keep the open windows [k w, (k+1) w) of every group; instants of closing are the collector's time.

    A window closes `lateness_ns` after its end. What comes later for it is charged to the oldest open window and
    counted in `late`. The watermark is the collector's clock; a stream whose sender's clock is off by more than the
    lateness is placed by its measured offset.
    """

    window_ns: int
    lateness_ns: int
    on_window: Callable[[dict[str, object]], None] | None = None
    late: int = 0
    _latest_ns: int = 0
    _open: dict[int, dict[Group, WindowTotals]] = field(default_factory=dict)
    _closed_until_ns: int | None = None

    def next_close(self) -> int | None:
        """Return when the oldest open window closes; None before the first stream."""
        if self._closed_until_ns is None:
            return None
        return self._closed_until_ns + self.window_ns + self.lateness_ns

    def begin(self, now_ns: int) -> None:
        """Note the time, and open the first window: that of the earliest time that is not late at `now_ns`."""
        self._latest_ns = max(self._latest_ns, now_ns)
        if self._closed_until_ns is None:
            self._closed_until_ns = window_start(now_ns - self.lateness_ns, self.window_ns)

    def started(self, stream: LiveStream) -> None:
        """Count a request in the window in which it was committed."""
        if stream.arithmetic is not None:
            self._of(stream, stream.arithmetic.commit_ns).started()

    def ended(self, stream: LiveStream, resolved: Resolved, verdict: Verdict | None) -> None:
        """Charge what is left, window by window, and count the verdict in the window in which the request ended."""
        end_ns = resolved.end_ns if resolved.end_ns is not None else stream.watermark_ns
        ledger, arithmetic = stream.windows, stream.arithmetic
        if ledger is None or arithmetic is None:
            self._of(stream, end_ns).ended(resolved.outcome, None)
            return
        end_ns = max(end_ns, arithmetic.last_ns)
        last = self._place(end_ns - stream.shift_ns)
        first = max(
            window_start(arithmetic.commit_ns - stream.shift_ns, self.window_ns),
            self._closed_until_ns or 0,
            last - MOST_WINDOWS * self.window_ns,
        )
        known_until_ns = stream.watermark_ns if verdict is None else end_ns
        for start in range(first, last, self.window_ns):
            self._charge_through(stream, start, known_until_ns)
        totals = self._of(stream, end_ns)
        totals.charge(ledger.close(verdict))
        totals.ended(resolved.outcome, verdict)

    def give_back(self, stream: LiveStream, charge: Charge) -> None:
        """Charge the oldest open window with what turned out to be owed by none."""
        self._of(stream, stream.watermark_ns).charge(charge)

    def move_start(self, stream: LiveStream, group: Group) -> None:
        """Count the start of a stream under its group of now, no longer under `group`, if its window is still open."""
        if stream.arithmetic is None:
            return
        totals = self._open.get(window_start(stream.arithmetic.commit_ns - stream.shift_ns, self.window_ns), {})
        if group in totals:
            totals[group].requests_started -= 1
            self.started(stream)

    def close_until(
        self, now_ns: int, streams: Mapping[StreamKey, LiveStream], judge_before: Callable[[int, int], None]
    ) -> None:
        """Close every window that is due. `judge_before(end of the window, now)` judges first what ended in it."""
        self.begin(now_ns)
        assert self._closed_until_ns is not None  # noqa: S101
        while self._closed_until_ns + self.window_ns + self.lateness_ns <= now_ns:
            if not streams and not self._open:
                self._closed_until_ns = window_start(now_ns - self.lateness_ns, self.window_ns)
                return
            start = self._closed_until_ns
            judge_before(start + self.window_ns, now_ns)
            for stream in streams.values():
                if stream.arithmetic is not None:
                    self._charge_through(stream, start, stream.known_until_ns)
            totals = self._open.pop(start, {})
            self._closed_until_ns = start + self.window_ns
            self._emit(start, totals)

    def flush(self) -> None:
        """Emit every open window as it stands: the service stops."""
        for start in sorted(self._open):
            self._emit(start, self._open.pop(start))

    def _charge_through(self, stream: LiveStream, start: int, known_until_ns: int) -> None:
        if stream.windows is None or stream.arithmetic is None:
            return
        until = start + self.window_ns + stream.shift_ns
        if stream.arithmetic.commit_ns >= until:
            return
        charge = stream.windows.advance(stream.arithmetic.read_ns, until, known_until_ns)
        if charge.terms or charge.tokens_read or charge.idle_ns:
            self._totals(start, group_of(stream)).charge(charge)

    def _of(self, stream: LiveStream, instant_ns: int) -> WindowTotals:
        start = self._place(instant_ns - stream.shift_ns)
        if self._closed_until_ns is not None and start < self._closed_until_ns:
            self.late += 1
            start = self._closed_until_ns
        return self._totals(start, group_of(stream))

    def _place(self, instant_ns: int) -> int:
        """Return the start of the window of an instant; what claims to come later than can be is put into the last."""
        return window_start(min(instant_ns, self._latest_ns + self.lateness_ns), self.window_ns)

    def _totals(self, start: int, group: Group) -> WindowTotals:
        return self._open.setdefault(start, {}).setdefault(group, WindowTotals())

    def _emit(self, start: int, groups: Mapping[Group, WindowTotals]) -> None:
        if self.on_window is None:
            return
        for group in sorted(groups, key=lambda names: [(name == "", name) for name in names]):
            named = dict(zip(GROUP_NAMES, (name or None for name in group), strict=True))
            self.on_window(dict(groups[group].row(start, self.window_ns, named)))


def group_of(stream: LiveStream) -> Group:
    """Return what windows tell a stream by; unknown names are empty."""
    return (stream.slo_class, stream.model, stream.instance, stream.measured_at)
