"""The contents of one export request: its records, and counts of refused, ignored and odd spans."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_llm.readers.records import RequestSpan, Segment
    from otel_llm.readers.segment_columns import SegmentColumns


@dataclass(slots=True)
class Batch:
    """The contents of one export request, in their order.

    `refused` counts unusable spans of our kind, by reason; `anomalies` counts omissions and oddities of accepted
    spans; `ignored` counts spans of other kinds.
    """

    segments: list[Segment] = field(default_factory=list)
    plain: SegmentColumns | None = None
    """Further segments, as columns: those of the plain form, where the reader did not build objects."""
    requests: list[RequestSpan] = field(default_factory=list)
    ignored: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    anomalies: Counter[str] = field(default_factory=Counter)

    @property
    def spans(self) -> int:
        """Return the number of the request's spans."""
        plain = 0 if self.plain is None else len(self.plain)
        return plain + len(self.segments) + len(self.requests) + self.ignored + self.refused.total()

    @property
    def tokens(self) -> int:
        """Return the number of its segments' token events."""
        plain = 0 if self.plain is None else len(self.plain.times_ns)
        return plain + sum(len(segment.times_ns) for segment in self.segments)

    @property
    def begins(self) -> bool:
        """Tell whether it holds the commit of a request."""
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
