"""From records to requests: which segments and which request span make one row, and what they say together.

The live evaluator and the audit share this file, so that a stream means the same to both. `Parts` collects what
was received of one request in any order; `Parts.resolve` says what is known of one of its streams, now or at the
end of the input.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from otel_llm import semconv
from otel_llm.readers.foreign.foreign_spans import Foreign, foreign_tokens, read_foreign

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.readers.batch import Batch
    from otel_llm.readers.records import Attributes, RequestKey, RequestSpan, Scalar, Segment, StreamKey


@dataclass(slots=True)
class Held:
    """A received segment and what remains of it once its tokens were handed on.

    `tokens` stays when `segment.times_ns` was emptied because the live evaluator has applied it.
    """

    segment: Segment
    tokens: int

    @property
    def next_token(self) -> int:
        """Return the index of the first token behind this segment."""
        return self.segment.first_token + self.tokens


@dataclass(slots=True)
class Prefix:
    """What is left of segments 0 to `segments` - 1 once the live evaluator has applied them and let them go.

    None of them said how the stream ended; `attributes` are theirs together, of several the earliest.
    """

    segments: int = 0
    tokens: int = 0
    start_ns: int = 0
    end_ns: int = 0
    attributes: Attributes = field(default_factory=dict)


class Extent(NamedTuple):
    """How far the segments of a stream reach, in indexes of tokens.

    `covered` of them are held, each counted once, of `expected` that there are by the last of them. The unbroken run
    from token 0 has `contiguous` tokens and is known to be all up to `known_ns`, None if at all: a missing empty
    segment is no hole, and without tokens between, that is the end of the last segment that continues the run.
    """

    covered: int
    expected: int
    contiguous: int
    known_ns: int | None


@dataclass(slots=True)
class StreamParts:
    """The segments of one stream by number; a repetition is counted and changes nothing."""

    held: dict[int, Held] = field(default_factory=dict)
    duplicates: int = 0
    offset_ns: int | None = None
    """Segment end - receipt of the segment that was received first, of several at once the one with the lowest number:
    how far the sender's clock is ahead, at least."""
    first: tuple[int, int] | None = None
    """When that was received, and its number."""
    ending: int | None = None
    """The highest number of a segment that says how the stream ended."""
    prefix: Prefix = field(default_factory=Prefix)

    @classmethod
    def begun(cls, commit: Segment) -> StreamParts:
        """Return what `add` and `fold` leave of a segment 0 that has no tokens and is the first to come."""
        prefix = Prefix(1, 0, commit.start_ns, commit.end_ns, commit.attributes)
        if commit.receipt_ns is None:
            return cls(prefix=prefix)
        came = (commit.receipt_ns, 0)
        return cls(offset_ns=commit.end_ns - commit.receipt_ns, first=came, prefix=prefix)

    def add(self, segment: Segment) -> bool:
        """Keep `segment` unless its number was there already; return whether it was new."""
        if self.has(segment.seq):
            self.duplicates += 1
            return False
        if segment.receipt_ns is not None and not self.prefix.segments:
            came = (segment.receipt_ns, segment.seq)
            if self.first is None or (came < self.first and came[0] == self.first[0]):
                self.first, self.offset_ns = came, segment.end_ns - segment.receipt_ns
        self.held[segment.seq] = Held(segment, len(segment.times_ns))
        if semconv.OUTCOME in segment.attributes and (self.ending is None or segment.seq > self.ending):
            self.ending = segment.seq
        return True

    def has(self, seq: int) -> bool:
        """Tell whether the segment of this number was received."""
        return seq < self.prefix.segments or seq in self.held

    def count(self) -> int:
        """Return how many segments were received."""
        return self.prefix.segments + len(self.held)

    def fold(self) -> None:
        """Let go of the segments, from the first on, whose tokens were handed on and that do not end the stream."""
        prefix = self.prefix
        while (held := self.held.get(prefix.segments)) is not None:
            segment = held.segment
            if segment.times_ns or held.segment.first_token > prefix.tokens or semconv.OUTCOME in segment.attributes:
                return
            del self.held[prefix.segments]
            if not prefix.segments:
                prefix.start_ns, prefix.end_ns = segment.start_ns, segment.end_ns
            prefix.segments += 1
            prefix.tokens = max(prefix.tokens, held.next_token)
            prefix.end_ns = max(prefix.end_ns, segment.end_ns)
            if segment.attributes:
                prefix.attributes = {**segment.attributes, **prefix.attributes}

    def in_order(self) -> list[Held]:
        """Return what was received and is held, by number."""
        if len(self.held) < 2:
            return list(self.held.values())
        return [self.held[seq] for seq in sorted(self.held)]

    def last(self) -> Held | None:
        """Return the segment that says how the stream ended, if it was received."""
        return None if self.ending is None else self.held[self.ending]

    def commit_ns(self) -> int | None:
        """Return when the request was committed, by segment 0; None if that was not received."""
        if self.prefix.segments:
            return self.prefix.start_ns
        first = self.held.get(0)
        return None if first is None else first.segment.start_ns

    def seen_until_ns(self) -> int | None:
        """Return the latest end of a segment."""
        ends = [held.segment.end_ns for held in self.held.values()]
        if self.prefix.segments:
            ends.append(self.prefix.end_ns)
        return max(ends, default=None)

    def tell(self, attributes: Attributes) -> None:
        """Write what the segments say of the stream over `attributes`; of several the earliest."""
        for held in reversed(self.in_order()):
            attributes.update(held.segment.attributes)
        attributes.update(self.prefix.attributes)

    def extent(self) -> Extent:
        """Return how far the tokens that the segments hold reach."""
        prefix = self.prefix
        upto = covered = expected = prefix.tokens
        known_ns = prefix.end_ns if prefix.segments else None
        held = self.held
        if len(held) == 1:
            # Nearly always: one segment behind what was let go.
            (one,) = held.values()
            first, following = one.segment.first_token, one.next_token
            if first <= upto:
                if following > upto:
                    upto = covered = expected = following
                if known_ns is None or one.segment.end_ns > known_ns:
                    known_ns = one.segment.end_ns
                return Extent(covered, expected, upto, known_ns)
        for one in sorted(held.values(), key=_by_first_token):
            covered += max(0, one.next_token - max(upto, one.segment.first_token))
            upto = expected = max(upto, one.next_token)
        upto = prefix.tokens
        for one in self.in_order():
            if one.segment.first_token > upto:
                break
            upto = max(upto, one.next_token)
            known_ns = one.segment.end_ns if known_ns is None else max(known_ns, one.segment.end_ns)
        return Extent(covered, expected, upto, known_ns)

    def token_times(self) -> tuple[list[int], bytes | None]:
        """Return every token time that is held in order of segment (unsorted within), and the kinds (None: content)."""
        times: list[int] = []
        kinds = bytearray()
        plain = True
        for held in self.in_order():
            segment = held.segment
            times.extend(segment.times_ns)
            plain = plain and segment.kinds is None
            kinds.extend(segment.kinds if segment.kinds is not None else bytes(len(segment.times_ns)))
        return times, None if plain else bytes(kinds)


