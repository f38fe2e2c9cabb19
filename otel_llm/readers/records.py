"""What every reader yields: one stream's segments and request spans, as plain values with integer times.

Readers turn any received or recorded form into these; nothing behind them knows OTLP. Times are unix
nanoseconds in [1, 2**62], up to the year 2116, so that lengths can be added to them in 64 bits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from otel_llm.readers.segment_columns import SegmentColumns

Scalar: TypeAlias = str | int | float | bool
Attributes: TypeAlias = dict[str, Scalar]


class InputError(ValueError):
    """Say that an input cannot be read at all; the message names it and what to do."""


class DecodeError(InputError):
    """Say that bytes are no trace export request; nothing of them was used."""


@dataclass(slots=True)
class Segment:
    """One numbered piece of one stream: these tokens arrived between `start_ns` and `end_ns`, and no others.

    `times_ns` is as received: not necessarily sorted, and possibly outside the segment; an event that stood for k
    tokens appears k times. `kinds` has one code of `otel_llm.slo.classes.KINDS` a token, None when all are content.
    `attributes` are the span's scalar attributes but those that became fields; known ones have the right type.
    """

    trace_id: bytes
    span_id: bytes
    """The request span's: the segment span's parent."""
    choice: int
    seq: int
    first_token: int
    start_ns: int
    end_ns: int
    times_ns: list[int]
    kinds: bytes | None
    attributes: Attributes
    receipt_ns: int | None = None
    instance_id: str | None = None
    """`service.instance.id` of the resource: the sending process."""

    @property
    def key(self) -> tuple[bytes, bytes, int, int]:
        """Return what identifies the segment; of several with one key the first received counts."""
        return (self.trace_id, self.span_id, self.choice, self.seq)


@dataclass(slots=True)
class RequestSpan:
    """One inference span, ours or another instrumentation's.

    `events_ns` are the times of token (or chunk) events on the span itself, as received, with `kinds` as in a
    segment; `event_basis` says what one stands for: `chunk` for others' per-chunk events, None where unknown.
    """

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    """Empty for a root span."""
    name: str
    kind: int
    """`SpanKind` of OTLP: 1 internal, 2 server, 3 client."""
    start_ns: int
    end_ns: int
    error: bool
    attributes: Attributes
    events_ns: list[int] = field(default_factory=list)
    kinds: bytes | None = None
    event_basis: str | None = None
    dropped_events: int = 0
    """Events that the sender's SDK dropped: as good as not received."""
    receipt_ns: int | None = None
    instance_id: str | None = None

    @property
    def key(self) -> tuple[bytes, bytes]:
        """Return what identifies the span; of several with one key the first received counts."""
        return (self.trace_id, self.span_id)


@dataclass(slots=True)
class Batch:
    """What one export request held, in the order it stood there.

    `refused` counts spans that were of our kind but unusable, by reason; `anomalies` counts what was left out of,
    or is odd about, spans that were kept; `ignored` counts spans that are none of ours.
    """

    segments: list[Segment] = field(default_factory=list)
    plain: SegmentColumns | None = None
    """Further segments, as columns: those of the plain form, where the reader took them apart."""
    requests: list[RequestSpan] = field(default_factory=list)
    ignored: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    anomalies: Counter[str] = field(default_factory=Counter)

    @property
    def spans(self) -> int:
        """Return how many spans the request held."""
        plain = 0 if self.plain is None else len(self.plain)
        return plain + len(self.segments) + len(self.requests) + self.ignored + self.refused.total()

    @property
    def tokens(self) -> int:
        """Return how many token events of segments it held."""
        plain = 0 if self.plain is None else len(self.plain.times_ns)
        return plain + sum(len(segment.times_ns) for segment in self.segments)

    @property
    def begins(self) -> bool:
        """Tell whether a request is committed in it."""
        return any(segment.seq == 0 for segment in self.segments)

    def bound(self, *, segments: int, choices: int) -> None:
        """Refuse segments numbered from `segments` on, and those of choices from `choices` on."""
        kept = [segment for segment in self.segments if segment.seq < segments and segment.choice < choices]
        if len(kept) < len(self.segments):
            for segment in self.segments:
                if segment.seq >= segments:
                    self.refused["too_many_segments"] += 1
                elif segment.choice >= choices:
                    self.refused["too_many_choices"] += 1
            self.segments = kept
        if self.plain is not None:
            within = self.plain.seq < segments
            if not within.all():
                self.refused["too_many_segments"] += int((~within).sum())
                self.plain = self.plain.only(within)

    def received(self, receipt_ns: int) -> None:
        """Stamp all records with the time of receipt (unix ns)."""
        for segment in self.segments:
            segment.receipt_ns = receipt_ns
        for span in self.requests:
            span.receipt_ns = receipt_ns
