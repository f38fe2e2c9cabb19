"""The registry of requests and streams: in flight, waiting for segments, ended."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm import semconv
from otel_llm.core.fair_shares import has_room
from otel_llm.evaluate.streams.lifecycle import StreamEvent, StreamState
from otel_llm.evaluate.streams.live_stream import LiveStream
from otel_llm.evaluate.streams.stream_in_flight import CommitIdentity, group_of
from otel_llm.evaluate.streams.stream_table import MOST_GROUPS
from otel_llm.evaluate.subjects import MAX_SUBJECTS
from otel_llm.evaluate.tombstones import Tombstones
from otel_llm.formats.assemble.received_request import ReceivedRequest, place_of
from otel_llm.formats.assemble.received_stream import MAX_HELD_BYTES, ReceivedStream
from otel_llm.formats.assemble.resolved import shift_ns
from otel_llm.formats.batch import ids_of, key_suffix, request_of
from otel_llm.formats.spans.attributes import text_of
from otel_llm.slo.classes import Curve

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from otel_llm.evaluate.streams.stream_table import StreamTable
    from otel_llm.evaluate.timers import Timeouts, Timers
    from otel_llm.formats.assemble.resolved import Resolved
    from otel_llm.formats.batch import Batch
    from otel_llm.formats.records import Attributes, RequestKey, RequestSpan, Segment, StreamKey
    from otel_llm.slo.classes import SloClass, SloClasses

    Ints = npt.NDArray[np.int64]

_CACHED: Final = 1024


class IdentityCache:
    """A cache of identities by the attributes of commits: most commits have the attributes of earlier ones.

    `classes`: the SLO classes that judge streams.
    """

    def __init__(self, classes: SloClasses) -> None:
        self._classes = classes
        self._known: dict[tuple[int, str], tuple[Attributes, CommitIdentity]] = {}

    def of(self, parts: ReceivedRequest) -> CommitIdentity:
        """Return the identity of a request from its commit of choice 0; nothing else of it may have been received."""
        attributes = parts.streams[0].prefix.attributes
        key = (id(attributes), parts.tenant)  # the decoder gives equal attributes as one object
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _CACHED:
                self._known.clear()
            known = self._known[key] = (attributes, self._read(parts))  # a reference, so that the id stays unique
        return known[1]

    def _read(self, parts: ReceivedRequest) -> CommitIdentity:
        resolved = parts.resolve(0)
        slo, unknown = self._classes.choose(resolved.declared_class, resolved.attributes)
        stated = resolved.attributes
        return CommitIdentity(
            slo,
            unknown,
            group_of(resolved, slo),
            resolved.exact_resume,
            resolved.input_tokens,
            self._classes,
            parts.streams[0].prefix.attributes,
            self._open_names(slo, stated),
        )

    def _open_names(self, slo: SloClass, stated: Attributes) -> frozenset[str]:
        """Return the attributes that are not `stated`, and would change the identity of a stream of this class."""
        names = {
            *(semconv.SLO_CLASS, semconv.GEN_AI_REQUEST_MODEL, semconv.INSTANCE, semconv.MEASURED_AT),
            semconv.EXACT_RESUME,
        }
        if text_of(stated, semconv.GEN_AI_REQUEST_MODEL) is None:
            names.add(semconv.GEN_AI_RESPONSE_MODEL)
        if isinstance(slo.fluidity.ttft, Curve):
            names.add(semconv.GEN_AI_USAGE_INPUT_TOKENS)
        names.update(name for one in self._classes.classes for name, _ in one.match)
        return frozenset(names - stated.keys())


@dataclass(frozen=True, slots=True)
class RegistryLimits:
    """The limits on judged requests, and on requests without segments, in memory."""

    tombstones: int = 100_000
    """Judged requests that are remembered, at least: a late segment of one is counted and starts no stream."""
    waiting_times: int = 10_000_000
    """The total of token times on request spans without segments; beyond it the oldest spans of the tenant that has
    most of them are judged at once."""
    groups: int = MOST_GROUPS
    """Groups that are remembered beside those of streams in flight."""
    subjects: int = MAX_SUBJECTS
    """Instances, and classes, with labels of their own in rules; the rest count as `other`."""
    held_bytes: int = MAX_HELD_BYTES
    """The memory of one stream's segments that wait for an earlier one; further ones are refused."""