@dataclass(slots=True)
class Resolved:
    """What is known of one stream, before any class judges it. Times are unix ns; None is: not known."""

    trace_id: bytes
    span_id: bytes
    choice: int | None
    declared_class: str | None
    attributes: Attributes
    """What a class's `match` is compared with: segment 0's and the request span's, segments first."""
    model: str | None
    instance: str | None
    measured_at: str
    outcome: str
    token_basis: str | None
    commit_ns: int | None
    end_ns: int | None
    """The end of the stream; for a lost one the end of the last segment seen."""
    coverage: float | None
    complete: bool
    """Nothing is known to be missing and the commit is known: the stream can be judged."""
    known_tokens: int
    """Tokens in the unbroken run from the first; the times of the first token are believed when it is not 0."""
    known_until_ns: int | None
    """Up to when that run is all there was."""
    input_tokens: int | None
    exact_resume: bool
    offset_ns: int | None
    queue_s: float | None = None
    foreign: Foreign | None = None
    """Set for spans of others: what they say; where they carry no token times only these columns are filled."""

    @property
    def key(self) -> StreamKey:
        """Return the stream's key."""
        return (self.trace_id, self.span_id, self.choice or 0)

    def shift_ns(self, lateness_ns: int) -> int:
        """Return what to subtract from the stream's times to place them in windows."""
        return shift_ns(self.offset_ns, lateness_ns)


