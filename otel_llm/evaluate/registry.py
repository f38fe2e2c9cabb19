"""Which requests and streams there are: in flight, waiting for their segments, and over."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from otel_llm import semconv
from otel_llm.evaluate.identity_cache import IdentityCache
from otel_llm.evaluate.streams.lifecycle import StreamEvent, StreamState
from otel_llm.evaluate.streams.live_stream import LiveStream
from otel_llm.evaluate.streams.stream_in_flight import group_of
from otel_llm.evaluate.streams.stream_table import MOST_GROUPS
from otel_llm.evaluate.subjects import MAX_SUBJECTS
from otel_llm.evaluate.tombstones import Tombstones
from otel_llm.readers.assemble.received_request import ReceivedRequest
from otel_llm.readers.assemble.received_stream import ReceivedStream
from otel_llm.readers.assemble.resolved import shift_ns
from otel_llm.readers.segment_columns import TRACE_BYTES, keys_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from otel_llm.evaluate.streams.stream_table import StreamTable
    from otel_llm.evaluate.timers import Timeouts, Timers
    from otel_llm.readers.assemble.resolved import Resolved
    from otel_llm.readers.batch import Batch
    from otel_llm.readers.records import RequestKey, RequestSpan, Segment, StreamKey
    from otel_llm.slo.classes import SloClass, SloClasses

    Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RegistryLimits:
    """How much is kept of requests that are over, of those without segments, and of the names of groups."""

    tombstones: int = 100_000
    """Judged requests that are still known, at least: what comes late for them is counted and starts nothing."""
    waiting_times: int = 10_000_000
    """Token times on request spans without segments, all together; beyond it the oldest spans are judged at once."""
    groups: int = MOST_GROUPS
    """Groups of streams that are known beside those of streams in flight."""
    subjects: int = MAX_SUBJECTS
    """Instances, and classes, that rules are evaluated for with labels of their own; the rest count as `other`."""


class Registry:
    """Hold requests and streams from their first span or segment until they are judged.

    `classes`: those that streams are judged by. Counted in `counts`: segments, tokens, request_spans, what is late or
    a duplicate, shifted_streams, unknown_slo_class.
    """

    def __init__(
        self,
        classes: SloClasses,
        table: StreamTable,
        timers: Timers,
        timeouts: Timeouts,
        counts: Counter[str],
        limits: RegistryLimits,
    ) -> None:
        self.live: dict[StreamKey, LiveStream] = {}
        """Streams without a verdict."""
        self.ended: dict[StreamKey, LiveStream] = {}
        """Of them, those whose end was received."""
        self.parts: dict[RequestKey, ReceivedRequest] = {}
        self.orphans: dict[RequestKey, int] = {}
        """Request spans without a stream, the oldest first, and when each ends in the collector's time."""
        self.waiting_times = 0
        """Token times on those spans."""
        self.tombstones = Tombstones(limits.tombstones)
        self._limits = limits
        self._table = table
        self._timers = timers
        self._timeouts = timeouts
        self._counts = counts
        self._streams_of: Counter[RequestKey] = Counter()
        self._judged: deque[tuple[int, int]] = deque()
        """Of streams judged lately: when, and when the first of each was received."""
        self.use(classes)

    def use(self, classes: SloClasses) -> None:
        """Judge by these classes from now on."""
        self.classes = classes
        self._identities = IdentityCache(classes)

    # What is received.

    def open(self, segment: Segment, now_ns: int) -> LiveStream | None:
        """Follow the stream of a commit before which nothing of its request was received; None for any other segment.

        Nearly every stream begins so. What `receive` and `LiveStream.apply` find out step by step is known here.
        """
        key = (segment.trace_id, segment.span_id)
        plain = not (segment.choice or segment.first_token or segment.times_ns or semconv.OUTCOME in segment.attributes)
        if not plain or key in self.parts or key in self.tombstones:
            return None
        parts = self.parts[key] = ReceivedRequest(
            *key, streams={0: ReceivedStream.begun(segment)}, since_ns=self._timers.now_ns
        )
        known = self._identities.of(parts)
        offset_ns = segment.end_ns - now_ns
        stream = LiveStream(self._table, parts, 0, known.slo, shift_ns(offset_ns, self._timeouts.lateness_ns))
        stream.take_slot(offset_ns=offset_ns, watermark_ns=segment.start_ns, receipt_ns=now_ns)
        stream.identify(known.slo, known.group, exact_resume=known.exact_resume)
        if known.unknown:
            self._counts["unknown_slo_class"] += 1
        self._follow(stream, now_ns)
        stream.commit(segment.start_ns, known.input_tokens)
        stream.move(StreamEvent.COMMIT)
        stream.begun_at(segment.end_ns)
        return stream

    def receive(self, segment: Segment, now_ns: int) -> tuple[LiveStream, bool] | None:
        """Keep a segment until it is applied; return its stream, and whether it is new. None: late, or a duplicate."""
        key = (segment.trace_id, segment.span_id)
        stream = self.live.get((*key, segment.choice))
        if stream is not None:
            parts, received = stream.parts, stream.received
        elif self.tombstones.has(key, segment.choice):
            self._counts["late_or_duplicate_segments"] += 1
            return None
        else:
            parts = self._parts_of(key)
            received = parts.stream(segment.choice)
        if not received.add(segment):
            self._counts["duplicate_segments"] += 1
            return None
        self._counts["segments"] += 1
        self._counts["tokens"] += len(segment.times_ns)
        found = stream is None
        if stream is None:
            stream = self._found(parts, segment, now_ns)
            self.take_orphan(key)
        else:
            stream.note_receipt(segment.end_ns, now_ns)
        stream.waiting.append(segment.seq)
        return stream, found

    def receive_request(self, span: RequestSpan, now_ns: int) -> list[StreamKey]:
        """Keep a request span; return the streams to which it may say something new."""
        key = span.key
        if key not in self.parts and key in self.tombstones:
            self._counts["late_request_spans"] += 1
            return []
        parts = self._parts_of(key)
        if not parts.add_request(span):
            self._counts["duplicate_request_spans"] += 1
            return []
        self._counts["request_spans"] += 1
        if not parts.streams:  # its segments may be on the way; others' spans wait the same time
            # One with token times is judged before the first window closes that they are in.
            at_ns = span.start_ns if span.events_ns else span.end_ns
            self.orphans[key] = at_ns - parts.resolve(0).shift_ns(self._timeouts.lateness_ns)
            self._timers.schedule(now_ns + self._timeouts.lateness_ns, "orphan", (*key, 0))
            self.waiting_times += len(span.events_ns)
        return [stream.key for stream in self._streams(parts)]

    def mark_closed(self, batch: Batch) -> None:
        """Mark the streams and requests of a batch as closed: a run before has seen their end."""
        for segment in batch.segments:
            self.tombstones.add((segment.trace_id, segment.span_id), segment.choice)
        for key in [] if batch.plain is None else batch.plain.keys:
            self.tombstones.add((key[:TRACE_BYTES], key[TRACE_BYTES:]), 0)
        for span in batch.requests:
            self.tombstones.add(span.key, 0)

    def commit(self, stream: LiveStream) -> bool:
        """Note a stream's commit, where segment 0 or the request span says it; return whether one does."""
        if not stream.received.has(0) and stream.parts.request is None:
            return False
        resolved, stream.known = stream.known, None
        if resolved is None:
            resolved = stream.resolve()
            slo = self.choose(resolved)
            stream.identify(slo, group_of(resolved, slo), exact_resume=resolved.exact_resume)
        assert resolved.commit_ns is not None  # noqa: S101  segment 0 or the request span is there
        stream.commit(resolved.commit_ns, resolved.input_tokens)
        if stream.state is StreamState.FOUND:
            stream.move(StreamEvent.COMMIT)
        return True

    # What is known.

    def choose(self, resolved: Resolved, *, count: bool = False) -> SloClass:
        """Return the class that judges a stream; `count`: count one that it names and that there is not."""
        slo, unknown = self.classes.choose(resolved.declared_class, resolved.attributes)
        if count:
            self._counts["unknown_slo_class"] += unknown
        return slo

    def siblings(self, stream: LiveStream) -> list[LiveStream]:
        """Return the other streams of a stream's request that have no verdict."""
        return [one for one in self._streams(stream.parts) if one is not stream]

    def slots_of(self, batch: Batch, slots: Ints | None) -> Ints:
        """Return the slots of the streams of requests that a batch is about.

        `slots`: of its plain segments, -1 for none: those begin a stream, and perhaps beside others of their request.
        """
        requests = {(one.trace_id, one.span_id) for one in batch.segments}
        requests.update(span.key for span in batch.requests)
        if batch.plain is not None and slots is not None:
            requests.update((key[:TRACE_BYTES], key[TRACE_BYTES:]) for key in keys_of(batch.plain.ids[slots < 0]))
        known = [parts for key in requests if (parts := self.parts.get(key)) is not None]
        others = np.array([stream.slot for parts in known for stream in self._streams(parts)], dtype=np.int64)
        return others if slots is None else np.concatenate((slots[slots >= 0], others))

    def too_many_times(self) -> bool:
        """Tell whether so many token times wait that the oldest orphan is to be judged now."""
        return self.waiting_times > self._limits.waiting_times

    def oldest_receipt_ns(self, since_ns: int) -> int:
        """Return when the first was received of any stream that is in flight, or was judged since an instant."""
        while self._judged and self._judged[0][0] < since_ns:
            self._judged.popleft()
        found = [since_ns, *(found_ns for _, found_ns in self._judged)]
        if self._table.size:
            found.append(int(self._table.found_ns.min()))
        return min(found)

    # What is over.

    def take_orphan(self, key: RequestKey) -> ReceivedRequest | None:
        """Wait no longer for segments of a request span; return its request, None if it did not wait."""
        if self.orphans.pop(key, None) is None:
            return None
        parts = self.parts[key]
        self.waiting_times -= 0 if parts.request is None else len(parts.request.events_ns)
        return parts

    def stream_of_span(self, parts: ReceivedRequest, resolved: Resolved, slo: SloClass) -> LiveStream:
        """Return a stream made of a request span alone; it has ended."""
        stream = LiveStream(self._table, parts, 0, slo, resolved.shift_ns(self._timeouts.lateness_ns))
        stream.take_slot(offset_ns=0, watermark_ns=resolved.commit_ns or 0, receipt_ns=self._timers.now_ns)
        stream.ended_ns, stream.state = resolved.end_ns, StreamState.ENDED
        stream.identify(slo, group_of(resolved, slo), exact_resume=resolved.exact_resume)
        self.live[stream.key] = stream
        self._streams_of[stream.key[:2]] += 1
        return stream

    def drop(self, stream: LiveStream) -> None:
        """Follow a stream no longer; its request span is kept for the choices that may still come."""
        del self.live[stream.key]
        self.ended.pop(stream.key, None)
        now_ns, request = self._timers.now_ns, stream.key[:2]
        self._judged.append((now_ns, self._table.found_ns.item(stream.slot)))
        self.tombstones.add(request, stream.choice)
        self._streams_of[request] -= 1
        if not self._streams_of[request]:
            del self._streams_of[request]
            self._timers.schedule(now_ns + self._timeouts.lateness_ns, "forget", stream.key)

    def forget(self, request: RequestKey) -> None:
        """Forget a request, unless it has a stream without a verdict."""
        if request not in self._streams_of:
            self.parts.pop(request, None)

    # Inner parts.

    def _streams(self, parts: ReceivedRequest) -> Iterator[LiveStream]:
        """Yield the streams of a request that have no verdict."""
        request = (parts.trace_id, parts.span_id)
        return (stream for choice in parts.streams if (stream := self.live.get((*request, choice))) is not None)

    def _parts_of(self, key: RequestKey) -> ReceivedRequest:
        parts = self.parts.get(key)
        if parts is None:
            parts = self.parts[key] = ReceivedRequest(*key, since_ns=self._timers.now_ns)
            for choice in self.tombstones.choices(key):
                parts.streams[choice] = (
                    ReceivedStream()
                )  # judged already, but seen: the request span is not for one alone
        return parts

    def _found(self, parts: ReceivedRequest, segment: Segment, now_ns: int) -> LiveStream:
        resolved = parts.resolve(segment.choice)
        slo = self.choose(resolved, count=True)
        shift = resolved.shift_ns(self._timeouts.lateness_ns)
        stream = LiveStream(self._table, parts, segment.choice, slo, shift)
        stream.take_slot(offset_ns=segment.end_ns - now_ns, watermark_ns=segment.start_ns, receipt_ns=now_ns)
        stream.identify(slo, group_of(resolved, slo), exact_resume=resolved.exact_resume)
        stream.known = resolved if segment.seq == 0 else None
        self._follow(stream, now_ns)
        return stream

    def _follow(self, stream: LiveStream, now_ns: int) -> None:
        self.live[stream.key] = stream
        self._streams_of[stream.key[:2]] += 1
        if stream.shift_ns:
            self._counts["shifted_streams"] += 1
        self._timers.schedule(now_ns + self._timeouts.lost_after_ns, "lost", stream.key)
