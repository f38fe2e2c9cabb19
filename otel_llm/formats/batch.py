"""The contents of one export request: its records, and counts of refused, ignored and odd spans."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_llm.formats.records import DEFAULT_TENANT
from otel_llm.formats.segment_columns import key_suffix

if TYPE_CHECKING:
    from otel_llm.formats.records import RequestSpan, Segment
    from otel_llm.formats.segment_columns import SegmentColumns


@dataclass(slots=True)
class Batch:
    """The contents of one export request, in their order.

    `refused` counts unusable spans of our kind, by reason; `anomalies` counts omissions and oddities of accepted
    spans; `ignored` counts spans of other kinds.
    """

    segments: list[Segment] = field(default_factory=list)
    plain: SegmentColumns | None = None
    """Further segments, as columns: those of the plain form, for which the parser did not build objects."""
    requests: list[RequestSpan] = field(default_factory=list)
    ignored: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    anomalies: Counter[str] = field(default_factory=Counter)
    tenant: str = DEFAULT_TENANT
    """The tenant of all records; `owned_by` sets it."""

    @property
    def spans(self) -> int:
        """Return the number of the request's spans."""
        plain = 0 if self.plain is None else len(self.plain)
        return plain + len(self.segments) + len(self.requests) + self.ignored + self.refused.total()

    @property
    def tokens(self) -> int:
        """Return the number of its segments' tokens."""
        plain = 0 if self.plain is None else int(self.plain.tokens.sum())
        return plain + sum(segment.tokens for segment in self.segments)

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

    def owned_by(self, tenant: str) -> None:
        """Give all records to a tenant."""
        if tenant != self.tenant:
            self.tenant = tenant
            for segment in self.segments:
                segment.tenant = tenant
            for span in self.requests:
                span.tenant = tenant

    def plain_keys(self) -> list[bytes]:
        """Return the key of the request of each plain segment, as `key_bytes` does."""
        if self.plain is None:
            return []
        suffix = key_suffix(self.tenant)
        return [ids + suffix for ids in self.plain.keys] if suffix else self.plain.keys

    def received(self, receipt_ns: int) -> None:
        """Stamp all records with the time of receipt (unix ns)."""
        for segment in self.segments:
            segment.receipt_ns = receipt_ns
        for span in self.requests:
            span.receipt_ns = receipt_ns