@dataclass(slots=True)
class Parts:
    """What was received of one request: its request span and its streams by choice."""

    trace_id: bytes
    span_id: bytes
    request: RequestSpan | None = None
    streams: dict[int, StreamParts] = field(default_factory=dict)
    since_ns: int | None = None
    """When the first of it was received, where somebody wants to know."""

    def stream(self, choice: int) -> StreamParts:
        """Return the parts of one choice, made when first asked for."""
        found = self.streams.get(choice)
        if found is None:
            found = self.streams[choice] = StreamParts()
        return found

    def add_request(self, span: RequestSpan) -> bool:
        """Keep the first request span; return whether it was new."""
        if self.request is not None:
            return False
        self.request = span
        return True

    def request_ends(self, choice: int) -> bool:
        """Return whether the request span ends this stream: it has an outcome, and no other choice was seen."""
        return self.request is not None and semconv.OUTCOME in self.request.attributes and self._is_only(choice)

    def _is_only(self, choice: int) -> bool:
        """Return whether no other choice was seen: what the request span says of the end is said of this stream."""
        return not self.streams or (len(self.streams) == 1 and choice in self.streams)

    def resolve(self, choice: int) -> Resolved:
        """Say what is known of one stream: segments win over the request span, attribute by attribute."""
        stream = self.streams.get(choice) or StreamParts()
        span = self.request
        span_attributes: Attributes = span.attributes if span is not None else {}
        last = stream.last()
        ends = self.request_ends(choice) or (last is not None and self._is_only(choice))
        ending_span: Attributes = span_attributes if ends else {}
        ending: Attributes = last.segment.attributes if last is not None else {}

        attributes: Attributes = dict(span_attributes)
        stream.tell(attributes)
        get = attributes.get

        outcome = _text(ending.get(semconv.OUTCOME)) or _text(ending_span.get(semconv.OUTCOME)) or "lost"
        commit_ns = stream.commit_ns()
        if commit_ns is None and span is not None:
            commit_ns = span.start_ns
        if last is not None:
            end_ns: int | None = last.segment.end_ns
        elif outcome != "lost" and span is not None:
            end_ns = span.end_ns
        else:
            end_ns = stream.seen_until_ns()

        covered, expected, known_tokens, known_until_ns = stream.extent()
        declared = _count(ending.get(semconv.TOKENS))
        if declared is None:
            declared = _count(ending_span.get(semconv.TOKENS))
        if declared is not None:
            expected = max(expected, declared)
        if not stream.count() and declared is None:
            coverage: float | None = 0.0  # segments were sent, none came, and nobody says that they were empty
        else:
            coverage = min(1.0, covered / expected) if expected else 1.0
        whole = coverage == 1.0
        if outcome == "lost" and whole:
            coverage = None
        return Resolved(
            trace_id=self.trace_id,
            span_id=self.span_id,
            choice=choice,
            declared_class=_text(get(semconv.SLO_CLASS)),
            attributes=attributes,
            model=_text(get(semconv.GEN_AI_REQUEST_MODEL)) or _text(get(semconv.GEN_AI_RESPONSE_MODEL)),
            instance=_text(get(semconv.INSTANCE)),
            measured_at=_text(get(semconv.MEASURED_AT)) or _by_kind(span),
            outcome=outcome,
            token_basis=_text(ending.get(semconv.TOKEN_BASIS)) or _text(ending_span.get(semconv.TOKEN_BASIS)),
            commit_ns=commit_ns,
            end_ns=end_ns,
            coverage=coverage,
            complete=whole and commit_ns is not None,
            known_tokens=known_tokens,
            known_until_ns=known_until_ns,
            input_tokens=_count(get(semconv.GEN_AI_USAGE_INPUT_TOKENS)),
            exact_resume=get(semconv.EXACT_RESUME) is True,
            offset_ns=_offset(span) if stream.offset_ns is None else stream.offset_ns,
            queue_s=_seconds(get(semconv.GEN_AI_LATENCY_QUEUE)),
        )

    def resolve_foreign(self) -> Resolved | None:
        """Say what follows from a request span of others, None if no time does."""
        span = self.request
        if span is None:
            return None
        found = read_foreign(span)
        if found is None:
            return None
        attributes = span.attributes
        return Resolved(
            trace_id=self.trace_id,
            span_id=self.span_id,
            choice=None,
            declared_class=_text(attributes.get(semconv.SLO_CLASS)),
            attributes=attributes,
            model=_text(attributes.get(semconv.GEN_AI_REQUEST_MODEL))
            or _text(attributes.get(semconv.GEN_AI_RESPONSE_MODEL)),
            instance=_text(attributes.get(semconv.INSTANCE)),
            measured_at=found.measured_at,
            outcome="error" if span.error else "completed",
            token_basis=found.token_basis,
            commit_ns=span.start_ns,
            end_ns=span.end_ns,
            coverage=found.coverage,
            complete=found.whole,
            known_tokens=found.tokens if found.whole else 0,  # of a part of them the first may be missing
            known_until_ns=span.end_ns if found.whole else None,
            input_tokens=_count(attributes.get(semconv.GEN_AI_USAGE_INPUT_TOKENS)),
            exact_resume=False,
            offset_ns=_offset(span) if found.tokens else None,
            queue_s=found.queue_s,
            foreign=found,
        )


