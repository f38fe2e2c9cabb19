"""The followed streams, ordered by their next evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_llm.formats.records import StreamKey
    from otel_llm.rules.engine.rule_state import RuleState
    from otel_llm.rules.language.snapshot import StreamView
    from otel_llm.rules.language.tokens import Value


@dataclass(slots=True)
class Followed:
    """A followed stream; instants on the collector's axis.

    `changed_ns`: when it changed without an evaluation since; `due_ns`: when the next of its rules is due;
    `queued_ns`: its instant in the queue of timers, which may be too early.
    """

    key: StreamKey
    identity: tuple[Value | None, ...]
    states: list[RuleState]
    muted: bool = False
    """Only late segments have changed it since a segment was in time."""
    fired: bool = False
    suspended: bool = False
    """None of its rules is evaluated."""
    last_byte_ns: int = 0
    """The newest byte at the last evaluation, on the stream's axis."""
    changed_ns: int | None = None
    due_ns: int | None = None
    queued_ns: int | None = None

    def plan(self, view: StreamView) -> None:
        """Note when the first of its rules is due."""
        dues = [state.due_ns for state in self.states if state.due_ns is not None]
        self.due_ns = min(dues) - view.offset_ns if dues else None


class EvaluationQueue:
    """A queue of streams, by the instant of their next evaluation: they changed, or one of their rules is due."""

    def __init__(self) -> None:
        self.streams: dict[StreamKey, Followed] = {}
        """The followed streams."""
        self._changes: list[tuple[int, StreamKey]] = []
        self._timers: list[tuple[int, StreamKey]] = []

    def change(self, stream: Followed, now_ns: int) -> None:
        """Queue the evaluation of all rules of a stream that has changed."""
        if stream.changed_ns != now_ns:
            stream.changed_ns = now_ns
            heappush(self._changes, (now_ns, stream.key))

    def enqueue(self, stream: Followed) -> None:
        """Queue a stream for the instant at which it is due."""
        due_ns = stream.due_ns if stream.changed_ns is None else None
        # An earlier entry stays: one evaluation too many is cheaper than a new entry for every segment.
        if due_ns is not None and (stream.queued_ns is None or due_ns < stream.queued_ns):
            stream.queued_ns = due_ns
            heappush(self._timers, (due_ns, stream.key))

    def next_due(self) -> int | None:
        """Return the next instant at which a stream is evaluated, None if there is none."""
        while self._timers:
            queued_ns, key = self._timers[0]
            stream = self.streams.get(key)
            if stream is not None and stream.queued_ns == stream.due_ns == queued_ns:
                break
            heappop(self._timers)
            if stream is not None and stream.queued_ns == queued_ns:
                stream.queued_ns = None
                self.enqueue(stream)
        queues = [queue[0][0] for queue in (self._changes, self._timers) if queue]
        return min(queues, default=None)

    def pop(self, now_ns: int) -> tuple[int, Followed] | None:
        """Return and remove the next stream to evaluate up to now, with its instant; None where there is none."""
        changes, timers = self._changes, self._timers
        while True:
            # At one instant a stream's change goes before its timer: it evaluates all of its rules.
            queue = changes if changes and not (timers and timers[0] < changes[0]) else timers
            if not queue or queue[0][0] > now_ns:
                return None
            at_ns, key = heappop(queue)
            stream = self.streams.get(key)
            if stream is not None and self._is_due(stream, at_ns, changed=queue is changes):
                return at_ns, stream

    def _is_due(self, stream: Followed, at_ns: int, *, changed: bool) -> bool:
        if changed:
            return stream.changed_ns == at_ns and not stream.suspended
        if stream.queued_ns != at_ns:
            return False
        stream.queued_ns = None
        if stream.suspended:
            return False
        if stream.due_ns == at_ns and stream.changed_ns is None:
            return True
        self.enqueue(stream)
        return False