class Registry:
    """Requests and streams, from their first span or segment to their verdict.

    `classes`: the SLO classes that judge streams. `counts` gets segments, tokens, request_spans, late and duplicate
    ones, shifted_streams, unknown_slo_class.
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
        """Those whose end was received."""
        self.parts: dict[RequestKey, ReceivedRequest] = {}
        self.orphans: dict[RequestKey, int] = {}
        """Request spans without a stream, oldest first, with the end of each in the collector's time."""
        self._waiting: dict[str, dict[RequestKey, int]] = {}
        """The numbers of token times on those spans, of those that have any, by tenant, oldest first."""
        self._waiting_times: Counter[str] = Counter()
        """Their sums."""
        self.tombstones = Tombstones(limits.tombstones)
        self._limits = limits
        self._table = table
        self._timers = timers
        self._timeouts = timeouts
        self._counts = counts
        self._streams_of: Counter[RequestKey] = Counter()
        self._streams_of_tenant: Counter[str] = Counter()
        self._judged: deque[tuple[int, int]] = deque()
        """For recently judged streams: the time of the verdict, and of the first receipt."""
        self.use(classes)

    def use(self, classes: SloClasses) -> None:
        """Use these SLO classes from now on."""
        self.classes = classes
        self._identities = IdentityCache(classes)

    # What is received.

    def open(self, segment: Segment, now_ns: int) -> LiveStream | None:
        """Create the stream of a plain commit that is the first of its request; return None for any other segment.

        This is the fast path of nearly every stream; it gives the result of `receive` and `LiveStream.apply`.
        """
        key = segment.request_key
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
        stream.identity = known
        if known.unknown:
            self._counts["unknown_slo_class"] += 1
        self._track(stream, now_ns)
        stream.commit(segment.start_ns, known.input_tokens)
        stream.move(StreamEvent.COMMIT)
        stream.mark_begun(segment.end_ns)
        return stream

    def receive(self, segment: Segment, now_ns: int) -> tuple[LiveStream, bool] | None:
        """Store a segment until it is applied.

        Returns:
            Its stream, and whether that is new; None for a late or duplicate segment.
        """
        key = segment.request_key
        stream = self.live.get((*key, segment.choice))
        if stream is not None:
            parts, received = stream.parts, stream.received
        elif self.tombstones.has(key, segment.choice):
            self._counts["late_or_duplicate_segments"] += 1
            return None
        else:
            parts = self._parts_of(key)
            received = parts.stream(segment.choice)
        if (dropped := received.add(segment, self._limits.held_bytes)) is not None:
            self._counts[dropped] += 1
            return None
        self._counts["segments"] += 1
        self._counts["tokens"] += segment.tokens
        found = stream is None
        if stream is None:
            stream = self._create(parts, segment, now_ns)
            self.pop_orphan(key)
        else:
            stream.note_receipt(segment.end_ns, now_ns)
        stream.waiting.append(segment.seq)
        return stream, found

    def receive_request(self, span: RequestSpan, now_ns: int) -> list[StreamKey]:
        """Store a request span; return the keys of the streams that it may change."""
        key = span.key
        if key not in self.parts and key in self.tombstones:
            self._counts["late_request_spans"] += 1
            return []
        parts = self._parts_of(key)
        if not parts.add_request(span):
            self._counts["duplicate_request_spans"] += 1
            return []
        self._counts["request_spans"] += 1
        if not parts.streams:  # its segments may arrive; spans of other instrumentations wait as long
            # A span with token times is judged before the first window of these closes.
            at_ns = span.start_ns if span.events_ns else span.end_ns
            self.orphans[key] = at_ns - parts.resolve(0).shift_ns(self._timeouts.lateness_ns)
            self._timers.schedule(now_ns + self._timeouts.lateness_ns, "orphan", (*key, 0))
            if span.events_ns:
                self._waiting.setdefault(parts.tenant, {})[key] = len(span.events_ns)
                self._waiting_times[parts.tenant] += len(span.events_ns)
        return [stream.key for stream in self._streams(parts)]

    def mark_closed(self, batch: Batch) -> None:
        """Mark the streams and requests of a batch as closed: an earlier run has seen their end."""
        for segment in batch.segments:
            self.tombstones.add(segment.request_key, segment.choice)
        for key in batch.plain_keys():
            self.tombstones.add(request_of(key), 0)
        for span in batch.requests:
            self.tombstones.add(span.key, 0)

    def commit(self, stream: LiveStream) -> bool:
        """Note a stream's commit if segment 0 is there, or a request span that states the end; return whether one is.

        No rule is evaluated on a stream without its segment 0, whatever else says when it was committed.
        """
        if not (stream.received.has(0) or stream.parts.request_ends(stream.choice)):
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

    def is_identified(self, stream: LiveStream) -> bool:
        """Return whether nothing that was received of a stream can have changed its identity since its commit."""
        known, parts = stream.identity, stream.parts
        if known is None or known.classes is not self.classes:
            return False
        received, request = parts.stream(stream.choice), parts.request
        if received.prefix.attributes is not known.attributes:
            return False
        for held in received.held.values():
            if not known.open_names.isdisjoint(held.segment.attributes):
                return False
        if request is None:
            return True
        if semconv.MEASURED_AT in known.open_names and place_of(request) != known.group.measured_at:
            return False
        return known.open_names.isdisjoint(request.attributes)

    def choose(self, resolved: Resolved, *, count: bool = False) -> SloClass:
        """Return the class that judges a stream; `count`: count an unknown class that it names."""
        slo, unknown = self.classes.choose(resolved.declared_class, resolved.attributes)
        if count:
            self._counts["unknown_slo_class"] += unknown
        return slo

    def has_room(self, tenant: str | None, most: int) -> bool:
        """Return whether a tenant may begin streams; without tokens (None) there is no other to keep room for."""
        held = len(self.live)
        return held < most if tenant is None else has_room(self._streams_of_tenant[tenant], held, most)

    def siblings(self, stream: LiveStream) -> list[LiveStream]:
        """Return the other streams of the request that have no verdict."""
        return [one for one in self._streams(stream.parts) if one is not stream]

    def slots_of(self, batch: Batch, slots: Ints | None) -> Ints:
        """Return the slots of all streams of the requests in a batch, (N,) int64.

        `slots`: (S,) int64, of its plain segments, -1 for a new stream, whose request may have other streams.
        """
        requests = {one.request_key for one in batch.segments}
        requests.update(span.key for span in batch.requests)
        if batch.plain is not None and slots is not None:
            suffix = key_suffix(batch.tenant)
            requests.update(request_of(ids + suffix) for ids in ids_of(batch.plain.ids[slots < 0]))
        known = [parts for key in requests if (parts := self.parts.get(key)) is not None]
        others = np.array([stream.slot for parts in known for stream in self._streams(parts)], dtype=np.int64)
        return others if slots is None else np.concatenate((slots[slots >= 0], others))

    @property
    def waiting_times(self) -> int:
        """Return the number of token times on request spans without a stream."""
        return self._waiting_times.total()

    def excess_orphan(self) -> RequestKey | None:
        """Return the request span to judge now, because too many token times wait; None if they may wait.

        It is the oldest of the tenant that has most of them.
        """
        if self.waiting_times <= self._limits.waiting_times:
            return None
        ((tenant, _),) = self._waiting_times.most_common(1)
        return next(iter(self._waiting[tenant]))

    def oldest_receipt_ns(self, since_ns: int) -> int:
        """Return the earliest receipt time of streams that are in flight, or were judged since an instant (unix ns)."""
        while self._judged and self._judged[0][0] < since_ns:
            self._judged.popleft()
        found = [since_ns, *(found_ns for _, found_ns in self._judged)]
        if self._table.size:
            found.append(int(self._table.found_ns.min()))
        return min(found)

    # Ended requests and streams.

    def pop_orphan(self, key: RequestKey) -> ReceivedRequest | None:
        """Remove a request span that waits for segments, and return its request; None if it did not wait."""
        if self.orphans.pop(key, None) is None:
            return None
        tenant = key[2]
        waiting = self._waiting.get(tenant, {})
        self._waiting_times[tenant] -= waiting.pop(key, 0)
        if not waiting:
            self._waiting.pop(tenant, None)
        return self.parts[key]

    def stream_of_span(self, parts: ReceivedRequest, resolved: Resolved, slo: SloClass) -> LiveStream:
        """Create the ended stream of a request span without segments."""
        stream = LiveStream(self._table, parts, 0, slo, resolved.shift_ns(self._timeouts.lateness_ns))
        stream.take_slot(offset_ns=0, watermark_ns=resolved.commit_ns or 0, receipt_ns=self._timers.now_ns)
        stream.ended_ns, stream.state = resolved.end_ns, StreamState.ENDED
        stream.identify(slo, group_of(resolved, slo), exact_resume=resolved.exact_resume)
        self.live[stream.key] = stream
        self._streams_of[parts.key] += 1
        self._streams_of_tenant[parts.tenant] += 1
        return stream

    def drop(self, stream: LiveStream) -> None:
        """Remove a judged stream; keep its request span for choices that may still arrive."""
        del self.live[stream.key]
        self.ended.pop(stream.key, None)
        now_ns, request = self._timers.now_ns, stream.parts.key
        self._judged.append((now_ns, self._table.found_ns.item(stream.slot)))
        self.tombstones.add(request, stream.choice)
        self._streams_of_tenant[stream.parts.tenant] -= 1
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
        request = parts.key
        return (stream for choice in parts.streams if (stream := self.live.get((*request, choice))) is not None)

    def _parts_of(self, key: RequestKey) -> ReceivedRequest:
        parts = self.parts.get(key)
        if parts is None:
            parts = self.parts[key] = ReceivedRequest(*key, since_ns=self._timers.now_ns)
            for choice in self.tombstones.choices(key):
                parts.streams[choice] = ReceivedStream()  # judged, but the request still has several choices
        return parts

    def _create(self, parts: ReceivedRequest, segment: Segment, now_ns: int) -> LiveStream:
        resolved = parts.resolve(segment.choice)
        slo = self.choose(resolved, count=True)
        shift = resolved.shift_ns(self._timeouts.lateness_ns)
        stream = LiveStream(self._table, parts, segment.choice, slo, shift)
        stream.take_slot(offset_ns=segment.end_ns - now_ns, watermark_ns=segment.start_ns, receipt_ns=now_ns)
        stream.identify(slo, group_of(resolved, slo), exact_resume=resolved.exact_resume)
        stream.known = resolved if segment.seq == 0 else None
        self._track(stream, now_ns)
        return stream

    def _track(self, stream: LiveStream, now_ns: int) -> None:
        self.live[stream.key] = stream
        self._streams_of[stream.parts.key] += 1
        self._streams_of_tenant[stream.parts.tenant] += 1
        if stream.shift_ns:
            self._counts["shifted_streams"] += 1
        self._timers.schedule(now_ns + self._timeouts.lost_after_ns, "lost", stream.key)