@dataclass(slots=True)
class Assembled:
    """One stream at the end of the input: what is known of it, its token times and their kinds.

    Times are sorted where the stream is complete; where tokens are missing they stay in order of index, so that the
    first `resolved.known_tokens` are those before the hole.
    """

    resolved: Resolved
    times_ns: list[int]
    kinds: bytes | None


@dataclass(slots=True)
class Assembler:
    """Collect batches in any order and give every stream at the end of the input.

    `counts` has what was received more than once or left over: `duplicate_segments`, `duplicate_requests`,
    `ignored`, `missing_empty_segments`, `refused.REASON` and the readers' `anomaly.NAME`.
    """

    parts: dict[RequestKey, Parts] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, batch: Batch) -> None:
        """Take what one export request held."""
        for segment in batch.segments:
            key = (segment.trace_id, segment.span_id)
            parts = self.parts.get(key)
            if parts is None:
                parts = self.parts[key] = Parts(*key)
            if not parts.stream(segment.choice).add(segment):
                self.counts["duplicate_segments"] += 1
        for span in batch.requests:
            parts = self.parts.get(span.key)
            if parts is None:
                parts = self.parts[span.key] = Parts(*span.key)
            if not parts.add_request(span):
                self.counts["duplicate_requests"] += 1
        count_rest(batch, self.counts)

    def finish(self) -> list[Assembled]:
        """Return every stream, in the order of rows: start (unknown last), trace id, span id, choice (null last)."""
        found = list(self._streams())
        found.sort(key=lambda one: row_order(one.resolved))
        return found

    def _streams(self) -> Iterator[Assembled]:
        for parts in self.parts.values():
            yield from streams_of(parts, self.counts)


