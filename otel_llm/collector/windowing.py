"""Event-time windows over streams in flight: charged while readers wait, closed when nothing more is expected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_llm.slo.windows import Charge, WindowTotals, window_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_llm.collector.streams import LiveStream
    from otel_llm.readers.assemble import Resolved
    from otel_llm.slo.verdict import Verdict

Group = tuple[str, str, str, str]
GROUP_NAMES: Final = ("slo_class", "model", "instance", "measured_at")
MAX_WINDOWS_A_STREAM: Final = 20_000
"""A stream that spans more is charged in its last window: a time far off must not cost a loop of years."""


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
    _open: dict[int, dict[Group, WindowTotals]] = field(default_factory=dict)
    _closed_until_ns: int | None = None

    def next_close(self) -> int | None:
        """Return when the oldest open window closes; None before the first stream."""
        if self._closed_until_ns is None:
            return None
        return self._closed_until_ns + self.window_ns + self.lateness_ns

    def begin(self, now_ns: int) -> None:
        """Open the first window, that of the earliest time that is not late at `now_ns`."""
        if self._closed_until_ns is None:
            self._closed_until_ns = window_start(now_ns - self.lateness_ns, self.window_ns)

    def started(self, stream: LiveStream) -> None:
        """Count a request in the window in which it was committed."""
        if stream.arithmetic is not None:
            self._of(stream, stream.arithmetic.commit_ns).started()

    def ended(self, stream: LiveStream, resolved: Resolved, verdict: Verdict | None, now_ns: int) -> None:
        """Charge what is left, window by window, and count the verdict in the window in which the request ended."""
        end_ns = resolved.end_ns if resolved.end_ns is not None else stream.watermark_ns
        ledger, arithmetic = stream.windows, stream.arithmetic
        if ledger is None or arithmetic is None:
            self._of(stream, end_ns).ended(resolved.outcome, None)
            return
        end_ns = min(max(end_ns, arithmetic.last_ns), now_ns + self.lateness_ns + max(stream.shift_ns, 0))
        last = window_start(end_ns - stream.shift_ns, self.window_ns)
        first = max(
            window_start(arithmetic.commit_ns - stream.shift_ns, self.window_ns),
            self._closed_until_ns or 0,
            last - MAX_WINDOWS_A_STREAM * self.window_ns,
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

    def close_until(self, now_ns: int, streams: Iterable[LiveStream], judge: Callable[[LiveStream, int], None]) -> None:
        """Close every window that is due; streams that ended in one are judged first."""
        self.begin(now_ns)
        assert self._closed_until_ns is not None  # noqa: S101
        while self._closed_until_ns + self.window_ns + self.lateness_ns <= now_ns:
            flying = list(streams)
            if not flying and not self._open:
                self._closed_until_ns = window_start(now_ns - self.lateness_ns, self.window_ns)
                return
            start = self._closed_until_ns
            for stream in flying:
                boundary = start + self.window_ns + stream.shift_ns
                if stream.arithmetic is None or stream.arithmetic.commit_ns >= boundary:
                    continue
                if stream.ended_ns is not None and max(stream.ended_ns, stream.arithmetic.last_ns) < boundary:
                    judge(stream, now_ns)
                else:
                    self._charge_through(stream, start, stream.watermark_ns)
            self._emit(start)
            self._closed_until_ns = start + self.window_ns

    def flush(self) -> None:
        """Emit every open window as it stands: the service stops."""
        for start in sorted(self._open):
            self._emit(start)

    def _charge_through(self, stream: LiveStream, start: int, known_until_ns: int) -> None:
        if stream.windows is None or stream.arithmetic is None:
            return
        until = start + self.window_ns + stream.shift_ns
        charge = stream.windows.advance(stream.arithmetic.read_ns, until, known_until_ns)
        if charge.terms or charge.tokens_read or charge.idle_ns:
            self._totals(start, _group(stream)).charge(charge)

    def _of(self, stream: LiveStream, instant_ns: int) -> WindowTotals:
        start = window_start(instant_ns - stream.shift_ns, self.window_ns)
        if self._closed_until_ns is not None and start < self._closed_until_ns:
            self.late += 1
            start = self._closed_until_ns
        return self._totals(start, _group(stream))

    def _totals(self, start: int, group: Group) -> WindowTotals:
        return self._open.setdefault(start, {}).setdefault(group, WindowTotals())

    def _emit(self, start: int) -> None:
        for group, totals in sorted(self._open.pop(start, {}).items()):
            if self.on_window is not None:
                names = dict(zip(GROUP_NAMES, (value or None for value in group), strict=True))
                self.on_window(dict(totals.row(start, self.window_ns, names)))


def _group(stream: LiveStream) -> Group:
    return (stream.slo_class, stream.model, stream.instance, stream.measured_at)