def count_rest(batch: Batch, counts: Counter[str]) -> None:
    """Count what an export request held beside segments and request spans, and what was odd about those."""
    counts["ignored"] += batch.ignored
    for reason, number in batch.refused.items():
        counts[f"refused.{reason}"] += number
    for name, number in batch.anomalies.items():
        counts[f"anomaly.{name}"] += number


def streams_of(parts: Parts, counts: Counter[str]) -> Iterator[Assembled]:
    """Yield the streams of one request, at the end of the input."""
    if not parts.streams:
        yield from _without_segments(parts, counts)
        return
    for choice, stream in parts.streams.items():
        resolved = parts.resolve(choice)
        counts["missing_empty_segments"] += missing_segments(stream) if resolved.complete else 0
        times_ns, kinds = stream.token_times()
        if resolved.complete:
            times_ns, kinds = in_time_order(times_ns, kinds)
        yield Assembled(resolved, times_ns, kinds)


def _without_segments(parts: Parts, counts: Counter[str]) -> Iterator[Assembled]:
    assert parts.request is not None  # noqa: S101  a Parts is made for a segment or for a request span
    if semconv.SEGMENTS in parts.request.attributes:
        yield Assembled(parts.resolve(0), [], None)
        return
    resolved = parts.resolve_foreign()
    if resolved is None:
        counts["ignored"] += 1
        return
    times_ns, kinds = foreign_tokens(parts.request) or ([], None)
    if resolved.complete:
        times_ns, kinds = in_time_order(times_ns, kinds)
    yield Assembled(resolved, times_ns, kinds)


def _by_first_token(held: Held) -> int:
    return held.segment.first_token


def in_time_order(times_ns: list[int], kinds: bytes | None) -> tuple[list[int], bytes | None]:
    """Return token times sorted, each with its kind (a stable sort: equal times keep the order of arrival)."""
    if kinds is None:
        return sorted(times_ns), None
    order = sorted(range(len(times_ns)), key=times_ns.__getitem__)
    return [times_ns[i] for i in order], bytes(kinds[i] for i in order)


def _offset(span: RequestSpan | None) -> int | None:
    return None if span is None or span.receipt_ns is None else span.end_ns - span.receipt_ns


def missing_segments(stream: StreamParts) -> int:
    """Return how many numbers below the highest were not received."""
    held = len(stream.held)
    if not held:
        return 0
    return max(stream.held) + 1 - stream.prefix.segments - held


def shift_ns(offset_ns: int | None, lateness_ns: int) -> int:
    """Return what to subtract from times of which the first was received so much before it was.

    A sender whose clock is off by more than the lateness would otherwise report into windows long closed, or far in the
    future.
    """
    return 0 if offset_ns is None or abs(offset_ns) <= lateness_ns else offset_ns


def row_order(resolved: Resolved) -> tuple[bool, int, bytes, bytes, bool, int]:
    """Return the sort key of a row: start, trace id, span id, choice; unknown starts and null choices last."""
    return (
        resolved.commit_ns is None,
        resolved.commit_ns or 0,
        resolved.trace_id,
        resolved.span_id,
        resolved.choice is None,
        resolved.choice or 0,
    )


def _by_kind(span: RequestSpan | None) -> str:
    return "server" if span is not None and span.kind == 2 else "client"  # SpanKind SERVER


def says_all(ending: Attributes, span: Attributes) -> bool:
    """Tell whether a last segment says of the end all that the request span says: then that is not asked."""
    return all(
        read(ending.get(name)) is not None or read(span.get(name)) is None
        for name, read in ((semconv.OUTCOME, _text), (semconv.TOKENS, _count), (semconv.TOKEN_BASIS, _text))
    )


def declared_tokens(ending: Attributes) -> int:
    """Return how many tokens a last segment says that there are, 0 where it does not."""
    return _count(ending.get(semconv.TOKENS)) or 0


def _text(value: Scalar | None) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: Scalar | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _seconds(value: Scalar | None) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < float("inf") else None
